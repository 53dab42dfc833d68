/* base/clock.h - monotonic time for durations and timers, wall time for stamps. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_mono_ns(void); /* CLOCK_MONOTONIC */
int64_t clock_wall_ms(void); /* Unix time in milliseconds */
double clock_ms_since(int64_t start_ns);

/* "2026-11-29T19:16:58.123Z" into out. */
void clock_iso8601(int64_t wall_ms, char out[32]);
#endif
