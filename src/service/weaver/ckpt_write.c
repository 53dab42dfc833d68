/* service/weaver/ckpt_write.c - the files of a checkpoint, from what a run was at one moment. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/nomem.h"
#include "engine/companions.h"
#include "engine/image.h"
#include "engine/run.h"
#include "model/adapter_make.h"
#include "model/model.h"
#include "service/core_loan.h"
#include "service/service.h"
#include "service/times.h"
#include "service/weaver/bases.h"
#include "service/weaver/ckpt_files.h"
#include "service/weaver/impl.h"
#include "store/publish.h"
#include "tensor/weights.h"

enum { FILES_MAX = 64, EXPIRY_ROOM = 256 };

/* A source that is read on a lent core. */
struct lent {
    struct core_loan *loan;
    struct ckpt_source own;
};

struct writing {
    struct weaver *w;
    struct w_ckpt *c;
    const struct ckpt_facts_of_run *f;
    struct adapter_file *adapter; /* LoRA */
    struct buf adapter_config;
    struct publish_file files[FILES_MAX];
    int n_files;
    char expiry[EXPIRY_ROOM]; /* padded with spaces: written when the weights are there */
    struct frozen_file frozen[FROZEN_FILES];
    struct publish_stream optimizer[FROZEN_FILES];
    int n_optimizer;
    struct core_loan loan;              /* while the files are hashed */
    struct lent lent[1 + FROZEN_FILES]; /* the weights', then the optimizer's */
};

/* ---- files ---- */

static int read_lent(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    struct lent *l = arg;

    core_loan_wait(l->loan);
    return l->own.read(l->own.arg, to, offset, n, e);
}

static struct ckpt_source lend(struct writing *x, int place, struct ckpt_source own)
{
    x->lent[place] = (struct lent){&x->loan, own};
    return (struct ckpt_source){own.bytes, read_lent, &x->lent[place]};
}

static void add_file(struct writing *x, const char *name, const void *bytes, size_t n)
{
    if (x->n_files < FILES_MAX)
        x->files[x->n_files++] = (struct publish_file){name, bytes, n};
}

static void add_companions(struct writing *x)
{
    const struct companions *all = x->f->view->image->files->companions;

    for (int i = 0; i < companions_count(all); i++) {
        struct companion c = companions_at(all, i);

        if (strcmp(c.name, "model.safetensors.index.json") != 0)
            add_file(x, c.name, c.data, c.bytes);
    }
}

/* ---- the record ---- */

static void add_file_facts(json_t *files, const char *name, const char *sha256, int64_t size)
{
    json_object_set_new(files, name,
                        json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)size));
}

static json_t *files_object(const struct writing *x, const char *weights_sha256, int64_t bytes)
{
    json_t *files = json_object();
    char sha[SHA256_HEX];

    add_file_facts(files, x->c->shape.full ? "model.safetensors" : "adapter_model.safetensors",
                   weights_sha256, bytes);
    for (int i = 0; i < x->n_files; i++) {
        if (strcmp(x->files[i].name, "expiry.json") == 0)
            continue;
        sha256_hex_of(x->files[i].bytes, x->files[i].n, sha);
        add_file_facts(files, x->files[i].name, sha, (int64_t)x->files[i].n);
    }
    for (int i = 0; i < x->n_optimizer; i++) {
        const struct publish_stream *s = &x->optimizer[i];

        add_file_facts(files, s->name, s->sha256, s->source.bytes);
    }
    return files;
}

static json_t *adapter_object(const struct writing *x)
{
    const struct w_shape *s = &x->c->shape;

    if (s->full)
        return json_null();
    return json_pack("{s:i, s:i, s:b, s:b, s:b, s:I}", "rank", s->rank, "alpha", LORA_ALPHA,
                     "train_attn", s->attn, "train_mlp", s->mlp, "train_unembed", s->unembed,
                     "seed", (json_int_t)x->f->seed);
}

static json_t *record_object(const struct writing *x, const char *weights_sha256)
{
    const struct w_ckpt *c = x->c;
    int64_t bytes =
        c->shape.full ? (int64_t)x->f->view->image->weights->bytes : adapter_file_bytes(x->adapter);
    struct buf path = {0};
    json_t *o;

    w_ckpt_path(c, &path);
    o = json_pack("{s:i, s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:s, s:I, s:I}", "format_version", 1,
                  "id", c->id, "model_id", c->model_id, "path", buf_str(&path), "name",
                  c->has_name ? json_string(c->name) : json_null(), "slug", c->slug, "type",
                  ckpt_type_name(c->type), "owner", c->owner, "training_mode",
                  c->shape.full ? "full_ft" : "lora", "step", (json_int_t)c->step, "created_ms",
                  (json_int_t)c->created_ms);
    buf_release(&path);
    if (!o)
        return NULL;
    json_object_set_new(o, "created_at", json_time(c->created_ms));
    json_object_set_new(o, "base_model", json_string(c->base_model));
    json_object_set_new(o, "base_sha256", json_text(x->f->base_sha256));
    json_object_set_new(o, "adapter", adapter_object(x));
    json_object_set_new(o, "numerics", json_string(x->f->numerics));
    json_object_set_new(o, "adam_step", json_integer(c->step));
    json_object_set_new(o, "has_optimizer", json_boolean(c->has_optimizer));
    json_object_set_new(o, "gradients_pending", json_boolean(x->f->view->has_gradients));
    json_object_set_new(o, "parent", json_text(x->f->parent));
    json_object_set_new(o, "files", files_object(x, weights_sha256, bytes));
    return o;
}

static int write_record(void *arg, const char sha256[SHA256_HEX], struct buf *out, struct err *e)
{
    struct writing *x = arg;
    json_t *o = record_object(x, sha256);

    if (o)
        json_write_pretty(out, o);
    buf_add_char(out, '\n');
    json_decref(o);
    if (!o || out->failed || nomem_noted()) /* of the job's thread; a part may be missing */
        return err_nomem(e);
    return 0;
}

/* ---- publishing ---- */

/* Its time begins when the weights are on disk: expiry.json is written with the companions. */
static void fill_expiry(struct writing *x)
{
    struct w_ckpt *c = x->c;
    char at[32];
    int n;

    c->created_ms = clock_wall_ms();
    c->expires_ms = c->ttl_s ? c->created_ms + 1000 * c->ttl_s : 0;
    clock_iso8601(c->expires_ms, at);
    memset(x->expiry, ' ', sizeof x->expiry);
    if (c->ttl_s)
        n = snprintf(x->expiry, sizeof x->expiry,
                     "{\"ttl_seconds\": %lld, \"expires_at\": \"%s\", \"expires_ms\": %lld}",
                     (long long)c->ttl_s, at, (long long)c->expires_ms);
    else
        n = snprintf(x->expiry, sizeof x->expiry,
                     "{\"ttl_seconds\": null, \"expires_at\": null, \"expires_ms\": null}");
    x->expiry[n] = ' ';
    x->expiry[sizeof x->expiry - 1] = '\n';
}

static void on_stage(void *arg, enum publish_stage stage, int64_t done, int64_t total)
{
    struct writing *x = arg;

    (void)done, (void)total;
    if (stage == PUBLISH_WEIGHTS)
        core_loan_update(&x->loan);
    else
        core_loan_end(&x->loan);
    if (stage == PUBLISH_COMPANIONS)
        fill_expiry(x);
}

static int prepare_adapter(struct writing *x, struct err *e)
{
    const struct run_view *v = x->f->view;
    struct buf base = {0};
    json_t *config;

    x->adapter = adapter_file_open(v->adapter, v->image->model, e);
    if (!x->adapter)
        return -1;
    w_base_plain(x->w, x->c->base_model, &base);
    config = adapter_config_json(v->adapter, &v->image->model->config, buf_str(&base), e);
    buf_release(&base);
    if (!config)
        return -1;
    json_write_pretty(&x->adapter_config, config);
    buf_add_char(&x->adapter_config, '\n');
    json_decref(config);
    if (x->adapter_config.failed)
        return err_nomem(e);
    add_file(x, "adapter_config.json", x->adapter_config.data, x->adapter_config.len);
    return 0;
}

static void add_optimizer(struct writing *x)
{
    if (!x->c->has_optimizer)
        return;
    x->n_optimizer = frozen_files(x->f->view->optimizer, x->frozen);
    for (int i = 0; i < x->n_optimizer; i++) {
        struct ckpt_source own = {x->frozen[i].bytes, frozen_read, &x->frozen[i]};

        x->optimizer[i] =
            (struct publish_stream){.name = x->frozen[i].name, .source = lend(x, 1 + i, own)};
    }
}

static struct ckpt_source weights_source(const struct writing *x)
{
    const struct image *im = x->f->view->image;

    if (x->c->shape.full)
        return ckpt_source_memory(im->weights->base, im->weights->bytes);
    return (struct ckpt_source){adapter_file_bytes(x->adapter), adapter_file_read, x->adapter};
}

static int publish_files(struct writing *x, struct err *e)
{
    bool full = x->c->shape.full;
    struct publish_req req = {.root_fd = x->w->root_fd,
                              .run_dir = x->c->model_id,
                              .final_name = x->c->id,
                              .weights_name =
                                  full ? "model.safetensors" : "adapter_model.safetensors",
                              .files = x->files,
                              .n_files = x->n_files,
                              .manifest_name = "checkpoint.json",
                              .manifest = write_record,
                              .manifest_arg = x,
                              .progress = on_stage,
                              .progress_arg = x,
                              .stop = x->w->s->cut,
                              .leftovers = x->w->s->leftovers};
    struct publish_result out;

    req.weights = lend(x, 0, weights_source(x));
    add_optimizer(x);
    req.more = x->optimizer;
    req.n_more = x->n_optimizer;
    return publish(&req, &out, e);
}

int ckpt_files_write(struct weaver *w, struct w_ckpt *c, const struct ckpt_facts_of_run *f,
                     struct err *e)
{
    struct writing x = {.w = w, .c = c, .f = f, .loan.engine = w->s->engine};
    int rc = 0;

    if (c->shape.full)
        add_companions(&x);
    else
        rc = prepare_adapter(&x, e);
    add_file(&x, "expiry.json", x.expiry, sizeof x.expiry);
    if (rc == 0)
        rc = publish_files(&x, e);
    core_loan_end(&x.loan);
    adapter_file_close(x.adapter);
    buf_release(&x.adapter_config);
    return rc;
}
