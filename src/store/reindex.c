#include "store/reindex.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "store/catalogue.h"
#include "store/listing.h"
#include "store/manifest.h"
#include "store/name.h"
#include "store/reader.h"
#include "store/roots.h"
#include "store/schema.h"

const char *reindex_outcome_name(enum reindex_outcome o)
{
    static const char *const names[REINDEX_N] = {
        [REINDEX_ADDED] = "added",
        [REINDEX_KEPT] = "kept",
        [REINDEX_RENAMED] = "renamed",
        [REINDEX_REFUSED] = "refused",
    };

    return names[o];
}

/* ---- one checkpoint ---- */

struct walk {
    const struct reindex_req *req;
    int64_t count[REINDEX_N];
    int root;
    int root_fd;
    const char *run_id;
    bool fatal; /* the catalogue itself failed: the walk ends */
};

/* 0: as the manifest says, or not asked to look. -1 with the reason. */
static int check_weights(const struct walk *w, int dir_fd, const char *expected, struct err *e)
{
    struct ckpt_reader *r = NULL;
    char sha256[SHA256_HEX];
    int rc = -1;

    if (ckpt_reader_open(dir_fd, "model.safetensors", &r, e) != READER_OK)
        return -1;
    if (!w->req->verify)
        rc = 0;
    else if (ckpt_reader_hash(r, NULL, NULL, NULL, sha256, e) == 0)
        rc = strcmp(sha256, expected) == 0
                 ? 0
                 : err_set(e, ERR_FORMAT, "model.safetensors has sha256 %s, the manifest says %s",
                           sha256, expected);
    ckpt_reader_close(r);
    return rc;
}

static int check_row_holds(const struct manifest *m, const char *real, struct err *e)
{
    if (ckpt_name_chars(m->name) > CKPT_NAME_MAX_CHARS)
        return err_set(e, ERR_ARG, "its name is longer than %d characters", CKPT_NAME_MAX_CHARS);
    if (ckpt_name_chars(real) > CATALOGUE_PATH_MAX_CHARS)
        return err_set(e, ERR_ARG, "its path is longer than %d characters",
                       CATALOGUE_PATH_MAX_CHARS);
    return 0;
}

/* Makes the row. -1 with ERR_CONFLICT: one is in the way. */
static int put_row(struct walk *w, const char *name, const char *real, struct reindex_entry *entry,
                   struct err *e)
{
    struct model_row row = {0};
    struct err none = {0};
    bool ordinary = false;
    bool there = catalogue_get_by_path(w->req->db, real, &row, &none) == 0 ||
                 catalogue_get_by_name(w->req->db, name, &row, &none) == 0; /* it moved */

    entry->outcome = !there                        ? REINDEX_ADDED
                     : strcmp(row.name, name) == 0 ? REINDEX_KEPT
                                                   : REINDEX_RENAMED;
    model_row_release(&row);
    if (catalogue_carrier(w->req->db, name, real, false, &entry->row, &ordinary, e) == 0)
        return 0;
    w->fatal = e->code != ERR_CONFLICT;
    return -1;
}

static int read_checkpoint(struct walk *w, int dir_fd, int64_t step, struct manifest *m,
                           struct reindex_entry *entry, struct err *e)
{
    struct manifest_place place = {.run_id = w->run_id, .step = step};
    char *real = fs_path_of(dir_fd, e);
    int rc = -1;

    if (real && manifest_read(dir_fd, w->req->schema, &place, m, NULL, e) == MANIFEST_OK) {
        entry->name = m->name;
        if (check_row_holds(m, real, e) == 0 && check_weights(w, dir_fd, m->weights_sha256, e) == 0)
            rc = put_row(w, m->name, real, entry, e);
    }
    free(real);
    return rc;
}

static int tell(struct walk *w, const struct reindex_entry *entry, struct err *e)
{
    w->count[entry->outcome]++;
    return w->req->on_entry ? w->req->on_entry(w->req->arg, entry, e) : 0;
}

/* A directory that is not a whole checkpoint is told and passed over. */
static int take_step(struct walk *w, const char *step_dir, struct err *e)
{
    char path[CKPT_PATH_MAX];
    struct reindex_entry entry = {
        .root = roots_path(w->req->roots, w->root), .path = path, .name = "", .problem = ""};
    struct manifest m = {0};
    struct err why = {0};
    int64_t step = 0;
    int rc = -1, dir_fd;

    ckpt_step_dir_parse(step_dir, &step);
    ckpt_path(path, w->run_id, step);
    dir_fd = fs_open_beneath(w->root_fd, path, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_INSIDE, &why);
    if (dir_fd >= 0)
        rc = read_checkpoint(w, dir_fd, step, &m, &entry, &why);
    fs_close(dir_fd);
    if (rc < 0) {
        entry.outcome = REINDEX_REFUSED;
        entry.problem = why.msg;
        entry.row = 0;
    }
    if (w->fatal || why.code == ERR_NOMEM)
        *e = why;
    else
        rc = tell(w, &entry, e);
    manifest_release(&m);
    return rc;
}

/* ---- the walk ---- */

static int take_run(struct walk *w, struct err *e)
{
    struct listing steps = {0};
    struct err why = {0};
    int rc = 0;
    int fd =
        fs_open_beneath(w->root_fd, w->run_id, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_INSIDE, &why);

    if (fd < 0)
        return 0; /* a file, or a link that leads out: no run */
    rc = listing_steps(fd, &steps, e);
    for (size_t i = 0; rc == 0 && i < steps.n; i++)
        rc = take_step(w, steps.at[i], e);
    listing_release(&steps);
    fs_close(fd);
    return rc;
}

static int take_root(struct walk *w, struct err *e)
{
    struct listing runs = {0};
    struct err why = {0};
    int rc = 0;

    w->root_fd = roots_dir(w->req->roots, w->root, &why);
    if (w->root_fd < 0 && why.code == ERR_NOT_FOUND && w->root != ROOTS_PRIMARY)
        return 0; /* a read root that is not there now */
    if (w->root_fd < 0) {
        *e = why;
        return -1;
    }
    rc = listing_runs(w->root_fd, &runs, e);
    for (size_t i = 0; rc == 0 && i < runs.n; i++) {
        w->run_id = runs.at[i];
        rc = take_run(w, e);
    }
    listing_release(&runs);
    fs_close(w->root_fd);
    return rc;
}

int reindex_checkpoints(const struct reindex_req *req, int64_t *count, struct err *e)
{
    struct walk w = {.req = req};
    int rc = 0;

    if (schema_problem(req->schema))
        return err_set(e, ERR_FORMAT, "the manifest schema cannot be used: %s",
                       schema_problem(req->schema));
    for (w.root = 0; rc == 0 && w.root < roots_count(req->roots); w.root++)
        rc = take_root(&w, e);
    if (count)
        memcpy(count, w.count, sizeof w.count);
    return rc;
}
