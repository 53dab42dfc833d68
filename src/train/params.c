#include "train/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "model/model.h"
#include "tensor/weights.h"

/* ---- the list ---- */

static void describe(struct train_param *p, const struct st_tensor *t)
{
    *p = (struct train_param){.name = t->name,
                              .n_dims = t->ndim,
                              .rows = (int)t->shape[0],
                              .cols = 1,
                              .offset = t->offset / sizeof(float),
                              .n = t->bytes / sizeof(float)};
    memcpy(p->dims, t->shape, (size_t)t->ndim * sizeof *t->shape);
    if (t->ndim > 1)
        p->cols = (int)(p->n / (size_t)p->rows);
}

static int cut(struct params *p, struct err *e)
{
    int n = 0;

    for (int i = 0; i < p->n; i++)
        p->n_pieces += (int)((p->param[i].n + PIECE - 1) / PIECE);
    p->piece = calloc((size_t)p->n_pieces + 1, sizeof *p->piece);
    if (!p->piece)
        return err_nomem(e);
    for (int i = 0; i < p->n; i++)
        for (size_t at = 0; at < p->param[i].n; at += PIECE) {
            size_t left = p->param[i].n - at;

            p->piece[n++] = (struct piece){i, p->param[i].offset + at, left < PIECE ? left : PIECE};
        }
    return 0;
}

/* The index holds all names: the order is now fixed. */
static int plan(struct params *p, struct err *e)
{
    struct buf header = {0};
    int rc = st_index_plan(&p->index, &header, e);

    buf_release(&header);
    if (rc < 0)
        return -1;
    p->n = (int)p->index.n;
    p->floats = p->index.data_bytes / sizeof(float);
    p->param = calloc((size_t)p->n + 1, sizeof *p->param);
    p->place = calloc((size_t)p->n + 1, sizeof *p->place);
    if (!p->param || !p->place)
        return err_nomem(e);
    for (int i = 0; i < p->n; i++) {
        describe(&p->param[i], &p->index.tensors[i]);
        p->place[i] = (struct place){.tensor = -1, .twin = -1, .slot = -1};
    }
    return cut(p, e);
}

static int param_by_name(const struct params *p, const char *name)
{
    const struct st_tensor *t = st_index_find(&p->index, name);

    return t ? (int)(t - p->index.tensors) : -1;
}

/* A stored lm_head of a tied model has the embedding's type and shape, else it is only kept. */
static int twin_of(const struct params *p, const struct weights *w, const struct model *m, int i)
{
    const struct st_tensor *t = &w->tensors[i], *embed;
    int param = param_by_name(p, "model.embed_tokens.weight");

    if (!m->config.tied || param < 0 || strcmp(t->name, "lm_head.weight") != 0)
        return -1;
    embed = weights_find(w, "model.embed_tokens.weight");
    if (t->dtype != embed->dtype || t->ndim != embed->ndim ||
        memcmp(t->shape, embed->shape, (size_t)t->ndim * sizeof *t->shape) != 0)
        return -1;
    return param;
}

static int find_places(struct params *p, const struct weights *w, const struct model *m,
                       struct err *e)
{
    p->copied = calloc(w->n + 1, sizeof *p->copied);
    if (!p->copied)
        return err_nomem(e);
    for (size_t i = 0; i < w->n; i++) {
        int param = param_by_name(p, w->tensors[i].name), twin = -1;

        if (param < 0)
            twin = twin_of(p, w, m, (int)i);
        if (param >= 0)
            p->place[param].tensor = (int)i;
        else if (twin >= 0)
            p->place[twin].twin = (int)i;
        else
            p->copied[p->n_copied++] = (int)i;
    }
    return 0;
}

int params_of_weights(struct params *p, const struct weights *w, const struct model *m,
                      struct err *e)
{
    *p = (struct params){0};
    for (size_t i = 0; i < w->n; i++) {
        const struct st_tensor *t = &w->tensors[i];

        if (!model_ignores(&m->config, t->name) &&
            st_index_add(&p->index, t->name, t->name_len, DTYPE_F32, t->ndim, t->shape, e) < 0)
            goto fail;
    }
    if (plan(p, e) == 0 && find_places(p, w, m, e) == 0)
        return 0;

fail:
    params_release(p);
    return -1;
}

/* Tensor `half` (A, B) of a slot: its name and matrix; false: no such module. */
static bool slot_tensor(const struct adapter *a, const struct model_config *c, int slot, int half,
                        char name[ADAPTER_TENSOR_MAX], const struct kern_matrix **m)
{
    const struct lora *l = adapter_slot_of(a, slot);
    char module[ADAPTER_MODULE_MAX];

    if (!l->a.n || adapter_module(c, slot, module) < 0)
        return false;
    adapter_tensor_name(module, half, name);
    *m = half ? &l->b : &l->a;
    return true;
}

int params_of_adapter(struct params *p, const struct adapter *a, const struct model_config *c,
                      struct err *e)
{
    char name[ADAPTER_TENSOR_MAX];
    const struct kern_matrix *m;
    int n = 2 * adapter_slots(a->n_layers);

    *p = (struct params){0};
    for (int i = 0; i < n; i++) {
        if (!slot_tensor(a, c, i / 2, i % 2, name, &m))
            continue;
        const int64_t shape[2] = {m->n, m->k};

        if (st_index_add(&p->index, name, strlen(name), DTYPE_F32, 2, shape, e) < 0)
            goto fail;
    }
    if (plan(p, e) < 0)
        goto fail;
    for (int i = 0; i < n; i++)
        if (slot_tensor(a, c, i / 2, i % 2, name, &m)) {
            struct place *at = &p->place[param_by_name(p, name)];

            at->slot = i / 2;
            at->is_b = i % 2;
        }
    return 0;

fail:
    params_release(p);
    return -1;
}

void params_release(struct params *p)
{
    st_index_release(&p->index);
    free(p->param);
    free(p->place);
    free(p->piece);
    free(p->copied);
    *p = (struct params){0};
}

struct weights *params_array(const struct params *p, struct err *e)
{
    return weights_new(&p->index, NULL, 0, e);
}

float *params_floats(const struct weights *array)
{
    return (float *)(void *)(array->base + array->data_start);
}

/* ---- gradients ---- */

static int new_layers(struct grads *g, int n_layers, struct err *e)
{
    *g = (struct grads){.n_layers = n_layers};
    g->layers = calloc((size_t)n_layers, sizeof *g->layers);
    return g->layers ? 0 : err_nomem(e);
}

void grads_release(struct grads *g)
{
    free(g->layers);
    *g = (struct grads){0};
}

/* The model was bound over an array that may be written. */
static float *writable(const void *data)
{
    return (float *)(uintptr_t)data;
}

static void bind_layer(struct layer_grads *g, const struct layer *l)
{
    *g = (struct layer_grads){
        .norm_in = writable(l->norm_in),
        .norm_ff = writable(l->norm_ff),
        .gate = writable(l->gate.w),
        .up = writable(l->up.w),
        .down = writable(l->down.w),
        .gate_bias = writable(l->gate_bias),
        .up_bias = writable(l->up_bias),
        .down_bias = writable(l->down_bias),
        .q = writable(l->q.w),
        .k = writable(l->k.w),
        .v = writable(l->v.w),
        .o = writable(l->o.w),
        .q_bias = writable(l->q_bias),
        .k_bias = writable(l->k_bias),
        .v_bias = writable(l->v_bias),
        .o_bias = writable(l->o_bias),
        .q_norm = writable(l->q_norm),
        .k_norm = writable(l->k_norm),
        .conv_in = writable(l->conv_in.w),
        .conv_out = writable(l->conv_out.w),
        .conv_taps = writable(l->conv_taps),
        .conv_in_bias = writable(l->conv_in_bias),
        .conv_bias = writable(l->conv_bias),
        .conv_out_bias = writable(l->conv_out_bias),
    };
}

int grads_of_weights(struct grads *g, const struct weights *array, const struct model *m,
                     struct err *e)
{
    const char *reason;
    struct model *view = model_bind(&m->config, array, &reason, e);

    if (!view)
        return -1;
    if (new_layers(g, m->config.n_layers, e) == 0) {
        g->embed = writable(view->embed.w);
        g->head = writable(view->head.w);
        g->final_norm = writable(view->final_norm);
        for (int i = 0; i < g->n_layers; i++)
            bind_layer(&g->layers[i], &view->layers[i]);
    }
    model_free(view);
    return g->layers ? 0 : -1;
}

int grads_of_adapter(struct grads *g, const struct params *p, float *floats, int n_layers,
                     struct err *e)
{
    if (new_layers(g, n_layers, e) < 0)
        return -1;
    for (int i = 0; i < p->n; i++) {
        int slot = p->place[i].slot, layer = slot / PROJECTIONS;
        struct lora_grad *l =
            layer < n_layers ? &g->layers[layer].lora[slot % PROJECTIONS] : &g->head_lora;

        *(p->place[i].is_b ? &l->b : &l->a) = floats + p->param[i].offset;
    }
    return 0;
}
