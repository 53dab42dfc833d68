#include "base/procinfo.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Entries of a directory of /proc, the one that reads it and the two dots left out. */
static int count_entries(const char *path, int besides)
{
    DIR *d = opendir(path);
    int n = 0;

    if (!d)
        return 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2 - besides;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

void procinfo_read(struct procinfo *out)
{
    FILE *f = fopen("/proc/self/statm", "re");
    int64_t total = 0, resident = 0, page = sysconf(_SC_PAGESIZE);
    struct rusage used = {0};

    *out = (struct procinfo){0};
    if (f && fscanf(f, "%" SCNd64 " %" SCNd64, &total, &resident) == 2) {
        out->virtual_bytes = total * page;
        out->resident_bytes = resident * page;
    }
    if (f)
        fclose(f);
    out->open_fds = count_entries("/proc/self/fd", 1);
    out->threads = count_entries("/proc/self/task", 0);
    if (getrusage(RUSAGE_SELF, &used) == 0)
        out->cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
}
