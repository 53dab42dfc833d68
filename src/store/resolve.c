#include "store/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/roots.h"

static const char latest_word[] = "latest";

static enum resolve_outcome start(struct resolved *out)
{
    *out = (struct resolved){.dir_fd = -1, .root = -1};
    return RESOLVE_OK;
}

/* How a failed confined opening reads to the one who asked. */
static enum resolve_outcome refused(const struct err *why, struct err *e)
{
    switch (why->sys) {
    case ENOENT:
    case ENOTDIR:
        return RESOLVE_NOT_FOUND;
    case EXDEV:
    case ELOOP:
        return RESOLVE_OUTSIDE;
    default:
        *e = *why;
        return RESOLVE_FAILED;
    }
}

/* Reads from the name that the directory `fd` has below the run directory; links were followed to
 * get there. */
static enum resolve_outcome step_of(int run_fd, int fd, int64_t *step, struct err *e)
{
    enum resolve_outcome o = RESOLVE_LATEST;
    char *run = fs_path_of(run_fd, e);
    char *at = run ? fs_path_of(fd, e) : NULL;
    size_t n;

    if (!at) {
        free(run);
        return RESOLVE_FAILED;
    }
    n = strlen(run);
    if (strncmp(run, at, n) == 0 && at[n] == '/' && ckpt_step_dir_parse(at + n + 1, step))
        o = RESOLVE_OK;
    free(run);
    free(at);
    return o;
}

static enum resolve_outcome open_latest(int run_fd, struct resolved *out, struct err *e)
{
    struct err why = {0};
    char target[2];

    if (readlinkat(run_fd, latest_word, target, sizeof target) < 0)
        return errno == ENOENT ? RESOLVE_NOT_FOUND : RESOLVE_LATEST;
    out->dir_fd =
        fs_open_beneath(run_fd, latest_word, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_INSIDE, &why);
    if (out->dir_fd >= 0)
        return step_of(run_fd, out->dir_fd, &out->step, e);
    if (why.sys == ENOENT)
        return RESOLVE_NOT_FOUND;
    if (why.sys == EXDEV || why.sys == ELOOP || why.sys == ENOTDIR)
        return RESOLVE_LATEST;
    *e = why;
    return RESOLVE_FAILED;
}

/* Opens <root>/<run_id>/<step or latest>; out->run_id and out->step are set. */
static enum resolve_outcome open_in(const struct roots *r, int root, bool latest,
                                    struct resolved *out, struct err *e)
{
    enum resolve_outcome o = RESOLVE_OK;
    struct err why = {0};
    int run_fd = -1, root_fd = roots_dir(r, root, &why);

    if (root_fd < 0)
        return refused(&why, e);
    if (latest) {
        run_fd =
            fs_open_beneath(root_fd, out->run_id, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_INSIDE, &why);
        o = run_fd < 0 ? refused(&why, e) : open_latest(run_fd, out, e);
    } else {
        out->dir_fd = fs_open_beneath(root_fd, out->searched, O_RDONLY | O_DIRECTORY, 0,
                                      FS_LINKS_INSIDE, &why);
        if (out->dir_fd < 0)
            o = refused(&why, e);
    }
    fs_close(run_fd);
    fs_close(root_fd);
    if (o == RESOLVE_OK) {
        out->root = root;
        ckpt_path(out->path, out->run_id, out->step);
    } else {
        fs_close(out->dir_fd);
        out->dir_fd = -1;
    }
    return o;
}

/* The one root that holds the run; a run that is nowhere may still be a link that leads out of some
 * root. */
static enum resolve_outcome open_by_run(const struct roots *r, bool latest, struct resolved *out,
                                        struct err *e)
{
    enum resolve_outcome o = RESOLVE_NOT_FOUND;

    if (roots_count(r) == 1)
        return open_in(r, ROOTS_PRIMARY, latest, out, e);
    /* `searched` is "<run_id>/<step or latest>" */
    if (roots_find_run(r, out->run_id, out->searched + strlen(out->run_id) + 1, &out->roots_mask,
                       e) < 0)
        return RESOLVE_FAILED;
    if (out->roots_mask & (out->roots_mask - 1))
        return RESOLVE_AMBIGUOUS;
    if (out->roots_mask)
        return open_in(r, __builtin_ctz(out->roots_mask), latest, out, e);
    for (int i = 0; i < roots_count(r) && o == RESOLVE_NOT_FOUND; i++)
        o = open_in(r, i, latest, out, e);
    return o;
}

static enum resolve_outcome parse_name(const char *text, size_t len, struct resolved *out)
{
    struct ckpt_name name;

    start(out);
    if (!ckpt_name_parse(text, len, &name))
        return RESOLVE_BAD_NAME;
    memcpy(out->run_id, name.run_id, sizeof out->run_id);
    out->step = name.step;
    out->base_len = name.base_len;
    ckpt_path(out->searched, out->run_id, out->step);
    return RESOLVE_OK;
}

enum resolve_outcome resolve_name(const struct roots *r, const char *text, size_t len,
                                  struct resolved *out, struct err *e)
{
    out->outcome = parse_name(text, len, out);
    if (out->outcome == RESOLVE_OK)
        out->outcome = open_by_run(r, false, out, e);
    return out->outcome;
}

int resolve_open_file(const struct roots *r, const char *text, size_t len, const char *file,
                      struct resolved *out)
{
    char path[CKPT_PATH_MAX + NAME_MAX + 1];
    struct err ignored = {0};

    out->outcome = parse_name(text, len, out);
    if (out->outcome != RESOLVE_OK || roots_count(r) != 1)
        return -1;
    out->root = ROOTS_PRIMARY;
    memcpy(out->path, out->searched, sizeof out->path);
    snprintf(path, sizeof path, "%s/%s", out->path, file);
    return fs_open_beneath(roots_primary_fd(r), path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW,
                           0, FS_LINKS_INSIDE, &ignored);
}

/* "<run_id>/<step dir>" or "<run_id>/latest": exactly two components. */
static enum resolve_outcome parse_relative(const char *text, bool *latest, struct resolved *out)
{
    const char *slash = strchr(text, '/');
    size_t run_len;

    if (!slash || strchr(slash + 1, '/'))
        return RESOLVE_SHAPE;
    run_len = (size_t)(slash - text);
    if (memchr(text, ':', run_len))
        return RESOLVE_BAD_RUN_ID;
    if (!ckpt_run_id_may_load(text, run_len))
        return RESOLVE_SHAPE;
    *latest = strcmp(slash + 1, latest_word) == 0;
    if (!*latest && !ckpt_step_dir_parse(slash + 1, &out->step))
        return RESOLVE_SHAPE;
    memcpy(out->run_id, text, run_len);
    snprintf(out->searched, sizeof out->searched, "%s", text);
    return RESOLVE_OK;
}

/* What follows the prefix and its slash ("" when nothing does), or NULL. */
static const char *after(const char *text, const char *prefix)
{
    size_t n = strlen(prefix);

    while (n > 0 && prefix[n - 1] == '/')
        n--;
    if (n == 0 && !*prefix)
        return NULL;
    if (strncmp(text, prefix, n) != 0 || (text[n] && text[n] != '/'))
        return NULL;
    return text[n] ? text + n + 1 : text + n;
}

static const char *below_a_root(const struct roots *r, const char *text, int *root)
{
    for (int i = 0; i < roots_count(r); i++) {
        const char *rest = after(text, roots_path(r, i));

        if (!rest)
            rest = after(text, roots_real(r, i));
        if (rest) {
            *root = i;
            return rest;
        }
    }
    return NULL;
}

enum resolve_outcome resolve_path(const struct roots *r, const char *text, size_t len,
                                  struct resolved *out, struct err *e)
{
    bool latest = false;
    int root = -1;

    start(out);
    if (len == 0 || memchr(text, 0, len))
        return out->outcome = RESOLVE_SHAPE;
    if (text[0] == '/') {
        text = below_a_root(r, text, &root);
        if (!text)
            return out->outcome = RESOLVE_OUTSIDE;
    }
    out->outcome = parse_relative(text, &latest, out);
    if (out->outcome != RESOLVE_OK)
        return out->outcome;
    /* An absolute path is exact: it says which root it means. */
    if (root >= 0)
        return out->outcome = open_in(r, root, latest, out, e);
    return out->outcome = open_by_run(r, latest, out, e);
}

void resolved_release(struct resolved *r)
{
    fs_close(r->dir_fd);
    r->dir_fd = -1;
}

const char *resolve_reason(enum resolve_outcome o)
{
    switch (o) {
    case RESOLVE_BAD_NAME:
        return "name_format";
    case RESOLVE_OUTSIDE:
        return "outside_roots";
    case RESOLVE_SHAPE:
        return "shape";
    case RESOLVE_LATEST:
        return "latest";
    default:
        return NULL;
    }
}
