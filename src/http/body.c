#include "http/body.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"

void body_init(struct body *b, struct body_budget *budget)
{
    *b = (struct body){.budget = budget, .fd = -1, .data = ""};
}

static int take_budget(struct body *b, size_t n, struct err *e)
{
    size_t before = atomic_fetch_add(&b->budget->used, n);

    if (before + n > b->budget->limit) {
        atomic_fetch_sub(&b->budget->used, n);
        return err_set(e, ERR_SPACE, "all request bodies together exceed %zu bytes",
                       b->budget->limit);
    }
    b->len += n;
    return 0;
}

static int open_unlinked(const char *dir, struct err *e)
{
    char name[4096];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0)
        return fd;
    if (snprintf(name, sizeof name, "%s/body-XXXXXX", dir) >= (int)sizeof name)
        return err_set(e, ERR_ARG, "the spool directory's path is too long");
    fd = mkostemp(name, O_CLOEXEC); /* a file system without O_TMPFILE */
    if (fd < 0)
        return err_io(e, "make a file for a request body in %s", dir);
    unlink(name);
    return fd;
}

static int write_all(int fd, const char *bytes, size_t n, struct err *e)
{
    while (n) {
        ssize_t wrote = write(fd, bytes, n);

        if (wrote < 0)
            return err_io(e, "write a request body");
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return 0;
}

static int move_to_file(struct body *b, struct err *e)
{
    b->fd = open_unlinked(b->budget->spool_dir, e);
    if (b->fd < 0 || write_all(b->fd, buf_str(&b->memory), b->memory.len, e) < 0)
        return -1;
    buf_release(&b->memory);
    return 0;
}

int body_add(struct body *b, const void *bytes, size_t n, struct err *e)
{
    if (take_budget(b, n, e) < 0)
        return -1;
    if (b->fd < 0 && b->len > b->budget->spool_bytes && move_to_file(b, e) < 0)
        return -1;
    if (b->fd >= 0)
        return write_all(b->fd, bytes, n, e);
    buf_add(&b->memory, bytes, n);
    return b->memory.failed ? err_nomem(e) : 0;
}

int body_finish(struct body *b, struct err *e)
{
    void *map;

    if (b->fd < 0) {
        b->data = buf_str(&b->memory);
        return 0;
    }
    if (write_all(b->fd, "", 1, e) < 0) /* the NUL behind the last byte */
        return -1;
    map = mmap(NULL, b->len + 1, PROT_READ, MAP_PRIVATE, b->fd, 0);
    if (map == MAP_FAILED)
        return err_io(e, "map a request body of %zu bytes", b->len);
    b->data = map;
    b->mapped = b->len + 1;
    return 0;
}

void body_release(struct body *b)
{
    if (b->mapped)
        munmap((void *)b->data, b->mapped);
    if (b->fd >= 0)
        close(b->fd);
    buf_release(&b->memory);
    if (b->budget)
        atomic_fetch_sub(&b->budget->used, b->len);
    *b = (struct body){.fd = -1, .data = ""};
}
