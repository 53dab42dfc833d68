/* base/log.h - one event a line on standard error: time, level, event name, key=value pairs.
 *
 * Libraries below service/ return errors and do not log. The level and form are set once at start, before
 * threads exist; each line is one write(2). log_json writes a whole JSON line as it is (audit lines). */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };

void log_setup(enum log_level least, bool json);
void log_ev(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void log_json(const char *line); /* without newline */
#endif
