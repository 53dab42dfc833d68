/* http/workers.h - threads that run queued work: started on demand, ended when idle.
 *
 * workers_push may be called from any thread and does not block. */
#ifndef HTTP_WORKERS_H
#define HTTP_WORKERS_H

struct err;
struct workers;

/* Embedded in what is queued; not to be touched while it is. */
struct work {
    void (*fn)(struct work *w);
    struct work *next;
};

struct workers *workers_new(int max_threads, struct err *e);
/* -1: no thread could be started at all; the work was not taken. */
int workers_push(struct workers *ws, struct work *w);
int workers_threads(struct workers *ws);
void workers_free(struct workers *ws); /* runs what is queued, then joins; NULL is allowed */
#endif
