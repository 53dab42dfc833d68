/* base/procinfo.h - what this process holds now, from /proc/self. */
#ifndef BASE_PROCINFO_H
#define BASE_PROCINFO_H

#include <stdint.h>

struct procinfo {
    int64_t resident_bytes, virtual_bytes;
    int open_fds, threads; /* 0: unknown */
    double cpu_seconds;    /* user and system, all threads */
};

/* What cannot be read is 0. Any thread. */
void procinfo_read(struct procinfo *out);
#endif
