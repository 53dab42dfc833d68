/* service/weaver/sampler_weights.c - what a sampler samples: found first, then read. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/str.h"
#include "engine/image.h"
#include "model/adapter.h"
#include "model/config.h"
#include "service/service.h"
#include "service/weaver/bases.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/images.h"
#include "service/weaver/impl.h"
#include "service/weaver/samplers.h"
#include "store/catalogue.h"

/* ---- finding ---- */

/* The base's own directory: a checkpoint's may go away. */
void sampler_fill(struct weaver *w, struct w_sampler *s)
{
    char model[65], slug[CKPT_SLUG_MAX];
    struct model_row row = {0};
    struct err ignored = {0};
    struct buf own = {0};

    if (ckpt_path_parse(s->model_path, model, slug))
        str_copy(s->model_id, sizeof s->model_id, model);
    if (*s->checkpoint_id)
        buf_printf(&own, "%s/%s/%s", w->s->settings->weaver_dir, s->model_id, s->checkpoint_id);
    str_copy(s->tokenizer_path, sizeof s->tokenizer_path, buf_str(&own));
    if (catalogue_get(w->db, s->row_id, &row, &ignored) == 0 && row.local_path)
        str_copy(s->tokenizer_path, sizeof s->tokenizer_path, row.local_path);
    model_row_release(&row);
    buf_release(&own);
}

static int find_checkpoint(struct weaver *w, struct w_sampler *s, const char *path,
                           struct refusal *r)
{
    struct w_ckpt *c = &s->ckpt;
    struct buf own = {0};

    if (w_ckpt_find(w, path, c, r) < 0)
        return -1;
    w_ckpt_path(c, &own);
    str_copy(s->model_path, sizeof s->model_path, buf_str(&own));
    buf_release(&own);
    str_copy(s->checkpoint_id, sizeof s->checkpoint_id, c->id);
    s->row_id = c->row_id;
    s->full = c->shape.full;
    if (!*s->base_model)
        str_copy(s->base_model, sizeof s->base_model, c->base_model);
    return 0;
}

static int find_base(struct weaver *w, struct w_sampler *s, struct refusal *r)
{
    struct model_row row = {0};
    int64_t ignored;

    if (w_base_find(w, s->base_model, &row, &ignored, r) < 0)
        return -1;
    s->row_id = row.id;
    model_row_release(&row);
    return 0;
}

int sampler_find(struct weaver *w, struct w_sampler *s, const char *path, struct refusal *r)
{
    if ((path && *path ? find_checkpoint(w, s, path, r) : find_base(w, s, r)) < 0)
        return -1;
    sampler_fill(w, s);
    return 0;
}

bool sampler_at_hand(struct weaver *w, const struct w_sampler *s)
{
    return s->full ? images_at_hand(w->images, s->checkpoint_id)
                   : images_row_at_hand(w->images, s->row_id, *s->checkpoint_id);
}

/* ---- reading ---- */

/* The adapter of this checkpoint that another sampler has: equal prompts then share their cache. */
static struct adapter *adapter_in_use(struct weaver *w, const char *checkpoint_id)
{
    struct adapter *a = NULL;

    pthread_mutex_lock(&w->lock);
    for (struct w_sampler *s = w->samplers; s && !a; s = s->next)
        if (s->adapter && strcmp(s->checkpoint_id, checkpoint_id) == 0)
            a = adapter_ref(s->adapter);
    pthread_mutex_unlock(&w->lock);
    return a;
}

static int refuse_files(const struct err *e, struct refusal *r)
{
    if (e->code == ERR_NOMEM || e->code == ERR_CANCELLED)
        return w_refuse_err(r, e);
    return refuse(r, REFUSAL_W_CHECKPOINT_CORRUPT, "The checkpoint cannot be used: %s", e->msg);
}

static int read_adapter(struct weaver *w, struct w_sampler *s, struct refusal *r)
{
    const struct w_ckpt *c = &s->ckpt;
    struct err e = {0};

    s->image = w_base_image_of(w, c->row_id, r);
    if (!s->image || w_base_fits(w, c, r) < 0)
        return -1;
    s->adapter = adapter_in_use(w, c->id);
    if (!s->adapter)
        s->adapter = w_exported_take(w, c->id);
    if (!s->adapter)
        s->adapter = ckpt_files_adapter(w, c, s->image->files->config, &e);
    return s->adapter ? 0 : refuse_files(&e, r);
}

static int read_whole(struct weaver *w, struct w_sampler *s, struct refusal *r)
{
    const struct w_ckpt *c = &s->ckpt;
    struct err e = {0};
    int fd = ckpt_files_dir(w, c->model_id, c->id, &e);
    json_t *record = fd < 0 ? NULL : ckpt_files_record(fd, &e);
    const char *sha = ckpt_record_sha(record, "model.safetensors");

    if (record && sha)
        s->image = images_of_dir(w->images, c->id, fd, sha, &e);
    else if (record)
        err_set(&e, ERR_FORMAT, "checkpoint.json does not name model.safetensors");
    json_decref(record);
    fs_close(fd);
    return s->image ? 0 : refuse_files(&e, r);
}

int sampler_read(struct weaver *w, struct w_sampler *s, struct refusal *r)
{
    int rc;

    if (!*s->checkpoint_id) {
        s->image = w_base_image_of(w, s->row_id, r);
        rc = s->image ? 0 : -1;
    } else {
        if (w_ckpt_pin(w, s->checkpoint_id, r) < 0)
            return -1;
        rc = s->full ? read_whole(w, s, r) : read_adapter(w, s, r);
        w_ckpt_unpin(w, s->checkpoint_id);
    }
    if (rc == 0)
        s->limits = (struct w_limits){.vocab = s->image->files->config->vocab,
                                      .max_tokens = s->image->files->config->max_positions};
    return rc;
}
