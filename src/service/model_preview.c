/* service/model_preview.c - POST /api/models/preview: what a registration would find, and whether
 * it could be loaded. Nothing is changed. */
#include <stdlib.h>

#include "base/err.h"
#include "base/meminfo.h"
#include "service/dir_facts.h"
#include "service/memory.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/registration.h"
#include "service/service.h"
#include "service/times.h"
#include "store/catalogue.h"

enum { KV_ELEMENT_BYTES = 4 };

static json_t *count_or_null(bool known, uint64_t n)
{
    return known ? json_integer((json_int_t)n) : json_null();
}

static json_t *mb_or_null(const struct dir_facts *f)
{
    return count_or_null(f->has_weights, (f->n_bytes >> 20) + 1);
}

/* As a load would ask, which gives the resident back where both do not fit. */
static json_t *fits_memory(struct service *s, const struct dir_facts *f)
{
    struct refusal r = {0};
    size_t ignored;
    bool fits;

    if (!f->has_weights || meminfo_available(&ignored) < 0)
        return json_null();
    fits = memory_refuse_instead(s, f->n_bytes, false, &r) == 0;
    refusal_clear(&r);
    return json_boolean(fits);
}

static json_t *problem_object(const struct dir_facts *f)
{
    if (f->loadable)
        return json_null();
    return json_pack("{s:s?, s:s}", "reason", f->reason, "message", f->problem);
}

static json_t *existing_id(struct service *s, const struct registration *g)
{
    struct model_row row = {0};
    struct err e = {0};
    json_t *id = json_null();

    if (catalogue_get_by_path(s->db, g->path, &row, &e) == 0 ||
        catalogue_get_by_name(s->db, registration_name(g), &row, &e) == 0)
        id = json_integer((json_int_t)row.id);
    model_row_release(&row);
    return id;
}

static void add_config(json_t *o, const struct dir_facts *f)
{
    const struct model_config *c = &f->config;
    bool ok = f->loadable;
    uint64_t attention = (uint64_t)(c->n_layers - c->n_conv_layers);

    json_object_set_new(o, "model_type",
                        ok ? json_string(model_family_name(c->family)) : json_null());
    json_object_set_new(o, "dtype", ok ? json_string(dtype_name(f->dtype)) : json_null());
    json_object_set_new(o, "context_length", count_or_null(ok, (uint64_t)c->max_positions));
    json_object_set_new(o, "vocab_size", count_or_null(ok, (uint64_t)c->vocab));
    json_object_set_new(o, "num_layers", count_or_null(ok, (uint64_t)c->n_layers));
    json_object_set_new(o, "hidden_size", count_or_null(ok, (uint64_t)c->hidden));
    json_object_set_new(
        o, "kv_bytes_per_token",
        count_or_null(ok, attention * 2 * (uint64_t)model_kv_width(c) * KV_ELEMENT_BYTES));
    json_object_set_new(o, "has_chat_template", json_boolean(f->has_chat_template));
    json_object_set_new(o, "supports_embeddings", json_boolean(ok));
}

static json_t *preview_object(struct service *s, const struct registration *g,
                              const struct dir_facts *f)
{
    char *params = f->has_weights ? dir_facts_params_word(f->n_parameters) : NULL;
    json_t *o =
        json_pack("{s:s, s:s, s:o, s:o, s:s, s:s, s:o, s:o}", "name", registration_name(g),
                  "source", g->source, "repo_id", json_text(g->repo_id), "revision",
                  json_text(g->revision), "local_path", g->path, "quantization", g->quantization,
                  "architecture", json_text(f->architecture), "params", json_text(params));

    free(params);
    if (!o)
        return NULL;
    json_object_set_new(o, "num_parameters", count_or_null(f->has_weights, f->n_parameters));
    json_object_set_new(o, "disk_size_mb", mb_or_null(f));
    json_object_set_new(o, "estimated_memory_mb", mb_or_null(f));
    add_config(o, f);
    json_object_set_new(o, "fits_memory", fits_memory(s, f));
    json_object_set_new(o, "loadable", json_boolean(f->loadable));
    json_object_set_new(o, "problem", problem_object(f));
    json_object_set_new(o, "existing_model_id", existing_id(s, g));
    return o;
}

int models_preview(struct service *s, const json_t *body, const json_t *errors, json_t **data,
                   struct refusal *r)
{
    struct registration g = {.source = "huggingface", .quantization = "FP16"};
    struct dir_facts f;

    if (registration_parse(&g, body, errors, r) < 0 || registration_find(s, &g, r) < 0)
        return -1;
    dir_facts_read(&f, g.path, g.trust_remote_code);
    *data = preview_object(s, &g, &f);
    dir_facts_release(&f);
    return *data ? 0 : refuse_no_memory(r);
}
