/* model/adapter_slots.c - places for matrices and the names of the modules they belong to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "model/adapter_make.h"
#include "model/config.h"
#include "model/families.h"
#include "model/model.h"

static const char layers[] = "model.layers.", head[] = "lm_head", weight[] = ".weight";

static const size_t fields[PROJECTIONS] = {
    [PROJ_Q] = offsetof(struct layer, q),
    [PROJ_K] = offsetof(struct layer, k),
    [PROJ_V] = offsetof(struct layer, v),
    [PROJ_O] = offsetof(struct layer, o),
    [PROJ_GATE] = offsetof(struct layer, gate),
    [PROJ_UP] = offsetof(struct layer, up),
    [PROJ_DOWN] = offsetof(struct layer, down),
    [PROJ_CONV_IN] = offsetof(struct layer, conv_in),
    [PROJ_CONV_OUT] = offsetof(struct layer, conv_out),
};

/* -1: no linear layer. */
static int projection_of(size_t field)
{
    for (int i = 0; i < PROJECTIONS; i++)
        if (fields[i] == field)
            return i;
    return -1;
}

const struct lora *adapter_lora(const struct adapter *a, int layer, const struct layer *l,
                                const struct kern_matrix *w)
{
    int which = projection_of((size_t)((const char *)w - (const char *)l));
    const struct lora *found;

    if (which < 0)
        return NULL;
    found = &a->loras[layer * PROJECTIONS + which];
    return found->a.n ? found : NULL;
}

/* The rule of a layer's matrix, by its name or (name NULL) by its projection. */
static const struct tensor_rule *find_rule(const struct model_config *c, int layer,
                                           const char *name, int which)
{
    const struct tensor_rule *r;

    for (int t = 0; (r = family_layer_rules(c, layer, t)); t++)
        for (; r->name; r++)
            if (r->matrix && (name ? strcmp(r->name, name) == 0 : projection_of(r->field) == which))
                return r;
    return NULL;
}

int adapter_find_module(const struct model_config *c, const char *module)
{
    char name[ADAPTER_MODULE_MAX + sizeof weight], *end;
    const struct tensor_rule *r;
    const char *at;
    long layer;

    if (strcmp(module, head) == 0)
        return c->n_layers * PROJECTIONS;
    if (strncmp(module, layers, sizeof layers - 1) != 0)
        return -1;
    at = module + sizeof layers - 1;
    if (*at < '0' || *at > '9' || (*at == '0' && at[1] != '.'))
        return -1; /* a number has one spelling, so a slot has one name */
    layer = strtol(at, &end, 10);
    if (*end != '.' || layer < 0 || layer >= c->n_layers)
        return -1;
    snprintf(name, sizeof name, "%s%s", end + 1, weight);
    r = find_rule(c, (int)layer, name, 0);
    return r && projection_of(r->field) >= 0 ? (int)layer * PROJECTIONS + projection_of(r->field)
                                             : -1;
}

int adapter_module(const struct model_config *c, int slot, char out[ADAPTER_MODULE_MAX])
{
    int layer = slot / PROJECTIONS;
    const struct tensor_rule *r;

    if (layer == c->n_layers) {
        str_copy(out, ADAPTER_MODULE_MAX, head);
        return 0;
    }
    r = find_rule(c, layer, NULL, slot % PROJECTIONS);
    if (!r)
        return -1;
    snprintf(out, ADAPTER_MODULE_MAX, "%s%d.%.*s", layers, layer,
             (int)(strlen(r->name) - (sizeof weight - 1)), r->name);
    return 0;
}

void adapter_module_shape(const struct model_config *c, int slot, int64_t shape[2])
{
    int layer = slot / PROJECTIONS;
    int64_t all[4] = {c->vocab, c->hidden};

    if (layer < c->n_layers)
        rule_shape(find_rule(c, layer, NULL, slot % PROJECTIONS), c, all);
    memcpy(shape, all, 2 * sizeof *shape);
}

void adapter_tensor_name(const char *module, bool is_b, char out[ADAPTER_TENSOR_MAX])
{
    snprintf(out, ADAPTER_TENSOR_MAX, "base_model.model.%s.lora_%c.weight", module,
             is_b ? 'B' : 'A');
}
