#include "model/adapter.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/str.h"
#include "model/adapter_config.h"
#include "model/adapter_make.h"
#include "model/config.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"

enum { NAMED_MAX = 16 };

struct adapter *adapter_ref(struct adapter *a)
{
    atomic_fetch_add(&a->refs, 1);
    return a;
}

void adapter_unref(struct adapter *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) > 1)
        return;
    free(a->loras);
    free(a->memory);
    free(a->rounded);
    free(a);
}

void adapter_problem_clear(struct adapter_problem *p)
{
    json_decref(p->tensors);
    *p = (struct adapter_problem){0};
}

/* ---- reading ---- */

/* One pair of the file and where it belongs. */
struct pair {
    const struct st_tensor *a, *b;
    double ratio;
};

struct reader {
    const struct model_config *c;
    const json_t *config;
    struct st_index index;
    struct pair *pairs; /* of each slot */
    int n_modules;
    struct adapter_problem *p;
    struct err *e;
};

/* Tensors with one kind of problem are named together, up to NAMED_MAX. */
static int blame(struct reader *rd, enum adapter_fault fault, const char *tensor, const char *what)
{
    struct adapter_problem *p = rd->p;

    if (p->fault == ADAPTER_OK) {
        p->fault = fault;
        p->tensors = json_array();
        err_set(rd->e, ERR_FORMAT, "adapter tensor %.200s %s", tensor, what);
    }
    if (p->fault == fault && json_array_size(p->tensors) < NAMED_MAX)
        json_array_append_new(p->tensors, json_string(tensor));
    return -1;
}

/* base_model.model.<module>.lora_A.weight -> module, which half; false: another kind of key. */
static bool split_key(const char *name, char module[ADAPTER_MODULE_MAX], bool *is_b)
{
    static const char prefix[] = "base_model.model.", a[] = ".lora_A.weight",
                      b[] = ".lora_B.weight";
    size_t n = strlen(name), tail = sizeof a - 1, head = sizeof prefix - 1;

    if (n <= head + tail || n - head - tail >= ADAPTER_MODULE_MAX ||
        strncmp(name, prefix, head) != 0)
        return false;
    *is_b = strcmp(name + n - tail, b) == 0;
    if (!*is_b && strcmp(name + n - tail, a) != 0)
        return false;
    memcpy(module, name + head, n - head - tail);
    module[n - head - tail] = '\0';
    return true;
}

static int check_tensor(struct reader *rd, const struct st_tensor *t)
{
    char module[ADAPTER_MODULE_MAX], what[224], want[64], have[96];
    int64_t shape[2], expected[2];
    bool is_b = false;
    int slot = -1, rank;

    if (strlen(t->name) == t->name_len && split_key(t->name, module, &is_b))
        slot = adapter_find_module(rd->c, module);
    if (slot < 0)
        return blame(rd, ADAPTER_BAD_MODULE, t->name, "belongs to no linear layer of this model");
    adapter_module_shape(rd->c, slot, shape);
    rank = adapter_rank(rd->config, module);
    expected[0] = is_b ? shape[0] : rank;
    expected[1] = is_b ? rank : shape[1];
    if (t->ndim != 2 || memcmp(t->shape, expected, sizeof expected) != 0) {
        tensor_shape_str(2, expected, want, sizeof want);
        tensor_shape_str(t->ndim, t->shape, have, sizeof have);
        snprintf(what, sizeof what, "has shape %s, model and rank ask for %s", have, want);
        return blame(rd, ADAPTER_BAD_SHAPE, t->name, what);
    }
    if (is_b)
        rd->pairs[slot].b = t;
    else
        rd->pairs[slot].a = t;
    rd->pairs[slot].ratio = adapter_ratio(rd->config, module);
    return 0;
}

static int check_pairs(struct reader *rd)
{
    for (int i = 0; i < adapter_slots(rd->c->n_layers); i++) {
        const struct pair *pair = &rd->pairs[i];

        if (pair->a && !pair->b)
            blame(rd, ADAPTER_BAD_PAIR, pair->a->name, "has no lora_B");
        else if (pair->b && !pair->a)
            blame(rd, ADAPTER_BAD_PAIR, pair->b->name, "has no lora_A");
        rd->n_modules += pair->a != NULL;
    }
    return rd->p->fault == ADAPTER_OK ? 0 : -1;
}

/* It would change the embedding too, which no tensor of an adapter does here. */
static int check_head(struct reader *rd)
{
    const json_t *tying = json_object_get(rd->config, "ensure_weight_tying");
    const struct pair *head = &rd->pairs[adapter_slots(rd->c->n_layers) - 1];

    if (!rd->c->tied || !json_is_true(tying) || !head->a)
        return 0;
    rd->p->fault = ADAPTER_BAD_CONFIG;
    str_copy(rd->p->field, sizeof rd->p->field, "ensure_weight_tying");
    return err_set(rd->e, ERR_FORMAT,
                   "adapter_config.json: ensure_weight_tying must be false for lm_head of a model "
                   "with a tied embedding");
}

/* Modules, then shapes, then pairs: what is told first does not depend on the order of keys. */
static int check_tensors(struct reader *rd)
{
    for (size_t i = 0; i < rd->index.n; i++) {
        enum dtype d = rd->index.tensors[i].dtype;

        if (d != DTYPE_F32 && d != DTYPE_F16 && d != DTYPE_BF16) {
            rd->p->fault = ADAPTER_BAD_WEIGHTS;
            return err_set(rd->e, ERR_FORMAT,
                           "adapter tensor %.200s is %s; F32, F16 and BF16 are read",
                           rd->index.tensors[i].name, dtype_name(d));
        }
    }
    for (size_t i = 0; i < rd->index.n; i++)
        check_tensor(rd, &rd->index.tensors[i]);
    if (rd->p->fault != ADAPTER_OK)
        return -1;
    if (rd->index.n == 0) {
        rd->p->fault = ADAPTER_BAD_WEIGHTS;
        return err_set(rd->e, ERR_FORMAT, "adapter_model.safetensors holds no tensor");
    }
    return check_pairs(rd) < 0 ? -1 : check_head(rd);
}

static int read_matrix(struct reader *rd, int fd, const struct st_tensor *t,
                       const struct kern_matrix *m)
{
    static const enum kern_dtype kinds[DTYPE_COUNT] = {
        [DTYPE_F32] = KERN_F32, [DTYPE_F16] = KERN_F16, [DTYPE_BF16] = KERN_BF16};
    void *raw = malloc(t->bytes ? t->bytes : 1);
    int rc;

    if (!raw)
        return err_nomem(rd->e);
    rc = fs_read_at(fd, raw, t->bytes, (int64_t)(rd->index.data_start + t->offset), rd->e);
    if (rc == 0)
        kernels_by_name("ref")->to_f32((float *)(uintptr_t)m->w, raw, kinds[t->dtype],
                                       (size_t)m->n * (size_t)m->k);
    free(raw);
    return rc;
}

static int read_all(struct reader *rd, int fd, const struct adapter *a)
{
    for (int i = 0; i < adapter_slots(rd->c->n_layers); i++) {
        const struct pair *pair = &rd->pairs[i];
        const struct lora *l = adapter_slot_of(a, i);

        if (pair->a &&
            (read_matrix(rd, fd, pair->a, &l->a) < 0 || read_matrix(rd, fd, pair->b, &l->b) < 0))
            return -1;
    }
    return 0;
}

static struct kern_matrix matrix_of(const struct st_tensor *t)
{
    return (struct kern_matrix){.dtype = KERN_F32, .n = (int)t->shape[0], .k = (int)t->shape[1]};
}

static struct adapter *make(struct reader *rd, int fd, const char *name, double scale)
{
    struct adapter *a = adapter_blank(rd->c->n_layers, rd->e);

    if (!a)
        return NULL;
    str_copy(a->name, sizeof a->name, name);
    a->scale = scale;
    a->n_modules = rd->n_modules;
    for (int i = 0; i < adapter_slots(a->n_layers); i++) {
        const struct pair *pair = &rd->pairs[i];

        if (pair->a)
            *adapter_slot(a, i) = (struct lora){.a = matrix_of(pair->a),
                                                .b = matrix_of(pair->b),
                                                .scale = (float)(scale * pair->ratio)};
    }
    a = adapter_with_memory(a, rd->e);
    if (!a)
        return NULL;
    if (read_all(rd, fd, a) == 0) {
        adapter_round(a);
        return a;
    }
    adapter_unref(a);
    return NULL;
}

/* The file's descriptor with its index read, or -1. */
static int open_weights(struct reader *rd, int dir_fd)
{
    struct stat st;
    int fd = fs_open_regular(dir_fd, "adapter_model.safetensors", FS_LINKS_INSIDE, &st, rd->e);

    if (fd >= 0 && st_index_read(&rd->index, fd, rd->e) == 0)
        return fd;
    rd->p->fault = rd->e->code == ERR_NOMEM ? ADAPTER_FAILED : ADAPTER_BAD_WEIGHTS;
    fs_close(fd);
    return -1;
}

struct adapter *adapter_read(int dir_fd, const char *name, double scale,
                             const struct model_config *c, bool only_check,
                             struct adapter_problem *p, struct err *e)
{
    struct reader rd = {.c = c, .p = p, .e = e};
    json_t *config = adapter_config_read(dir_fd, p, e);
    struct adapter *a = NULL;
    int fd = -1;

    rd.config = config;
    if (!config || (fd = open_weights(&rd, dir_fd)) < 0)
        goto done;
    rd.pairs = calloc((size_t)adapter_slots(c->n_layers), sizeof *rd.pairs);
    if (!rd.pairs) {
        p->fault = ADAPTER_FAILED;
        err_nomem(e);
        goto done;
    }
    if (check_tensors(&rd) < 0 || only_check)
        goto done;
    a = make(&rd, fd, name, scale);
    if (!a)
        p->fault = ADAPTER_FAILED;

done:
    free(rd.pairs);
    st_index_release(&rd.index);
    fs_close(fd);
    json_decref(config);
    return a;
}
