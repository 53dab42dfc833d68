#include "model/adapter_make.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/str.h"
#include "model/config.h"
#include "model/model.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

/* ---- making ---- */

static bool is_wanted(const struct model_config *c, const struct lora_settings *s, int slot)
{
    char module[ADAPTER_MODULE_MAX];

    if (adapter_module(c, slot, module) < 0)
        return false;
    if (slot == c->n_layers * PROJECTIONS)
        return s->unembed;
    switch ((enum projection)(slot % PROJECTIONS)) {
    case PROJ_GATE:
    case PROJ_UP:
    case PROJ_DOWN:
        return s->mlp;
    default:
        return s->attn;
    }
}

/* Gives A and B of the adapter's slots their places in one block of memory, slot by slot; with no
 * memory only counts the floats. */
static size_t place(struct adapter *a)
{
    size_t at = 0;

    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        struct lora *l = adapter_slot(a, i);
        size_t n_a = (size_t)l->a.n * (size_t)l->a.k, n_b = (size_t)l->b.n * (size_t)l->b.k;

        if (a->memory) {
            l->a.w = n_a ? a->memory + at : NULL;
            l->b.w = n_b ? a->memory + at + n_a : NULL;
        }
        at += n_a + n_b;
    }
    return at;
}

struct adapter *adapter_blank(int n_layers, struct err *e)
{
    struct adapter *a = calloc(1, sizeof *a);

    if (a && (a->loras = calloc((size_t)n_layers * PROJECTIONS, sizeof *a->loras))) {
        atomic_init(&a->refs, 1);
        a->scale = 1;
        a->n_layers = n_layers;
        return a;
    }
    err_nomem(e);
    free(a);
    return NULL;
}

struct adapter *adapter_with_memory(struct adapter *a, struct err *e)
{
    a->n_values = place(a);
    a->rounded = calloc(a->n_values + 1, sizeof *a->rounded);
    a->memory = calloc(a->n_values + 1, sizeof *a->memory);
    if (!a->memory || !a->rounded) {
        err_nomem(e);
        adapter_unref(a);
        return NULL;
    }
    place(a);
    return a;
}

void adapter_round(struct adapter *a)
{
    for (size_t i = 0; i < a->n_values; i++)
        a->rounded[i] = dtype_f32_to_bf16(a->memory[i]);
}

static void shape_slots(struct adapter *a, const struct model_config *c,
                        const struct lora_settings *s)
{
    for (int i = 0; i < adapter_slots(c->n_layers); i++) {
        struct lora *l = adapter_slot(a, i);
        int64_t shape[2];

        if (!is_wanted(c, s, i))
            continue;
        adapter_module_shape(c, i, shape);
        *l = (struct lora){
            .a = {.dtype = KERN_F32, .n = s->rank, .k = (int)shape[1]},
            .b = {.dtype = KERN_F32, .n = (int)shape[0], .k = s->rank},
            .scale = s->alpha / (float)s->rank,
        };
        a->n_modules++;
    }
}

size_t adapter_floats(const struct model_config *c, const struct lora_settings *s)
{
    size_t floats = 0;

    for (int i = 0; i < adapter_slots(c->n_layers); i++) {
        int64_t shape[2];

        if (!is_wanted(c, s, i))
            continue;
        adapter_module_shape(c, i, shape);
        floats += (size_t)s->rank * (size_t)(shape[0] + shape[1]);
    }
    return floats;
}

/* The first slot from *slot on that has matrices, and its module's name; NULL: none is left. */
static const struct lora *next_module(const struct adapter *a, const struct model_config *c,
                                      int *slot, char module[ADAPTER_MODULE_MAX])
{
    for (; *slot < adapter_slots(a->n_layers); ++*slot) {
        const struct lora *l = adapter_slot_of(a, *slot);

        if (l->a.n && adapter_module(c, *slot, module) == 0)
            return l;
    }
    return NULL;
}

/* FNV-1a, 64 bits: the module's name chooses the stream of numbers. */
static uint64_t hash_name(const char *s)
{
    uint64_t h = 0xcbf29ce484222325;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3;
    return h;
}

static void draw(const struct lora *l, const char *module, uint64_t seed)
{
    float *a = (float *)(uintptr_t)l->a.w;
    double bound = 1 / sqrt((double)l->a.k);
    uint64_t h = hash_name(module);
    size_t n = (size_t)l->a.n * (size_t)l->a.k;

    for (size_t i = 0; i < n; i++)
        a[i] = (float)(bound * (2 * rng_unit(seed, (uint32_t)(h >> 32), i, (uint32_t)h) - 1));
}

struct adapter *adapter_new(const struct model_config *c, const struct lora_settings *s,
                            struct err *e)
{
    char module[ADAPTER_MODULE_MAX];
    const struct lora *l;
    struct adapter *a;

    if (s->rank < 1 || s->rank > ADAPTER_RANK_MAX) {
        err_set(e, ERR_ARG, "rank %d: must be from 1 to %d", s->rank, ADAPTER_RANK_MAX);
        return NULL;
    }
    a = adapter_blank(c->n_layers, e);
    if (!a)
        return NULL;
    shape_slots(a, c, s);
    if (a->n_modules == 0) {
        err_set(e, ERR_ARG, "no module is to be trained: ask for attn, mlp or unembed");
        adapter_unref(a);
        return NULL;
    }
    a = adapter_with_memory(a, e);
    for (int i = 0; a && (l = next_module(a, c, &i, module)); i++)
        draw(l, module, s->seed);
    if (a)
        adapter_round(a);
    return a;
}

struct adapter *adapter_like(const struct adapter *a, struct err *e)
{
    struct adapter *b = adapter_blank(a->n_layers, e);

    if (!b)
        return NULL;
    str_copy(b->name, sizeof b->name, a->name);
    b->scale = a->scale;
    b->n_modules = a->n_modules;
    b->head = a->head;
    memcpy(b->loras, a->loras, (size_t)a->n_layers * PROJECTIONS * sizeof *a->loras);
    return adapter_with_memory(b, e);
}

void adapter_take_settings(struct adapter *a, const struct adapter *from)
{
    str_copy(a->name, sizeof a->name, from->name);
    a->scale = from->scale;
    for (int i = 0; i < adapter_slots(a->n_layers); i++)
        adapter_slot(a, i)->scale = adapter_slot_of(from, i)->scale;
}

bool adapter_same_shape(const struct adapter *a, const struct adapter *b)
{
    if (a->n_layers != b->n_layers)
        return false;
    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        const struct lora *x = adapter_slot_of(a, i), *y = adapter_slot_of(b, i);

        if (x->a.n != y->a.n || x->a.k != y->a.k || x->b.n != y->b.n || x->b.k != y->b.k)
            return false;
    }
    return true;
}

/* ---- writing ---- */

static int add_tensors(struct st_index *ix, const struct adapter *a, const struct model_config *c,
                       struct err *e)
{
    char module[ADAPTER_MODULE_MAX], name[ADAPTER_TENSOR_MAX];
    const struct lora *l;

    for (int i = 0; (l = next_module(a, c, &i, module)); i++)
        for (int half = 0; half < 2; half++) {
            const struct kern_matrix *m = half ? &l->b : &l->a;
            const int64_t shape[2] = {m->n, m->k};

            adapter_tensor_name(module, half, name);
            if (st_index_add(ix, name, strlen(name), DTYPE_F32, 2, shape, e) < 0)
                return -1;
        }
    return 0;
}

struct adapter_file {
    struct adapter *adapter; /* counted */
    struct st_index index;
    struct buf header;
    const void **values; /* [index.n] */
};

static void find_values(struct adapter_file *f, const struct model_config *c)
{
    char module[ADAPTER_MODULE_MAX], name[ADAPTER_TENSOR_MAX];
    const struct lora *l;

    for (int i = 0; (l = next_module(f->adapter, c, &i, module)); i++)
        for (int half = 0; half < 2; half++) {
            adapter_tensor_name(module, half, name);
            f->values[st_index_find(&f->index, name) - f->index.tensors] = half ? l->b.w : l->a.w;
        }
}

struct adapter_file *adapter_file_open(struct adapter *a, const struct model *m, struct err *e)
{
    struct adapter_file *f = calloc(1, sizeof *f);

    if (!f) {
        err_nomem(e);
        return NULL;
    }
    f->adapter = adapter_ref(a);
    if (add_tensors(&f->index, a, &m->config, e) < 0 || st_index_plan(&f->index, &f->header, e) < 0)
        goto fail;
    f->values = calloc(f->index.n + 1, sizeof *f->values);
    if (f->values) {
        find_values(f, &m->config);
        return f;
    }
    err_nomem(e);

fail:
    adapter_file_close(f);
    return NULL;
}

void adapter_file_close(struct adapter_file *f)
{
    if (!f)
        return;
    adapter_unref(f->adapter);
    st_index_release(&f->index);
    buf_release(&f->header);
    free(f->values);
    free(f);
}

int64_t adapter_file_bytes(const struct adapter_file *f)
{
    return (int64_t)(f->header.len + f->index.data_bytes);
}

/* The tensor that holds byte `at` of the data: they lie in order, without gaps. */
static size_t tensor_at(const struct st_index *ix, size_t at)
{
    size_t low = 0, high = ix->n;

    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;

        if (ix->tensors[mid].offset <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

int adapter_file_read(void *file, void *to, size_t offset, size_t n, struct err *e)
{
    const struct adapter_file *f = file;
    char *out = to;

    (void)e;
    while (n > 0) {
        const char *from = f->header.data;
        size_t at = offset, end = f->header.len;

        if (offset >= f->header.len) {
            size_t i = tensor_at(&f->index, offset - f->header.len);

            from = f->values[i];
            at = offset - f->header.len - f->index.tensors[i].offset;
            end = f->index.tensors[i].bytes;
        }
        size_t len = end - at < n ? end - at : n;

        memcpy(out, from + at, len);
        out += len;
        offset += len;
        n -= len;
    }
    return 0;
}

/* The last part of a module's path is what PEFT selects modules by. Names repeat from layer to
 * layer, so few are kept. */
static void add_target(json_t *targets, const char *module)
{
    const char *last = strrchr(module, '.');
    const json_t *have;
    size_t i;

    last = last ? last + 1 : module;
    json_array_foreach (targets, i, have)
        if (strcmp(json_string_value(have), last) == 0)
            return;
    json_array_append_new(targets, json_string(last));
}

/* alpha such that alpha / rank is the scale: a whole number where one does. */
static double alpha_of(const struct lora *l)
{
    double alpha = (double)l->scale * (double)l->a.n, whole = round(alpha);

    return (float)(whole / (double)l->a.n) == l->scale ? whole : alpha;
}

static json_t *json_alpha(double alpha)
{
    bool whole = alpha == floor(alpha) && fabs(alpha) < 1e9;

    return whole ? json_integer((json_int_t)alpha) : json_real(alpha);
}

/* Modules that differ from the first one get patterns of their own. */
static void describe_modules(const struct adapter *a, const struct model_config *c, json_t *config)
{
    json_t *targets = json_array(), *ranks = json_object(), *alphas = json_object();
    char module[ADAPTER_MODULE_MAX];
    const struct lora *l;
    int rank = 0;
    double alpha = 0;

    for (int i = 0; (l = next_module(a, c, &i, module)); i++) {
        double own = alpha_of(l);

        if (rank == 0) {
            rank = l->a.n;
            alpha = own;
        }
        if (l->a.n != rank)
            json_object_set_new(ranks, module, json_integer(l->a.n));
        if (own != alpha)
            json_object_set_new(alphas, module, json_alpha(own));
        add_target(targets, module);
    }
    json_object_set_new(config, "r", json_integer(rank));
    json_object_set_new(config, "lora_alpha", json_alpha(alpha));
    json_object_set_new(config, "rank_pattern", ranks);
    json_object_set_new(config, "alpha_pattern", alphas);
    json_object_set_new(config, "target_modules", targets);
}

json_t *adapter_config_json(const struct adapter *a, const struct model_config *c, const char *base,
                            struct err *e)
{
    json_t *config =
        json_pack("{s:s, s:s, s:s, s:s, s:f, s:b, s:b, s:n}", "peft_type", "LORA", "task_type",
                  "CAUSAL_LM", "base_model_name_or_path", base, "bias", "none", "lora_dropout", 0.0,
                  "fan_in_fan_out", 0, "inference_mode", 1, "modules_to_save");

    if (config)
        describe_modules(a, c, config);
    else
        err_nomem(e);
    return config;
}
