/* service/jobs.h - work that goes on after its request was answered: a counted set of threads. */
#ifndef SERVICE_JOBS_H
#define SERVICE_JOBS_H

struct err;
struct jobs;

struct jobs *jobs_new(struct err *e);
/* Runs fn(arg) on a thread of its own. -1: no thread; fn was not called. Any thread. */
int jobs_start(struct jobs *j, void (*fn)(void *arg), void *arg, struct err *e);
void jobs_free(struct jobs *j); /* waits for all; NULL is allowed */
#endif
