#include "service/weaver/merged.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/stopping.h"
#include "engine/companions.h"
#include "engine/image.h"
#include "model/adapter_make.h"
#include "model/model.h"
#include "service/service.h"
#include "tensor/safetensors.h"
#include "tensor/weights.h"

static const char head_name[] = "lm_head.weight", embed_name[] = "model.embed_tokens.weight";

/* The base's tensors, and an lm_head of its own where the adapter changes a tied one. */
static int layout(struct st_index *ix, const struct image *base, bool own_head, struct err *e)
{
    const struct weights *w = base->weights;

    for (size_t i = 0; i < w->n; i++) {
        const struct st_tensor *t = &w->tensors[i];

        if (st_index_add(ix, t->name, t->name_len, t->dtype, t->ndim, t->shape, e) < 0)
            return -1;
    }
    if (own_head && !weights_find(w, head_name)) {
        const struct st_tensor *t = weights_find(w, embed_name);

        if (!t)
            return err_set(e, ERR_FORMAT, "the base has no %s", embed_name);
        if (st_index_add(ix, head_name, strlen(head_name), t->dtype, t->ndim, t->shape, e) < 0)
            return -1;
    }
    return 0;
}

static void copy_tensors(struct weights *to, const struct image *base)
{
    const struct weights *from = base->weights;
    bool tied = base->model->config.tied;

    for (size_t i = 0; i < to->n; i++) {
        const struct st_tensor *t = &to->tensors[i], *f;
        bool head = tied && strcmp(t->name, head_name) == 0;

        f = weights_find(from, head ? embed_name : t->name);
        memcpy(weights_data(to, t), weights_data(from, f), t->bytes);
    }
}

static float get(const void *row, enum dtype d, int i)
{
    if (d == DTYPE_F32)
        return ((const float *)row)[i];
    return d == DTYPE_BF16 ? dtype_bf16_to_f32(((const uint16_t *)row)[i])
                           : dtype_f16_to_f32(((const uint16_t *)row)[i]);
}

static void put(void *row, enum dtype d, int i, float v)
{
    if (d == DTYPE_F32)
        ((float *)row)[i] = v;
    else
        ((uint16_t *)row)[i] = d == DTYPE_BF16 ? dtype_f32_to_bf16(v) : dtype_f32_to_f16(v);
}

/* sum: [in] scratch. */
static void add_row(void *row, enum dtype d, const struct lora *l, int o, float *sum)
{
    const float *a = l->a.w, *b = l->b.w;
    int rank = l->a.n, in = l->a.k;

    memset(sum, 0, (size_t)in * sizeof *sum);
    for (int r = 0; r < rank; r++) {
        float scale = b[(size_t)o * (size_t)rank + (size_t)r];

        for (int i = 0; i < in; i++)
            sum[i] += scale * a[(size_t)r * (size_t)in + (size_t)i];
    }
    for (int i = 0; i < in; i++)
        put(row, d, i, get(row, d, i) + l->scale * sum[i]);
}

static int add_module(struct weights *w, const char *module, const struct lora *l,
                      const atomic_bool *stop, struct err *e)
{
    char name[ADAPTER_MODULE_MAX + 16];
    const struct st_tensor *t;
    float *sum;
    size_t row_bytes;
    int rc = 0;

    snprintf(name, sizeof name, "%s.weight", module);
    t = weights_find(w, name);
    if (!t || t->ndim != 2 || t->shape[0] != l->b.n || t->shape[1] != l->a.k)
        return err_set(e, ERR_FORMAT, "the base has no %s of the adapter's shape", name);
    sum = malloc((size_t)l->a.k * sizeof *sum);
    if (!sum)
        return err_nomem(e);
    row_bytes = (size_t)l->a.k * dtype_bytes(t->dtype);
    for (int o = 0; o < l->b.n && (rc = stopping_check(stop, e)) == 0; o++)
        add_row((char *)weights_data(w, t) + (size_t)o * row_bytes, t->dtype, l, o, sum);
    free(sum);
    return rc;
}

static int add_all(struct weights *w, const struct model_config *c, const struct adapter *a,
                   const atomic_bool *stop, struct err *e)
{
    char module[ADAPTER_MODULE_MAX];

    for (int slot = 0; slot < adapter_slots(a->n_layers); slot++) {
        const struct lora *l = adapter_slot_of(a, slot);

        if (!l->a.n)
            continue;
        if (adapter_module(c, slot, module) < 0)
            return err_set(e, ERR_FORMAT, "the adapter has a matrix without a module");
        if (add_module(w, module, l, stop, e) < 0)
            return -1;
    }
    return 0;
}

static int write_config(struct merged *m, const struct image *base, bool untie, struct err *e)
{
    struct companion c;
    json_t *o;

    if (!companions_find(base->files->companions, "config.json", &c))
        return err_set(e, ERR_FORMAT, "the base has no config.json");
    o = json_parse(c.data, c.bytes, e);
    if (!o)
        return -1;
    if (untie)
        json_object_set_new(o, "tie_word_embeddings", json_false());
    json_write_pretty(&m->config, o);
    buf_add_char(&m->config, '\n');
    json_decref(o);
    return m->config.failed ? err_nomem(e) : 0;
}

int merged_make(struct merged *m, const struct image *base, const struct adapter *a,
                const atomic_bool *stop, struct err *e)
{
    bool untie = base->model->config.tied && a->head.a.n > 0;
    struct st_index ix = {0};
    struct buf header = {0};
    int rc = -1;

    *m = (struct merged){0};
    if (layout(&ix, base, untie, e) < 0 || st_index_plan(&ix, &header, e) < 0)
        goto done;
    m->weights = weights_new(&ix, NULL, 0, e);
    if (!m->weights)
        goto done;
    copy_tensors(m->weights, base);
    if (add_all(m->weights, &base->model->config, a, stop, e) == 0)
        rc = write_config(m, base, untie, e);

done:
    buf_release(&header);
    st_index_release(&ix);
    if (rc < 0)
        merged_release(m);
    return rc;
}

void merged_release(struct merged *m)
{
    weights_free(m->weights);
    buf_release(&m->config);
    *m = (struct merged){0};
}
