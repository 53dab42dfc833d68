#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t clock_mono_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

double clock_ms_since(int64_t start_ns)
{
    return (double)(clock_mono_ns() - start_ns) / 1e6;
}

void clock_iso8601(int64_t wall_ms, char out[32])
{
    time_t s = (time_t)(wall_ms / 1000);
    char text[80];
    struct tm tm;

    gmtime_r(&s, &tm);
    snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900,
             tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(wall_ms % 1000));
    memcpy(out, text, 31);
    out[31] = 0;
}
