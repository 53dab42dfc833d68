#include "base/procinfo.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
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

/* The first two numbers of statm: pages of the address space, pages in RAM. */
static void read_memory(struct procinfo *out)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    char text[256], *end;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return;
    text[n] = '\0';
    out->virtual_bytes = strtoll(text, &end, 10) * page;
    out->resident_bytes = strtoll(end, NULL, 10) * page;
}

void procinfo_read(struct procinfo *out)
{
    struct rusage used = {0};

    *out = (struct procinfo){0};
    read_memory(out);
    out->open_fds = count_entries("/proc/self/fd", 1);
    out->threads = count_entries("/proc/self/task", 0);
    if (getrusage(RUSAGE_SELF, &used) == 0)
        out->cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
}
