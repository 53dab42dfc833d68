#include "base/cpus.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SHORT_TURN_NS = 100 * 1000 }; /* the least the kernel takes */

int cpus_allowed(int ids[CPUS_MAX])
{
    cpu_set_t set;
    int n = 0;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (size_t i = 0; i < CPU_SETSIZE && n < CPUS_MAX; i++)
            if (CPU_ISSET(i, &set))
                ids[n++] = (int)i;
    if (n == 0)
        ids[n++] = 0;
    return n;
}

/* Reads the first line of a small file; false when there is none. */
static bool read_line(const char *path, char *line, int size)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, size, f);

    if (f)
        fclose(f);
    return ok;
}

/* The path of this process inside the hierarchy that `controllers` names ("" for version 2). */
static bool group_path(const char *controllers, char *path, size_t size)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[512];
    bool found = false;

    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':');
        char *where = names ? strchr(names + 1, ':') : NULL;

        if (!where)
            continue;
        *where++ = 0;
        where[strcspn(where, "\n")] = 0;
        found = *controllers ? strstr(names + 1, controllers) != NULL : names[1] == 0;
        if (found)
            snprintf(path, size, "%s", where);
    }
    fclose(f);
    return found;
}

static int quota_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0 || quota > period * CPUS_MAX)
        return CPUS_MAX;
    return (int)((quota + period - 1) / period);
}

/* cpu.max is "QUOTA PERIOD" or "max PERIOD". Every group up to the root may carry one. */
static int quota_v2(void)
{
    char path[512];
    char file[640];
    char line[64];
    int least = CPUS_MAX;

    if (!group_path("", path, sizeof path))
        return least;
    for (;;) {
        char *end;

        snprintf(file, sizeof file, "/sys/fs/cgroup%s/cpu.max", path);
        if (read_line(file, line, sizeof line)) {
            long long quota = strtoll(line, &end, 10); /* "max" has no digits: 0 */
            int n = quota_cpus(quota, strtoll(end, NULL, 10));

            least = n < least ? n : least;
        }
        end = strrchr(path, '/');
        if (!end)
            return least;
        *end = 0;
    }
}

static int quota_v1(void)
{
    static const char *const folders[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
    char path[512];

    if (!group_path("cpu", path, sizeof path))
        return CPUS_MAX;
    for (int i = 0; i < 4; i++) {
        const char *inside = i % 2 ? "" : path; /* inside a container the root is the group */
        char file[640];
        char quota[64];
        char period[64];

        snprintf(file, sizeof file, "%s%s/cpu.cfs_quota_us", folders[i / 2], inside);
        if (!read_line(file, quota, sizeof quota))
            continue;
        snprintf(file, sizeof file, "%s%s/cpu.cfs_period_us", folders[i / 2], inside);
        if (read_line(file, period, sizeof period))
            return quota_cpus(strtoll(quota, NULL, 10), strtoll(period, NULL, 10));
    }
    return CPUS_MAX;
}

int cpus_usable(void)
{
    int ids[CPUS_MAX];
    int n = cpus_allowed(ids);
    int v2 = quota_v2();
    int v1 = quota_v1();

    n = v2 < n ? v2 : n;
    return v1 < n ? v1 : n;
}

/* struct sched_attr of sched_setattr(2), its first version: <linux/sched/types.h> cannot stand
 * beside <sched.h>. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime; /* of an ordinary thread: its turn in ns, 0: the usual one */
    uint64_t deadline, period;
};

void cpus_short_turns(bool on)
{
    struct attributes a = {0};

    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) < 0)
        return;
    a.runtime = on ? SHORT_TURN_NS : 0;
    syscall(SYS_sched_setattr, 0, &a, 0);
}
