/* model/model.c - walks the tables of families.c: first over an index (are all tensors there, of
 * the right shape and type), then over an image (where are they). */
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/families.h"
#include "tensor/model_dir.h"
#include "tensor/tensor.h"
#include "tensor/weights.h"

enum { NAME_MAX_LEN = 128 };

/* One pass over all rules. With an image, fields are filled; without, tensors are only checked. */
struct binder {
    const struct model_config *c;
    const struct st_index *index;
    const struct weights *w; /* NULL: check only */
    const char **reason;
    struct err *e;
    size_t n_used;
    bool has_dtype;
    enum dtype dtype; /* of the first tensor; all have it */
    size_t bytes;     /* of the tensors seen */
};

static int refuse(struct binder *b, const char *reason)
{
    *b->reason = reason;
    return -1;
}

static int check_shape(struct binder *b, const struct tensor_rule *r, const struct st_tensor *t)
{
    int64_t want[4];
    char want_text[64], have_text[96];
    int ndim = rule_shape(r, b->c, want);

    if (t->ndim == ndim && memcmp(t->shape, want, (size_t)ndim * sizeof *want) == 0)
        return 0;
    tensor_shape_str(ndim, want, want_text, sizeof want_text);
    tensor_shape_str(t->ndim, t->shape, have_text, sizeof have_text);
    err_set(b->e, ERR_FORMAT, "tensor %.120s has shape %s, the config asks for %s", t->name,
            have_text, want_text);
    return refuse(b, "shape");
}

static int check_dtype(struct binder *b, const struct st_tensor *t)
{
    if (!b->has_dtype) {
        b->dtype = t->dtype;
        b->has_dtype = true;
    }
    if (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_F32)
        err_set(b->e, ERR_FORMAT, "tensor %.120s is %s; BF16, F16 and F32 are served", t->name,
                dtype_name(t->dtype));
    else if (t->dtype != b->dtype)
        err_set(b->e, ERR_FORMAT, "tensor %.120s is %s, others are %s: one type for all", t->name,
                dtype_name(t->dtype), dtype_name(b->dtype));
    else if (t->offset % dtype_bytes(t->dtype))
        err_set(b->e, ERR_FORMAT, "tensor %.120s does not start at a multiple of its element size",
                t->name);
    else
        return 0;
    return refuse(b, "dtype");
}

static enum kern_dtype to_kern(enum dtype t)
{
    return t == DTYPE_F32 ? KERN_F32 : t == DTYPE_F16 ? KERN_F16 : KERN_BF16;
}

static void fill_field(struct binder *b, const struct tensor_rule *r, const struct st_tensor *t,
                       void *object)
{
    void *field = (char *)object + r->field;
    const void *data = weights_data(b->w, t);

    if (r->matrix)
        *(struct kern_matrix *)field = (struct kern_matrix){
            .w = data, .dtype = to_kern(t->dtype), .n = (int)t->shape[0], .k = (int)t->shape[1]};
    else
        *(const void **)field = data;
}

static int bind_table(struct binder *b, const struct tensor_rule *r, int layer, void *object)
{
    for (; r->name; r++) {
        char name[NAME_MAX_LEN];
        const struct st_tensor *t;

        if (!rule_applies(r, b->c))
            continue;
        if (layer < 0)
            snprintf(name, sizeof name, "%s", r->name);
        else
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, r->name);
        t = st_index_find(b->index, name);
        if (!t) {
            err_set(b->e, ERR_FORMAT, "tensor %s is missing", name);
            return refuse(b, "incomplete-weights");
        }
        if (check_shape(b, r, t) < 0 || check_dtype(b, t) < 0)
            return -1;
        b->n_used++;
        b->bytes += t->bytes;
        if (object)
            fill_field(b, r, t, object);
    }
    return 0;
}

static bool table_has(const struct model_config *c, const struct tensor_rule *r, const char *name)
{
    for (; r->name; r++)
        if (rule_applies(r, c) && strcmp(r->name, name) == 0)
            return true;
    return false;
}

/* "model.layers.7.rest" -> 7, with *rest; -1: no layer's name. */
static int layer_of_name(const char *name, const char **rest)
{
    static const char prefix[] = "model.layers.";
    char *end;
    long layer;

    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    name += sizeof prefix - 1;
    layer = strtol(name, &end, 10);
    if (end == name || *end != '.' || layer < 0 || layer > MODEL_LAYERS_MAX)
        return -1;
    *rest = end + 1;
    return (int)layer;
}

static bool is_known(const struct model_config *c, const char *name)
{
    const struct tensor_rule *r;
    const char *rest = name;
    int layer = layer_of_name(name, &rest);

    if (layer < 0)
        return table_has(c, family_model_rules(c), name);
    if (layer >= c->n_layers)
        return false;
    for (int t = 0; (r = family_layer_rules(c, layer, t)); t++)
        if (table_has(c, r, rest))
            return true;
    return false;
}

/* A tensor that no rule names would silently not count: a bias, a layer too many, another
 * architecture. */
static int check_strangers(struct binder *b)
{
    size_t ignored = 0;

    for (size_t i = 0; i < b->index->n; i++)
        ignored += family_ignores(b->c, b->index->tensors[i].name);
    if (b->n_used + ignored == b->index->n)
        return 0;
    for (size_t i = 0; i < b->index->n; i++) {
        const char *name = b->index->tensors[i].name;

        if (family_ignores(b->c, name) || is_known(b->c, name))
            continue;
        err_set(b->e, ERR_FORMAT, "tensor %.120s is not part of a %s model with this config", name,
                model_family_name(b->c->family));
        return refuse(b, "unsupported");
    }
    err_set(b->e, ERR_FORMAT, "the file holds %zu tensors, the model has %zu", b->index->n,
            b->n_used + ignored);
    return refuse(b, "unsupported");
}

static int bind_all(struct binder *b, struct model *m)
{
    if (bind_table(b, family_model_rules(b->c), -1, m) < 0)
        return -1;
    for (int i = 0; i < b->c->n_layers; i++) {
        const struct tensor_rule *r;

        for (int t = 0; (r = family_layer_rules(b->c, i, t)); t++)
            if (bind_table(b, r, i, m ? &m->layers[i] : NULL) < 0)
                return -1;
    }
    return check_strangers(b);
}

static void number_layers(struct model *m)
{
    int n[2] = {0, 0};

    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];

        l->is_conv = m->config.is_conv[i];
        l->cache_index = n[l->is_conv]++;
    }
}

bool model_ignores(const struct model_config *c, const char *name)
{
    return family_ignores(c, name);
}

int model_check_index(const struct model_config *c, const struct st_index *index,
                      const char **reason, struct err *e)
{
    struct binder b = {.c = c, .index = index, .reason = reason, .e = e};

    return bind_all(&b, NULL);
}

struct model *model_bind(const struct model_config *c, const struct weights *w, const char **reason,
                         struct err *e)
{
    struct binder b = {.c = c, .index = &w->index, .w = w, .reason = reason, .e = e};
    struct model *m = calloc(1, sizeof *m);

    *reason = "system";
    if (!m || !(m->layers = calloc((size_t)c->n_layers, sizeof *m->layers))) {
        err_nomem(e);
        goto fail;
    }
    m->config = *c;
    if (bind_all(&b, m) < 0)
        goto fail;
    m->dtype = to_kern(b.dtype);
    if (c->tied)
        m->head = m->embed;
    number_layers(m);
    m->n_parameters = b.bytes / dtype_bytes(b.dtype);
    m->step_bytes = b.bytes;
    if (!c->tied)
        m->step_bytes -= (size_t)c->vocab * (size_t)c->hidden * dtype_bytes(b.dtype);
    return m;
fail:
    model_free(m);
    return NULL;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    free(m->layers);
    free(m);
}

int model_open_dir(int dir_fd, const struct model_dir_rules *rules, struct model_dir *md,
                   struct model_config *config, const char **reason, struct err *e)
{
    unsigned flags =
        (rules->f32_ok ? MD_F32_OK : 0u) | (rules->trust_remote_code ? MD_TRUST_REMOTE_CODE : 0u);
    enum model_dir_reason why = MD_OK;

    if (model_dir_open(md, dir_fd, &why, e) < 0) {
        *reason = model_dir_reason_word(why);
        return -1;
    }
    if (model_dir_check_config(md, dir_fd, flags, &why, e) < 0) {
        *reason = model_dir_reason_word(why);
        goto fail;
    }
    if (model_config_load(config, dir_fd, reason, e) < 0 ||
        model_check_index(config, &md->all, reason, e) < 0)
        goto fail;
    return 0;
fail:
    model_dir_close(md);
    return -1;
}
