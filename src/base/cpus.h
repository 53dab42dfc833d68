/* base/cpus.h - how many CPUs this process may use, and which.
 *
 * The affinity mask says which; the quota of the control group (version 2 `cpu.max`, version 1
 * `cpu.cfs_quota_us`) says how many of them at a time. Any thread. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

enum { CPUS_MAX = 1024 };

/* Fills ids with the CPUs of the affinity mask, rising; returns their number, at least 1. */
int cpus_allowed(int ids[CPUS_MAX]);

/* The number of threads worth running: allowed CPUs, cut to the quota rounded up; at least 1. */
int cpus_usable(void);
#endif
