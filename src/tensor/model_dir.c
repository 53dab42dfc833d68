#include "tensor/model_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/st_index.h"

enum { SHARDS_MAX = 512, INDEX_MAX = 64 << 20 };

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

const char *model_dir_reason_word(enum model_dir_reason why)
{
    static const char *const words[] = {
        [MD_OK] = "ok",
        [MD_INCOMPLETE_WEIGHTS] = "incomplete-weights",
        [MD_HEADER] = "safetensors_header",
        [MD_UNSAFE_FILE] = "unsafe_file",
        [MD_INCOMPLETE] = "incomplete",
        [MD_REMOTE_CODE] = "remote_code",
        [MD_QUANTIZED] = "quantized",
        [MD_DTYPE] = "dtype",
        [MD_SYSTEM] = "system",
    };

    return words[why];
}

/* The reason behind an error of reading a file that is there. */
static enum model_dir_reason reason_of(const struct err *e, enum model_dir_reason damaged)
{
    return e->code == ERR_FORMAT || e->code == ERR_ARG ? damaged : MD_SYSTEM;
}

void model_dir_close(struct model_dir *md)
{
    for (int i = 0; i < md->n_files; i++) {
        free(md->files[i].name);
        free(md->files[i].header);
        if (md->files[i].fd >= 0)
            close(md->files[i].fd);
    }
    free(md->files);
    st_index_release(&md->all);
    *md = (struct model_dir){0};
}

/* Opens a file and reads its index. The file keeps the header's bytes, the index goes to *ix. */
static int open_file(struct model_file *f, int dir_fd, struct st_index *ix,
                     enum model_dir_reason *why, struct err *e)
{
    struct stat st = {0};

    f->fd = openat(dir_fd, f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f->fd < 0) {
        *why = errno == ENOENT ? MD_INCOMPLETE_WEIGHTS : MD_SYSTEM;
        return err_io(e, "open %s", f->name);
    }
    if (st_index_read(ix, f->fd, e) < 0) {
        *why = reason_of(e, MD_HEADER);
        return err_wrap(e, "%s", f->name);
    }
    fstat(f->fd, &st);
    f->bytes = (uint64_t)st.st_size;
    f->data_start = ix->data_start;
    f->header = ix->header;
    ix->header = NULL;
    return 0;
}

static int add_file(struct model_dir *md, const char *name, enum model_dir_reason *why,
                    struct err *e)
{
    struct model_file *grown;

    *why = MD_SYSTEM;
    grown = reallocarray(md->files, (size_t)md->n_files + 1, sizeof *grown);
    if (!grown)
        return err_nomem(e);
    md->files = grown;
    md->files[md->n_files] = (struct model_file){.fd = -1, .name = strdup(name)};
    if (!md->files[md->n_files].name)
        return err_nomem(e);
    md->n_files++;
    return 0;
}

static int open_single(struct model_dir *md, int dir_fd, enum model_dir_reason *why, struct err *e)
{
    if (add_file(md, SINGLE, why, e) < 0)
        return -1;
    return open_file(&md->files[0], dir_fd, &md->all, why, e);
}

/* ---- shards ---- */

/* A plain file name: no slash, so it cannot leave the directory. */
static int check_shard_name(const json_t *v, enum model_dir_reason *why, struct err *e)
{
    const char *name = json_string_value(v);

    *why = MD_INCOMPLETE_WEIGHTS;
    if (!name || strlen(name) != json_string_length(v) || !*name)
        return err_set(e, ERR_FORMAT, INDEX ": weight_map has a value that is not a file name");
    *why = MD_UNSAFE_FILE;
    if (strchr(name, '/') || strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
        return err_set(e, ERR_FORMAT, INDEX ": \"%s\" leads out of the directory", name);
    return 0;
}

static int find_file(const struct model_dir *md, const char *name)
{
    for (int i = md->n_files - 1; i >= 0; i--)
        if (strcmp(md->files[i].name, name) == 0)
            return i;
    return -1;
}

/* The files that weight_map names, each once, in order of appearance. */
static int list_shards(struct model_dir *md, const json_t *map, enum model_dir_reason *why,
                       struct err *e)
{
    const char *tensor;
    json_t *file;

    json_object_foreach ((json_t *)(uintptr_t)map, tensor, file) {
        if (check_shard_name(file, why, e) < 0)
            return -1;
        if (find_file(md, json_string_value(file)) >= 0)
            continue;
        *why = MD_INCOMPLETE_WEIGHTS;
        if (md->n_files == SHARDS_MAX)
            return err_set(e, ERR_FORMAT, INDEX " names more than %d files", (int)SHARDS_MAX);
        if (add_file(md, json_string_value(file), why, e) < 0)
            return -1;
    }
    return 0;
}

/* Every tensor of one shard goes to md->all; the index must put it into this very file. */
static int merge_shard(struct model_dir *md, int file, const struct st_index *ix, const json_t *map,
                       enum model_dir_reason *why, struct err *e)
{
    char shown[96];

    for (size_t i = 0; i < ix->n; i++) {
        const struct st_tensor *t = &ix->tensors[i];
        const char *home = json_string_value(json_object_getn(map, t->name, t->name_len));

        *why = MD_INCOMPLETE_WEIGHTS;
        st_name_str(t->name, t->name_len, shown);
        if (!home)
            return err_set(e, ERR_FORMAT, "%s holds tensor \"%s\", which " INDEX " does not list",
                           md->files[file].name, shown);
        if (strcmp(home, md->files[file].name) != 0)
            return err_set(e, ERR_FORMAT, "tensor \"%s\" is in %s, but " INDEX " puts it into %s",
                           shown, md->files[file].name, home);
        *why = MD_SYSTEM;
        if (st_index_add(&md->all, t->name, t->name_len, t->dtype, t->ndim, t->shape, e) < 0)
            return -1;
        md->all.tensors[md->all.n - 1].offset = t->offset;
        md->all.tensors[md->all.n - 1].bytes = t->bytes;
        md->all.tensors[md->all.n - 1].file = file;
        md->all.data_bytes += t->bytes;
    }
    return 0;
}

static int check_listed(const struct model_dir *md, const json_t *map, enum model_dir_reason *why,
                        struct err *e)
{
    const char *tensor;
    json_t *file;

    *why = MD_INCOMPLETE_WEIGHTS;
    json_object_foreach ((json_t *)(uintptr_t)map, tensor, file)
        if (!st_index_find(&md->all, tensor))
            return err_set(e, ERR_FORMAT,
                           INDEX " lists tensor \"%s\" in %s, "
                                 "which does not hold it",
                           tensor, json_string_value(file));
    return 0;
}

static int open_shards(struct model_dir *md, int dir_fd, const json_t *map,
                       enum model_dir_reason *why, struct err *e)
{
    if (list_shards(md, map, why, e) < 0)
        return -1;
    for (int i = 0; i < md->n_files; i++) {
        struct st_index ix = {0};
        int rc = open_file(&md->files[i], dir_fd, &ix, why, e);

        if (rc == 0)
            rc = merge_shard(md, i, &ix, map, why, e);
        st_index_release(&ix);
        if (rc < 0)
            return -1;
    }
    *why = MD_INCOMPLETE_WEIGHTS;
    return st_index_sort(&md->all, e) < 0 ? -1 : check_listed(md, map, why, e);
}

static int open_index(struct model_dir *md, int dir_fd, enum model_dir_reason *why, struct err *e)
{
    json_t *root = json_parse_file(dir_fd, INDEX, INDEX_MAX, e);
    const json_t *map = json_object_get(root, "weight_map");
    int rc = -1;

    *why = MD_INCOMPLETE_WEIGHTS;
    md->sharded = true;
    if (!root)
        *why = reason_of(e, MD_INCOMPLETE_WEIGHTS);
    else if (!json_is_object(map) || json_object_size(map) == 0)
        err_set(e, ERR_FORMAT, INDEX " has no \"weight_map\"");
    else
        rc = open_shards(md, dir_fd, map, why, e);
    json_decref(root);
    return rc;
}

static bool exists(int dir_fd, const char *name)
{
    return faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int model_dir_open(struct model_dir *md, int dir_fd, enum model_dir_reason *why, struct err *e)
{
    int rc;

    *md = (struct model_dir){0};
    *why = MD_OK;
    if (exists(dir_fd, SINGLE)) {
        rc = open_single(md, dir_fd, why, e);
    } else if (exists(dir_fd, INDEX)) {
        rc = open_index(md, dir_fd, why, e);
    } else {
        *why = MD_INCOMPLETE_WEIGHTS;
        rc = err_set(e, ERR_NOT_FOUND,
                     "the directory has neither " SINGLE " nor " INDEX
                     "; other weight files are not read");
    }
    if (rc < 0)
        model_dir_close(md);
    else
        *why = MD_OK;
    return rc;
}
