#include "store/listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/name.h"

void listing_release(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->at[i]);
    free(l->at);
    *l = (struct listing){0};
}

static int add(struct listing *l, const char *name, struct err *e)
{
    size_t cap = l->cap ? l->cap * 2 : 64;
    char **grown = l->n < l->cap ? l->at : reallocarray(l->at, cap, sizeof *grown);

    if (!grown)
        return err_nomem(e);
    if (l->n == l->cap)
        l->cap = cap;
    l->at = grown;
    l->at[l->n] = strdup(name);
    return l->at[l->n] ? (l->n++, 0) : err_nomem(e);
}

static bool is_run(const char *name)
{
    return name[0] != '.' && ckpt_run_id_may_load(name, strlen(name));
}

static bool is_step(const char *name)
{
    int64_t step;

    return ckpt_step_dir_parse(name, &step);
}

/* Steps by number, what has no number by bytes. */
static int compare(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    int64_t m, n;

    if (ckpt_step_dir_parse(x, &m) && ckpt_step_dir_parse(y, &n))
        return m < n ? -1 : m > n;
    return strcmp(x, y);
}

/* A stream of its own on a borrowed handle; both share one position, hence the rewind. */
static DIR *open_stream(int fd, struct err *e)
{
    int again = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *d = again < 0 ? NULL : fdopendir(again);

    if (d) {
        rewinddir(d);
        return d;
    }
    err_io(e, "list a directory");
    fs_close(again);
    return NULL;
}

static int list(int fd, bool (*wanted)(const char *name), struct listing *out, struct err *e)
{
    DIR *d = open_stream(fd, e);
    struct dirent *entry;
    int rc = 0;

    if (!d)
        return -1;
    while (rc == 0 && (errno = 0, entry = readdir(d)))
        if (wanted(entry->d_name))
            rc = add(out, entry->d_name, e);
    if (rc == 0 && errno)
        rc = err_io(e, "list a directory");
    closedir(d);
    if (out->n)
        qsort(out->at, out->n, sizeof *out->at, compare);
    return rc;
}

int listing_runs(int root_fd, struct listing *out, struct err *e)
{
    return list(root_fd, is_run, out, e);
}

int listing_steps(int run_fd, struct listing *out, struct err *e)
{
    return list(run_fd, is_step, out, e);
}

int listing_open_own_run(int root_fd, const char *name, dev_t mount)
{
    struct stat st;
    int fd;

    if (name[0] == '.')
        return -1;
    fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_dev != mount)) {
        close(fd);
        return -1;
    }
    return fd;
}
