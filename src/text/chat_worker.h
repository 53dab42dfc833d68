/* text/chat_worker.h - the process that renders: start, one exchange of frames, stop.
 *
 * Used by chat_template.c. Frames: chat_worker.py. One exchange at a time (the lock is inside); a
 * process that died or does not answer is ended, and the next exchange starts another. */
#ifndef TEXT_CHAT_WORKER_H
#define TEXT_CHAT_WORKER_H

#include <stddef.h>

struct buf;
struct chat_text;
struct chat_worker;
struct err;

enum chat_status {
    CHAT_TEXT,    /* the rendered text */
    CHAT_REFUSED, /* raise_exception: its words */
    CHAT_FAILED,  /* any other error of the template: Python's words */
    CHAT_TIMEOUT,
    CHAT_DIED, /* out of memory, most likely */
    CHAT_TOO_LONG,
};

/* Sends template and request (JSON), appends the answer's text to *out. 0 with *status, or -1:
 * ERR_IO the process cannot be started or reached. */
int chat_worker_exchange(struct chat_worker *w, const struct chat_text *t, const char *request,
                         size_t len, enum chat_status *status, struct buf *out, struct err *e);
#endif
