#include "base/meminfo.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 8192, PATH_BYTES = 4096 };

static bool read_text(const char *path, char text[TEXT_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_MAX - 1);

    if (fd >= 0)
        close(fd);
    if (n < 0)
        return false;
    text[n] = '\0';
    return true;
}

static bool read_number(const char *path, uint64_t *out)
{
    char text[TEXT_MAX];
    char *end;

    if (!read_text(path, text))
        return false;
    *out = strtoull(text, &end, 10);
    return end != text; /* "max" is no number: no limit */
}

/* The number after `key` at the start of a line of text. */
static bool find_number(const char *text, const char *key, uint64_t *out)
{
    size_t len = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, len) == 0) {
            *out = strtoull(line + len, NULL, 10);
            return true;
        }
    }
    return false;
}

static void take_smaller(uint64_t n, uint64_t *least, bool *known)
{
    if (!*known || n < *least)
        *least = n;
    *known = true;
}

/* limit - used + the file cache that can be dropped, of one group directory. */
static void look_at_group(const char *dir, const char *limit_name, const char *used_name,
                          uint64_t *least, bool *known)
{
    char path[PATH_BYTES + 64], text[TEXT_MAX];
    uint64_t limit, used, cache = 0;

    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (!read_number(path, &limit))
        return;
    snprintf(path, sizeof path, "%s/%s", dir, used_name);
    if (!read_number(path, &used))
        return;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (read_text(path, text) && !find_number(text, "inactive_file ", &cache))
        cache = 0;
    used = used > cache ? used - cache : 0;
    take_smaller(limit > used ? limit - used : 0, least, known);
}

/* Line "<id>:<controllers>:<path>" of /proc/self/cgroup; NULL: no such line. Cuts `text`. */
static const char *group_path(char *text, const char *mark)
{
    char *line = strstr(text, mark);

    if (!line)
        return NULL;
    line += strlen(mark);
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static void look_at_groups(const char *root, const char *path, const char *limit_name,
                           const char *used_name, uint64_t *least, bool *known)
{
    char dir[PATH_BYTES];
    int n = snprintf(dir, sizeof dir, "%s%s", root, strcmp(path, "/") == 0 ? "" : path);

    if (n < 0 || n >= (int)sizeof dir)
        return;
    for (size_t shortest = strlen(root);;) {
        look_at_group(dir, limit_name, used_name, least, known);
        if (strlen(dir) <= shortest)
            return;
        *strrchr(dir, '/') = '\0';
    }
}

static void look_at_control_groups(uint64_t *least, bool *known)
{
    char text[TEXT_MAX], copy[TEXT_MAX];
    const char *path;

    if (!read_text("/proc/self/cgroup", text))
        return;
    memcpy(copy, text, sizeof copy);
    if ((path = group_path(copy, "0::")) != NULL)
        look_at_groups("/sys/fs/cgroup", path, "memory.max", "memory.current", least, known);
    memcpy(copy, text, sizeof copy);
    if ((path = group_path(copy, ":memory:")) != NULL)
        look_at_groups("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                       "memory.usage_in_bytes", least, known);
}

int meminfo_available(size_t *bytes)
{
    char text[TEXT_MAX];
    uint64_t kib, least = 0;
    bool known = false;

    if (read_text("/proc/meminfo", text) && find_number(text, "MemAvailable:", &kib))
        take_smaller(kib * 1024, &least, &known);
    look_at_control_groups(&least, &known);
    if (!known)
        return -1;
    *bytes = (size_t)least;
    return 0;
}
