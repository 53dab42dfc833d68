#include "service/weaver/bases.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "engine/image.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/images.h"
#include "service/weaver/impl.h"
#include "store/catalogue.h"

/* As in find. */
static int by_repository(struct weaver *w, const char *name, struct model_row *out, struct err *e)
{
    struct model_row *rows = NULL;
    int n = 0, rc = -1;

    if (catalogue_list(w->db, &rows, &n, e) < 0)
        return -1;
    for (int i = 0; i < n && rc < 0; i++)
        if (rows[i].repo_id && strcmp(rows[i].repo_id, name) == 0) {
            *out = rows[i];
            rows[i] = (struct model_row){0};
            rc = 0;
        }
    catalogue_list_release(rows, n);
    return rc == 0 ? 0 : err_set(e, ERR_NOT_FOUND, "no model \"%s\"", name);
}

/* -1 with ERR_NOT_FOUND: there is none. */
static int find(struct weaver *w, const char *name, struct model_row *out, struct err *e)
{
    if (catalogue_get_by_name(w->db, name, out, e) == 0)
        return 0;
    return e->code == ERR_NOT_FOUND ? by_repository(w, name, out, e) : -1;
}

/* "name:4096": the number, and where the colon is; NULL when there is no such suffix. */
static const char *suffix_of(const char *name, int64_t *n)
{
    const char *colon = strrchr(name, ':');
    char *end;
    long long v;

    if (!colon || colon == name)
        return NULL;
    v = strtoll(colon + 1, &end, 10);
    if (end == colon + 1 || *end || v < 2 || v > INT32_MAX)
        return NULL;
    *n = v;
    return colon;
}

int w_base_find(struct weaver *w, const char *name, struct model_row *row, int64_t *max_tokens,
                struct refusal *r)
{
    struct err e = {0};
    const char *colon;
    int64_t n = 0;
    char *cut;
    int rc;

    *max_tokens = 0;
    if (find(w, name, row, &e) == 0)
        return 0;
    colon = e.code == ERR_NOT_FOUND ? suffix_of(name, &n) : NULL;
    cut = colon ? strndup(name, (size_t)(colon - name)) : NULL;
    rc = cut ? find(w, cut, row, &e) : -1;
    free(cut);
    if (rc < 0 && e.code != ERR_NOT_FOUND)
        return w_refuse_err(r, &e);
    if (rc < 0)
        return refuse(r, REFUSAL_W_BASE_MODEL_NOT_FOUND,
                      "There is no model '%.200s' in the catalogue: register it, or take a name of "
                      "/supported-models.",
                      name);
    *max_tokens = n;
    return 0;
}

int w_base_row(struct weaver *w, int64_t *row_id, const char *name, struct refusal *r)
{
    struct model_row row = {0};
    struct err e = {.code = ERR_NOT_FOUND};
    int64_t tokens;
    int rc = *row_id ? catalogue_get(w->db, *row_id, &row, &e) : -1;

    if (rc < 0 && e.code != ERR_NOT_FOUND)
        return w_refuse_err(r, &e);
    if (rc < 0)
        rc = w_base_find(w, name, &row, &tokens, r);
    *row_id = rc == 0 ? row.id : 0;
    model_row_release(&row);
    if (rc == 0 || r->code != REFUSAL_W_BASE_MODEL_NOT_FOUND)
        return rc;
    refusal_clear(r); /* what needs the base says so */
    return 0;
}

void w_base_plain(struct weaver *w, const char *name, struct buf *out)
{
    struct model_row row = {0};
    int64_t ignored;
    struct err none = {0};
    const char *colon = find(w, name, &row, &none) == 0 ? NULL : suffix_of(name, &ignored);

    buf_add(out, name, colon ? (size_t)(colon - name) : strlen(name));
    model_row_release(&row);
}

struct image *w_base_image(struct weaver *w, const struct model_row *row, struct refusal *r)
{
    struct err e = {0};
    struct image *im = images_of_row(w->images, row, &e);

    if (im)
        return im;
    if (e.code == ERR_NOMEM || e.code == ERR_CANCELLED)
        w_refuse_err(r, &e);
    else
        refuse(r, REFUSAL_W_BASE_MODEL_NOT_FOUND, "The files of '%.200s' cannot be used: %s",
               row->name, e.msg);
    return NULL;
}

struct image *w_base_image_of(struct weaver *w, int64_t row_id, struct refusal *r)
{
    struct model_row row = {0};
    struct image *im = NULL;
    struct err e = {0};

    if (catalogue_get(w->db, row_id, &row, &e) == 0)
        im = w_base_image(w, &row, r);
    else if (e.code == ERR_NOT_FOUND)
        refuse(r, REFUSAL_W_BASE_MODEL_NOT_FOUND,
               "The base model of this checkpoint is not in the catalogue any more.");
    else
        w_refuse_err(r, &e);
    model_row_release(&row);
    return im;
}

static int refuse_base(const struct w_ckpt *c, const char *recorded, const char *here,
                       struct refusal *r)
{
    return refuse_with(r, REFUSAL_W_CHECKPOINT_INCOMPATIBLE,
                       json_pack("{s:s, s:s, s:s, s:s}", "differs", "base_sha256", "checkpoint",
                                 recorded, "server", here, "checkpoint_id", c->id),
                       "The adapter was trained beside a base whose model.safetensors has the "
                       "sha256 %.16s..., the one of '%.200s' here has %.16s...: put those files "
                       "back, or register them as another model and train there.",
                       recorded, c->base_model, here);
}

int w_base_fits(struct weaver *w, const struct w_ckpt *c, struct refusal *r)
{
    struct err unreadable = {0}; /* whoever reads its files says so */
    char here[SHA256_HEX];
    int fd = c->shape.full ? -1 : ckpt_files_dir(w, c->model_id, c->id, &unreadable), rc = 0;
    json_t *record = fd < 0 ? NULL : ckpt_files_record(fd, &unreadable);
    const char *recorded = json_string_value(json_object_get(record, "base_sha256"));

    if (recorded) {
        images_row_sha256(w->images, c->row_id, here);
        if (*here && strcmp(recorded, here) != 0)
            rc = refuse_base(c, recorded, here, r);
    }
    json_decref(record);
    fs_close(fd);
    return rc;
}

bool weaver_holds_row(struct weaver *w, int64_t row_id)
{
    return w && images_row_held(w->images, row_id);
}
