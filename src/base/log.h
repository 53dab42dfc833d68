/* base/log.h - one event a line on standard error: time, level, event name, key=value pairs.
 *
 * Libraries below service/ return errors and do not log. Calling order: log_setup once, before
 * threads exist; log_start when the process is about to serve; log_end_waits when it is asked to
 * stop; log_stop at its end. The other functions may be called from any thread at any time.
 *
 * A reader of standard error that stalls (a full pipe, a stopped terminal) stalls nobody who calls
 * log_ev: a line that cannot be written at once goes into a queue of LOG_QUEUE_BYTES, which a
 * thread of its own writes; lines that find it full are dropped and counted, and one `log_dropped`
 * line tells how many. Lines keep their order. Before log_start every call writes, and waits,
 * itself.
 *
 * Audit lines are never dropped. log_audit returns when its line is written, so that nothing is
 * answered that is not on record; log_audit_later is for the engine's thread, which may not wait.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct err;

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };
enum { LOG_QUEUE_BYTES = 1 << 20 };

void log_setup(enum log_level least, bool json);
int log_start(struct err *e);
void log_end_waits(void); /* from now on log_audit does not wait; its lines stay in the queue */
void log_stop(void);      /* writes what is queued, for two seconds at most */

void log_ev(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A whole JSON line as it is, without its newline. */
void log_audit(const char *line);
void log_audit_later(const char *line);

uint64_t log_dropped(void); /* lines, since log_start */
#endif
