/* service/health.h - is the server alive, ready, busy. Asks nobody and waits for nobody; any
 * thread. */
#ifndef SERVICE_HEALTH_H
#define SERVICE_HEALTH_H

#include <jansson.h>

struct service;

/* {"status", "version", "timestamp", "uptime_seconds"}; owned. */
json_t *health_object(struct service *s, const char *version);
/* The same; ready while the weights are not torn and no load is the first one. *retry_after_s is 0
 * when ready. */
json_t *health_ready(struct service *s, const char *version, int *retry_after_s);
/* The same with `inference` (slots, queue), `lease` and `weights`. */
json_t *health_detailed(struct service *s, const char *version);
#endif
