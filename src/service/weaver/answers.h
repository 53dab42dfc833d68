/* service/weaver/answers.h - the same request gets the same answer.
 *
 * The client repeats a POST whose answer it did not get, with the same traceparent, which differs
 * for every call. So the answer of each request that changes something is kept for ANSWERS_KEEP_MS
 * under (method, path, traceparent, owner): w_answer_take says whether it is there (waiting for a
 * first one that is still running), else the caller does the work and gives w_answer_keep what came
 * out. Also over a restart. */
#ifndef SERVICE_WEAVER_ANSWERS_H
#define SERVICE_WEAVER_ANSWERS_H

#include "base/buf.h"

struct weaver;
struct w_answer;

enum { ANSWERS_KEEP_MS = 15 * 60000 };

/* NULL with *status set: a kept answer, its body in *body. Else the caller is the first: exactly
 * one w_answer_keep follows. NULL with *status 0: out of memory, or the first one takes too long.
 */
struct w_answer *w_answer_take(struct weaver *w, const char *key, int *status, struct buf *body);
/* body is borrowed. `ended`: the operation whose envelope body is, "" for none: its row has the
 * result, so only the id is kept (weaver_call.ended). A status of 500 and more, and 429, is not
 * kept: the request may be tried anew.
 */
void w_answer_keep(struct weaver *w, struct w_answer *a, int status, const struct buf *body,
                   const char *ended);
void w_answers_sweep(struct weaver *w);
#endif
