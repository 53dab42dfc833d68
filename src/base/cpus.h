/* base/cpus.h - how many CPUs this process may use, and which.
 *
 * The affinity mask says which; the quota of the control group (version 2 `cpu.max`, version 1
 * `cpu.cfs_quota_us`) says how many of them at a time. Any thread. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

#include <stdbool.h>

enum { CPUS_MAX = 1024 };

/* Fills ids with the CPUs of the affinity mask, rising; returns their number, at least 1. */
int cpus_allowed(int ids[CPUS_MAX]);

/* The number of threads worth running: allowed CPUs, cut to the quota rounded up; at least 1. */
int cpus_usable(void);

/* Asks the kernel to give the calling thread, and threads it starts from now on, short turns: it is
 * then chosen soon after it wakes, before threads that compute. For threads that move bytes.
 * false: back to the usual turn. A kernel that knows no turns per thread (before 6.12) changes
 * nothing. */
void cpus_short_turns(bool on);
#endif
