#include "store/relink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/listing.h"
#include "store/manifest.h"
#include "store/name.h"
#include "store/reader.h"
#include "store/roots.h"
#include "store/schema.h"

static const char latest_link[] = "latest";

struct run {
    const struct schema *schema;
    const char *id;
    int fd;
};

static bool has_weights(int dir_fd)
{
    struct ckpt_reader *weights = NULL;
    struct err why = {0};
    bool there = ckpt_reader_open(dir_fd, "model.safetensors", &weights, &why) == READER_OK;

    ckpt_reader_close(weights);
    return there;
}

/* When the whole checkpoint in `step_dir` was written, in nanoseconds; -1: it is none. */
static int64_t written_at(const struct run *run, const char *step_dir)
{
    struct manifest_place place = {.run_id = run->id};
    struct manifest m = {0};
    struct err why = {0};
    struct stat st;
    int64_t at = -1;
    int dir_fd = openat(run->fd, step_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (dir_fd < 0 || !ckpt_step_dir_parse(step_dir, &place.step))
        goto done;
    if (manifest_read(dir_fd, run->schema, &place, &m, NULL, &why) == MANIFEST_OK &&
        has_weights(dir_fd) && fstatat(dir_fd, MANIFEST_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0)
        at = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;

done:
    manifest_release(&m);
    fs_close(dir_fd);
    return at;
}

/* Steps are in rising order, so that of two equal times the larger step stays. */
static const char *saved_last(const struct run *run, const struct listing *steps)
{
    const char *last = NULL;
    int64_t newest = 0;

    for (size_t i = 0; i < steps->n; i++) {
        int64_t at = written_at(run, steps->at[i]);

        if (at >= newest) {
            newest = at;
            last = steps->at[i];
        }
    }
    return last;
}

/* 1: made, 0: not needed, -1: *e. */
static int relink_run(const struct run *run, struct err *e)
{
    struct listing steps = {0};
    const char *last;
    struct stat st;
    int rc;

    if (fstatat(run->fd, latest_link, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
        return 0;
    rc = listing_steps(run->fd, &steps, e);
    last = rc == 0 ? saved_last(run, &steps) : NULL;
    if (last && symlinkat(last, run->fd, latest_link) < 0)
        rc = err_io(e, "link %s/%s to %s", run->id, latest_link, last);
    else if (last)
        rc = fs_sync(run->fd, run->id, e) < 0 ? -1 : 1;
    listing_release(&steps);
    return rc;
}

static void count(struct relink_report *out, int rc, const struct err *why)
{
    out->made += rc > 0;
    if (rc < 0 && out->failed++ == 0)
        snprintf(out->why, sizeof out->why, "%s", why->msg);
}

static void relink_runs(int root_fd, dev_t mount, const struct schema *s,
                        const struct listing *runs, struct relink_report *out)
{
    for (size_t i = 0; i < runs->n; i++) {
        struct run run = {.schema = s, .id = runs->at[i]};
        struct err why = {0};

        run.fd = listing_open_own_run(root_fd, run.id, mount);
        if (run.fd < 0)
            continue;
        count(out, relink_run(&run, &why), &why);
        close(run.fd);
    }
}

int relink_primary(const struct roots *r, const struct schema *s, struct relink_report *out,
                   struct err *e)
{
    struct listing runs = {0};
    struct stat st;
    int root_fd, rc = -1;

    *out = (struct relink_report){0};
    if (schema_problem(s))
        return 0;
    root_fd = roots_dir(r, ROOTS_PRIMARY, e);
    if (root_fd < 0)
        return -1;
    if (fstat(root_fd, &st) < 0)
        err_io(e, "look at the checkpoint root");
    else
        rc = listing_runs(root_fd, &runs, e);
    if (rc == 0)
        relink_runs(root_fd, st.st_dev, s, &runs, out);
    listing_release(&runs);
    fs_close(root_fd);
    return rc;
}
