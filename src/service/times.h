/* service/times.h - times and durations as the management face writes them. */
#ifndef SERVICE_TIMES_H
#define SERVICE_TIMES_H

#include <jansson.h>
#include <stdint.h>

json_t *json_time(int64_t wall_ms); /* "2026-11-29T19:16:58.123Z"; null for 0 */
json_t *json_ms(double ms);         /* one decimal */
/* A string (json_repaired), or null for NULL and "". */
json_t *json_text(const char *s);
#endif
