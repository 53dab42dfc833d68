/* store/scratch.h - a directory for one test, and checkpoints made by hand in it. */
#ifndef TESTS_STORE_SCRATCH_H
#define TESTS_STORE_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/sha256.h"

struct scratch {
    char dir[64]; /* absolute, real */
    int fd;
};

static inline int scratch_make(void **state)
{
    struct scratch *s = calloc(1, sizeof *s);
    struct err e = {0};

    assert_non_null(s);
    strcpy(s->dir, "/tmp/cairn-store-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->fd = fs_open_dir(s->dir, &e);
    assert_true(s->fd >= 0);
    *state = s;
    return 0;
}

static inline int scratch_drop(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    int top = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    close(s->fd);
    assert_int_equal(fs_remove_tree(top, strrchr(s->dir, '/') + 1, &e), 0);
    close(top);
    free(s);
    return 0;
}

/* "<dir>/<name>", in memory that lives as long as the test program. */
static inline const char *scratch_path(const struct scratch *s, const char *name)
{
    static char ring[8][512];
    static unsigned next;
    char *out = ring[next++ % 8];

    snprintf(out, sizeof ring[0], "%s/%s", s->dir, name);
    return out;
}

static inline void put_dir(const struct scratch *s, const char *name)
{
    char part[512];

    snprintf(part, sizeof part, "%s", name);
    for (char *at = part; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdirat(s->fd, part, 0755);
    }
    mkdirat(s->fd, part, 0755);
}

static inline void put_file(const struct scratch *s, const char *name, const char *text)
{
    int fd = openat(s->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static inline void put_link(const struct scratch *s, const char *name, const char *target)
{
    assert_int_equal(symlinkat(target, s->fd, name), 0);
}

static inline int exists(const struct scratch *s, const char *name)
{
    struct stat st;

    return fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Entries of a directory besides "." and "..". */
static inline int count_entries(const struct scratch *s, const char *name)
{
    DIR *d = fdopendir(openat(s->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int n = -2;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* The text of a valid manifest.json. parent NULL: null. */
static inline void manifest_text(char *out, size_t size, const char *base, const char *run,
                                 long step, const char *parent)
{
    const char *quote = parent ? "\"" : "";

    snprintf(out, size,
             "{\"name\": \"%s:%s:step-%ld\", \"base_model\": \"%s\", \"run_id\": \"%s\", "
             "\"step\": %ld, \"created_at\": \"2026-11-29T10:00:00Z\", \"domain\": \"d\", "
             "\"signal_source\": \"corpus\", \"parent\": %s%s%s, "
             "\"optimizer\": {\"name\": \"adamw\", \"state\": \"fresh\"}, "
             "\"weights_sha256\": "
             "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"}",
             base, run, step, base, run, step, quote, parent ? parent : "null", quote);
}

/* <root>/<run>/step-<step>/ with manifest.json and an empty model.safetensors. */
static inline void put_checkpoint(const struct scratch *s, const char *root, const char *base,
                                  const char *run, long step, const char *parent)
{
    char text[2048], name[512];

    snprintf(name, sizeof name, "%s/%s/step-%06ld", root, run, step);
    put_dir(s, name);
    snprintf(name, sizeof name, "%s/%s/step-%06ld/model.safetensors", root, run, step);
    put_file(s, name, "");
    snprintf(name, sizeof name, "%s/%s/step-%06ld/manifest.json", root, run, step);
    manifest_text(text, sizeof text, base, run, step, parent);
    put_file(s, name, text);
}

#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)
#endif
