#include "engine/companions.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"

struct entry {
    char *name;
    char *data;
    size_t bytes;
};

struct companions {
    struct entry *entries; /* [n], sorted by name */
    int n, cap;
};

static const char *const kept[] = {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
};

static struct entry *add(struct companions *c, const char *name)
{
    if (c->n == c->cap) {
        int cap = c->cap ? 2 * c->cap : 16;
        struct entry *bigger = realloc(c->entries, (size_t)cap * sizeof *bigger);

        if (!bigger)
            return NULL;
        c->entries = bigger;
        c->cap = cap;
    }
    struct entry *en = &c->entries[c->n];

    *en = (struct entry){.name = strdup(name)};
    if (!en->name)
        return NULL;
    c->n++;
    return en;
}

static int read_whole(int fd, struct entry *en, size_t bytes, struct err *e)
{
    en->data = malloc(bytes + 1);
    if (!en->data)
        return err_nomem(e);
    while (en->bytes < bytes) {
        ssize_t got = read(fd, en->data + en->bytes, bytes - en->bytes);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_io(e, "read %s", en->name);
        if (got == 0)
            break; /* it became shorter: what is there is kept */
        en->bytes += (size_t)got;
    }
    en->data[en->bytes] = '\0';
    return 0;
}

/* 0 also when the file is absent or not a regular file. */
static int read_one(struct companions *c, int dir_fd, const char *name, struct err *e)
{
    struct stat st;
    int rc = 0;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return errno == ENOENT ? 0 : err_io(e, "open %s", name);
    if (fstat(fd, &st) < 0) {
        rc = err_io(e, "look at %s", name);
    } else if (st.st_size > COMPANION_FILE_MAX) {
        rc = err_set(e, ERR_FORMAT, "%s has %lld bytes, of at most %d", name, (long long)st.st_size,
                     COMPANION_FILE_MAX);
    } else if (S_ISREG(st.st_mode)) {
        struct entry *en = add(c, name);

        rc = en ? read_whole(fd, en, (size_t)st.st_size, e) : err_nomem(e);
    }
    close(fd);
    return rc;
}

static bool is_code(const char *name)
{
    size_t n = strlen(name);

    return n > 3 && strcmp(name + n - 3, ".py") == 0;
}

static int read_code(struct companions *c, int dir_fd, struct err *e)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    int rc = 0;

    if (!d) {
        err_io(e, "list the model directory");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    for (struct dirent *de; rc == 0 && (de = readdir(d)) != NULL;)
        if (is_code(de->d_name))
            rc = read_one(c, dir_fd, de->d_name, e);
    closedir(d);
    return rc;
}

static int add_minimum(struct companions *c, struct err *e)
{
    struct companion there;

    if (companions_find(c, "generation_config.json", &there))
        return 0;
    struct entry *en = add(c, "generation_config.json");

    if (en)
        en->data = strdup("{}\n");
    if (!en || !en->data)
        return err_nomem(e);
    en->bytes = 3;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

struct companions *companions_read(int dir_fd, bool with_code, struct err *e)
{
    struct companions *c = calloc(1, sizeof *c);

    if (!c) {
        err_nomem(e);
        return NULL;
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (read_one(c, dir_fd, kept[i], e) < 0)
            goto fail;
    if (with_code && read_code(c, dir_fd, e) < 0)
        goto fail;
    if (add_minimum(c, e) < 0)
        goto fail;
    qsort(c->entries, (size_t)c->n, sizeof *c->entries, by_name);
    return c;

fail:
    companions_free(c);
    return NULL;
}

void companions_free(struct companions *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n; i++) {
        free(c->entries[i].name);
        free(c->entries[i].data);
    }
    free(c->entries);
    free(c);
}

int companions_count(const struct companions *c)
{
    return c->n;
}

struct companion companions_at(const struct companions *c, int i)
{
    const struct entry *en = &c->entries[i];

    return (struct companion){.name = en->name, .data = en->data, .bytes = en->bytes};
}

bool companions_find(const struct companions *c, const char *name, struct companion *out)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->entries[i].name, name) == 0) {
            *out = companions_at(c, i);
            return true;
        }
    return false;
}

bool companions_same(const struct companions *a, const struct companions *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++) {
        struct companion x = companions_at(a, i), y = companions_at(b, i);

        if (strcmp(x.name, y.name) != 0 || x.bytes != y.bytes ||
            memcmp(x.data, y.data, x.bytes) != 0)
            return false;
    }
    return true;
}
