#include "service/weaver/export.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/stopping.h"
#include "engine/companions.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "service/service.h"
#include "service/weaver/bases.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/impl.h"
#include "service/weaver/merged.h"
#include "store/leftovers.h"
#include "store/publish.h"
#include "tensor/weights.h"
#include "train/trainer.h"

enum { FILES_MAX = 64 };
static const char folder[] = ".artifacts";

static int open_folder(struct weaver *w, struct err *e)
{
    if (mkdirat(w->root_fd, folder, 0750) < 0 && errno != EEXIST)
        return err_io(e, "create %s", folder);
    return fs_open_beneath(w->root_fd, folder, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e);
}

static void add_file(json_t *manifest, const char *name, const char *sha256, int64_t size,
                     int64_t *bytes)
{
    json_array_append_new(
        json_object_get(manifest, "files"),
        json_pack("{s:s, s:I, s:s}", "name", name, "size", (json_int_t)size, "sha256", sha256));
    *bytes += size;
}

/* ---- the checkpoint's own files ---- */

static int copy_file(int from, int to, const char *name, struct err *e)
{
    char block[8192];
    int in = fs_open_regular(from, name, FS_LINKS_NONE, NULL, e), out;
    int64_t at = 0;
    ssize_t n = 0;
    int rc = -1;

    if (in < 0)
        return -1;
    out = fs_open_beneath(to, name, O_WRONLY | O_CREAT | O_EXCL, 0644, FS_LINKS_NONE, e);
    if (out >= 0) {
        while ((n = pread(in, block, sizeof block, at)) > 0) {
            if (fs_write_at(out, block, (size_t)n, at, e) < 0)
                break;
            at += n;
        }
        rc = n == 0 ? fs_sync(out, name, e) : n < 0 ? err_io(e, "read %s", name) : -1;
    }
    fs_close(in);
    fs_close(out);
    return rc;
}

static int link_files(int from, int to, const json_t *record, json_t *manifest, int64_t *bytes,
                      struct err *e)
{
    const char *name;
    json_t *f;

    json_object_foreach (json_object_get(record, "files"), name, f) {
        if (strcmp(name, TRAIN_MOMENTS_FILE) == 0 || strcmp(name, TRAIN_MASTERS_FILE) == 0)
            continue;
        if (linkat(from, name, to, name, 0) < 0 && copy_file(from, to, name, e) < 0)
            return -1;
        add_file(manifest, name, json_string_value(json_object_get(f, "sha256")),
                 json_integer_value(json_object_get(f, "size")), bytes);
    }
    return 0;
}

static int link_checkpoint(struct weaver *w, int root, const struct w_ckpt *c, const char *id,
                           json_t *manifest, int64_t *bytes, struct err *e)
{
    char temporary[UUID_TEXT + 8];
    int from = ckpt_files_dir(w, c->model_id, c->id, e), to = -1, rc = -1;
    json_t *record = from < 0 ? NULL : ckpt_files_record(from, e);
    struct err ignored = {0};

    snprintf(temporary, sizeof temporary, ".tmp-%s", id);
    if (!record)
        goto done;
    if (mkdirat(root, temporary, 0755) < 0) {
        err_io(e, "create %s/%s", folder, temporary);
        goto done;
    }
    to = fs_open_beneath(root, temporary, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e);
    if (to < 0 || link_files(from, to, record, manifest, bytes, e) < 0 ||
        fs_sync(to, temporary, e) < 0)
        goto done;
    rc = renameat2(root, temporary, root, id, RENAME_NOREPLACE) == 0 ? fs_sync(root, folder, e)
                                                                     : err_io(e, "name %s", id);

done:
    if (rc < 0)
        leftovers_remove(w->s->leftovers, root, temporary, &ignored);
    json_decref(record);
    fs_close(from);
    fs_close(to);
    return rc;
}

/* ---- a merged model ---- */

static int companions_of(const struct merged *m, const struct image *base,
                         struct publish_file files[FILES_MAX])
{
    const struct companions *all = base->files->companions;
    int n = 0;

    for (int i = 0; i < companions_count(all) && n < FILES_MAX; i++) {
        struct companion c = companions_at(all, i);

        if (strcmp(c.name, "config.json") == 0)
            files[n++] = (struct publish_file){c.name, m->config.data, m->config.len};
        else if (strcmp(c.name, "model.safetensors.index.json") != 0)
            files[n++] = (struct publish_file){c.name, c.data, c.bytes};
    }
    return n;
}

struct merged_source {
    const struct merged *merged;
    const atomic_bool *stop;
};

static int read_merged(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    const struct merged_source *s = arg;

    if (stopping_check(s->stop, e) < 0)
        return -1;
    memcpy(to, s->merged->weights->base + offset, n);
    return 0;
}

/* What is made again when it is asked for does not hold up a stop. */
static int publish_merged(struct weaver *w, const struct merged *m, const struct image *base,
                          const char *id, json_t *manifest, int64_t *bytes, struct err *e)
{
    struct merged_source source = {m, &w->s->stopping};
    struct publish_file files[FILES_MAX];
    struct publish_req req = {.root_fd = w->root_fd,
                              .run_dir = folder,
                              .final_name = id,
                              .weights_name = "model.safetensors",
                              .weights = {(int64_t)m->weights->bytes, read_merged, &source},
                              .files = files,
                              .n_files = companions_of(m, base, files),
                              .leftovers = w->s->leftovers};
    struct publish_result out;
    char sha[SHA256_HEX];

    if (publish(&req, &out, e) < 0)
        return -1;
    add_file(manifest, "model.safetensors", out.weights_sha256, out.bytes, bytes);
    for (int i = 0; i < req.n_files; i++) {
        sha256_hex_of(files[i].bytes, files[i].n, sha);
        add_file(manifest, files[i].name, sha, (int64_t)files[i].n, bytes);
    }
    return 0;
}

static int merge_checkpoint(struct weaver *w, const struct w_ckpt *c, const char *id,
                            json_t *manifest, int64_t *bytes, struct refusal *r)
{
    struct image *base = w_base_image_of(w, c->row_id, r);
    struct adapter *a = NULL;
    struct merged m = {0};
    struct err e = {0};
    int rc = -1;

    if (!base || w_base_fits(w, c, r) < 0) {
        image_unref(base);
        return -1;
    }
    a = ckpt_files_adapter(w, c, base->files->config, &e);
    if (a && merged_make(&m, base, a, &w->s->stopping, &e) == 0)
        rc = publish_merged(w, &m, base, id, manifest, bytes, &e);
    merged_release(&m);
    adapter_unref(a);
    image_unref(base);
    return rc < 0 ? w_refuse_err(r, &e) : 0;
}

/* ---- both ---- */

json_t *export_write(struct weaver *w, const struct w_ckpt *c, bool merge, const char *id,
                     int64_t *bytes, struct refusal *r)
{
    json_t *manifest = json_pack("{s:[]}", "files");
    struct err e = {0};
    int root = open_folder(w, &e), rc;

    *bytes = 0;
    if (root < 0 || !manifest)
        rc = w_refuse_err(r, &e);
    else if (merge)
        rc = merge_checkpoint(w, c, id, manifest, bytes, r);
    else if ((rc = link_checkpoint(w, root, c, id, manifest, bytes, &e)) < 0)
        w_refuse_err(r, &e);
    fs_close(root);
    if (rc == 0)
        return manifest;
    json_decref(manifest);
    return NULL;
}

int export_remove(struct weaver *w, const char *id, struct err *e)
{
    int root = open_folder(w, e), rc;

    if (root < 0)
        return -1;
    rc = leftovers_remove(w->s->leftovers, root, id, e);
    fs_close(root);
    return rc;
}

int export_open(struct weaver *w, const char *id, const char *name, int64_t *bytes, struct err *e)
{
    char path[2 * UUID_TEXT];
    struct stat st;
    int dir, fd;

    snprintf(path, sizeof path, "%s/%s", folder, id);
    dir = fs_open_beneath(w->root_fd, path, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e);
    if (dir < 0)
        return -1;
    fd = fs_open_regular(dir, name, FS_LINKS_NONE, &st, e);
    fs_close(dir);
    *bytes = fd < 0 ? 0 : (int64_t)st.st_size;
    return fd;
}
