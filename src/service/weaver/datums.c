#include "service/weaver/datums.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "service/weaver/impl.h"
#include "service/weaver/tensors.h"

enum { DATA_MAX = 65536, IGNORED_TARGET = -100, WHAT_MAX = 96 };

/* What is read of one datum. */
struct reader {
    struct w_batch *b;
    struct w_pack *pack;
    const struct w_limits *limits;
    int index;
    struct refusal *r;
};

static int no_memory(struct refusal *r)
{
    return w_refuse_memory(r);
}

/* ---- tokens ---- */

static int chunk_tokens(const json_t *chunk, struct w_pack *pack, struct arena *a, int64_t **out,
                        int64_t *n, struct refusal *r)
{
    const char *type = json_string_value(json_object_get(chunk, "type"));

    if (!type || strcmp(type, "encoded_text") != 0)
        return refuse(r, REFUSAL_W_UNSUPPORTED_CHUNK,
                      "A chunk must have the type encoded_text, not '%.40s'.", type ? type : "");
    if (w_tensor_ints(json_object_get(chunk, "tokens"), pack, a, "tokens", out, n, r) < 0)
        return -1;
    if (*n < 0)
        return refuse(r, REFUSAL_W_SHAPE_MISMATCH, "tokens must be a list.");
    return 0;
}

static int check_token(int64_t t, int i, const struct w_limits *limits, struct refusal *r)
{
    if (t >= 0 && t < limits->vocab)
        return 0;
    return refuse_with(r, REFUSAL_W_TOKEN_OUT_OF_RANGE,
                       json_pack("{s:i, s:I, s:i}", "position", i, "token", (json_int_t)t,
                                 "vocabulary", limits->vocab),
                       "Token %lld at position %d is outside of the vocabulary of %d.",
                       (long long)t, i, limits->vocab);
}

int w_tokens_read(const json_t *model_input, struct w_pack *pack, struct arena *a,
                  const struct w_limits *limits, int32_t **out, int *n, struct refusal *r)
{
    const json_t *chunks = json_object_get(model_input, "chunks"), *chunk;
    int64_t *ids = NULL, total = 0, count = 0, room = 0;
    int32_t *all = NULL;
    size_t i;

    if (!json_is_array(chunks))
        return refuse(r, REFUSAL_W_INVALID_DATUM, "A model input is an object with chunks.");
    json_array_foreach ((json_t *)chunks, i, chunk) {
        if (chunk_tokens(chunk, pack, a, &ids, &count, r) < 0)
            return -1;
        if (count > limits->max_tokens - total)
            return refuse_with(r, REFUSAL_W_CONTEXT_LENGTH_EXCEEDED,
                               json_pack("{s:i}", "max_tokens", limits->max_tokens),
                               "The sequence is longer than the %d tokens of this model.",
                               limits->max_tokens);
        if (total + count > room) {
            int32_t *grown;

            room = 2 * room + count;
            grown = arena_alloc(a, (size_t)room * sizeof *grown);
            if (!grown)
                return no_memory(r);
            if (all)
                memcpy(grown, all, (size_t)total * sizeof *grown);
            all = grown;
        }
        for (int64_t k = 0; k < count; k++) {
            if (check_token(ids[k], (int)(total + k), limits, r) < 0)
                return -1;
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is room for count */
            all[total + k] = (int32_t)ids[k];
        }
        total += count;
    }
    if (total == 0)
        return refuse(r, REFUSAL_W_INVALID_DATUM, "A model input needs at least one token.");
    *out = all;
    *n = (int)total;
    return 0;
}

/* ---- loss inputs ---- */

static void name_input(const struct reader *rd, const char *key, char out[WHAT_MAX])
{
    snprintf(out, WHAT_MAX, "data[%d].loss_fn_inputs.%.40s", rd->index, key);
}

static int mismatch(struct refusal *r, const char *what, int64_t got, int want)
{
    return refuse_with(
        r, REFUSAL_W_SHAPE_MISMATCH,
        json_pack("{s:s, s:I, s:i}", "input", what, "length", (json_int_t)got, "expected", want),
        "%s has %lld entries, and the sequence %d tokens.", what, (long long)got, want);
}

/* The vector under one of two names; *out stays NULL when neither is there. */
static int floats(struct reader *rd, const json_t *inputs, const char *key, const char *alias,
                  int n, const float **out)
{
    const json_t *v = json_object_get(inputs, key);
    char what[WHAT_MAX];
    int64_t count = 0;
    float *got = NULL, *all;

    if (!v && alias)
        v = json_object_get(inputs, key = alias);
    if (!v || json_is_null(v))
        return 0;
    name_input(rd, key, what);
    if (w_tensor_floats(v, rd->pack, &rd->b->arena, what, &got, &count, rd->r) < 0)
        return -1;
    if (count >= 0) {
        *out = got;
        return count == n ? 0 : mismatch(rd->r, what, count, n);
    }
    all = arena_alloc(&rd->b->arena, (size_t)n * sizeof *all);
    if (!all)
        return no_memory(rd->r);
    for (int i = 0; i < n; i++)
        all[i] = *got;
    *out = all;
    return 0;
}

static int targets(struct reader *rd, const json_t *inputs, int n, const int32_t **out)
{
    const json_t *v = json_object_get(inputs, "target_tokens");
    char what[WHAT_MAX];
    int64_t *got = NULL, count = 0;
    int32_t *all;

    name_input(rd, "target_tokens", what);
    if (!v)
        return refuse(rd->r, REFUSAL_W_INVALID_DATUM,
                      "%s is missing: position i predicts target_tokens[i].", what);
    if (w_tensor_ints(v, rd->pack, &rd->b->arena, what, &got, &count, rd->r) < 0)
        return -1;
    if (count != n)
        return mismatch(rd->r, what, count < 0 ? 1 : count, n);
    all = arena_alloc(&rd->b->arena, (size_t)n * sizeof *all);
    if (!all)
        return no_memory(rd->r);
    for (int i = 0; i < n; i++) {
        if (got[i] != IGNORED_TARGET && check_token(got[i], i, rd->limits, rd->r) < 0)
            return -1;
        all[i] = (int32_t)got[i];
    }
    *out = all;
    return 0;
}

static int check_needed(struct reader *rd, const struct loss_datum *d)
{
    const char *missing = NULL;
    char what[WHAT_MAX];

    if (loss_needs_old(rd->b->loss.kind) && !d->old_logprobs)
        missing = "logprobs";
    else if (loss_needs_old(rd->b->loss.kind) && !d->advantages)
        missing = "advantages";
    else if (rd->b->loss.kind == LOSS_SURROGATE && !d->surrogate)
        missing = "surrogate_weights";
    if (!missing)
        return 0;
    name_input(rd, missing, what);
    return refuse(rd->r, REFUSAL_W_INVALID_DATUM, "%s is missing: this loss needs it.", what);
}

static int loss_inputs(struct reader *rd, const json_t *inputs, struct loss_datum *d)
{
    if (!json_is_object(inputs))
        return refuse(rd->r, REFUSAL_W_INVALID_DATUM, "data[%d].loss_fn_inputs must be an object.",
                      rd->index);
    if (targets(rd, inputs, d->n, &d->targets) < 0 ||
        floats(rd, inputs, "weights", NULL, d->n, &d->weights) < 0 ||
        floats(rd, inputs, "loss_mask", NULL, d->n, &d->mask) < 0 ||
        floats(rd, inputs, "logprobs", "old_logprobs", d->n, &d->old_logprobs) < 0 ||
        floats(rd, inputs, "advantages", "importance_weights", d->n, &d->advantages) < 0 ||
        floats(rd, inputs, "surrogate_weights", NULL, d->n, &d->surrogate) < 0)
        return -1;
    return check_needed(rd, d);
}

/* ---- data ---- */

static int read_datum(struct reader *rd, const json_t *v)
{
    struct train_datum *d = &rd->b->data[rd->index];
    const char *kind = json_string_value(json_object_get(v, "kind"));
    const json_t *id = json_object_get(v, "datum_id");
    int32_t *tokens = NULL;
    int n = 0;

    if (!json_is_object(v))
        return refuse(rd->r, REFUSAL_W_INVALID_DATUM, "data[%d] must be an object.", rd->index);
    if (kind && strcmp(kind, "sample_ref") == 0)
        return refuse(rd->r, REFUSAL_W_UNSUPPORTED_FEATURE,
                      "data[%d] refers to a managed dataset; this server manages no data.",
                      rd->index);
    if (w_tokens_read(json_object_get(v, "model_input"), rd->pack, &rd->b->arena, rd->limits,
                      &tokens, &n, rd->r) < 0)
        return -1;
    d->tokens = tokens;
    d->loss.n = n;
    rd->b->rows += n;
    if (id && !json_is_null(id) && (!json_is_string(id) || json_holds_nul(id)))
        return refuse(rd->r, REFUSAL_W_INVALID_DATUM,
                      "data[%d].datum_id must be a string without U+0000.", rd->index);
    if (json_is_string(id))
        rd->b->ids[rd->index] =
            arena_strdup(&rd->b->arena, json_string_value(id), json_string_length(id));
    return loss_inputs(rd, json_object_get(v, "loss_fn_inputs"), &d->loss);
}

/* Each id once. */
static int check_ids(const struct w_batch *b, struct refusal *r)
{
    json_t *seen = json_object();
    int rc = 0;

    for (int i = 0; i < b->n && rc == 0; i++) {
        if (!b->ids[i])
            continue;
        if (json_object_get(seen, b->ids[i]))
            rc =
                refuse(r, REFUSAL_W_INVALID_DATUM, "The datum_id '%.64s' occurs twice.", b->ids[i]);
        json_object_set_new(seen, b->ids[i], json_true());
    }
    json_decref(seen);
    return rc;
}

/* ---- the loss ---- */

static int unknown_loss(const char *name, struct refusal *r)
{
    json_t *all = json_array();

    for (const char *const *n = loss_names(); *n; n++)
        json_array_append_new(all, json_string(*n));
    return refuse_with(r, REFUSAL_W_UNKNOWN_LOSS_FN, json_pack("{s:o}", "supported", all),
                       "There is no loss '%.64s'; details.supported has the names.",
                       name ? name : "");
}

static int read_reduction(const json_t *config, struct loss_config *c, struct refusal *r)
{
    static const char *const keys[] = {"reduction", "aggregation", "loss_agg_mode"};
    const char *word = NULL;

    for (int i = 0; i < 3 && !word; i++)
        if (w_str(config, keys[i], &word, r) < 0)
            return -1;
    if (!word || strcmp(word, "mean") == 0 || strcmp(word, "token-mean") == 0)
        return 0;
    if (strcmp(word, "sum") != 0)
        return w_bad(r, "loss_fn_config.reduction must be mean or sum, not '%.32s'.", word);
    c->sum = true;
    return 0;
}

/* clip_ratio, or low and high apart, or the thresholds of the ratio themselves. */
static int read_clip(const json_t *config, struct loss_config *c, struct refusal *r)
{
    double both = NAN, low = NAN, high = NAN, floor_ = NAN, ceiling = NAN;

    if (w_num(config, "clip_ratio", &both, r) < 0 || w_num(config, "clip_ratio_low", &low, r) < 0 ||
        w_num(config, "clip_ratio_high", &high, r) < 0 ||
        w_num(config, "clip_low_threshold", &floor_, r) < 0 ||
        w_num(config, "clip_high_threshold", &ceiling, r) < 0)
        return -1;
    if (!isnan(both))
        low = isnan(low) ? both : low, high = isnan(high) ? both : high;
    if (!isnan(low))
        c->low = (float)(1 - low);
    if (!isnan(high))
        c->high = (float)(1 + high);
    if (!isnan(floor_))
        c->low = (float)floor_;
    if (!isnan(ceiling))
        c->high = (float)ceiling;
    if (!(c->low <= c->high))
        return w_bad(r, "loss_fn_config: the lower clip bound %g is above the upper one %g.",
                     (double)c->low, (double)c->high);
    return 0;
}

static int read_config(struct w_batch *b, const json_t *config, struct refusal *r)
{
    double temperature = 1, cap = (double)b->loss.cap, beta = (double)b->loss.beta, entropy = 0;

    b->temperature = 1;
    if (!config || json_is_null(config))
        return 0;
    if (!json_is_object(config))
        return w_bad(r, "loss_fn_config must be an object.");
    if (read_reduction(config, &b->loss, r) < 0 || read_clip(config, &b->loss, r) < 0 ||
        w_num(config, "temperature", &temperature, r) < 0 || w_num(config, "cap", &cap, r) < 0 ||
        w_num(config, "beta", &beta, r) < 0 || w_num(config, "entropy_coeff", &entropy, r) < 0)
        return -1;
    if (!isfinite((float)entropy))
        return w_bad(r, "loss_fn_config.entropy_coeff must fit a float32.");
    b->loss.entropy = (float)entropy;
    if (!((float)temperature > 0) || !isfinite((float)temperature))
        return w_bad(r, "loss_fn_config.temperature must be above 0 and fit a float32.");
    b->temperature = (float)temperature;
    b->loss.cap = (float)cap;
    b->loss.beta = (float)beta;
    return 0;
}

static int read_loss(struct w_batch *b, const json_t *input, bool backward, struct refusal *r)
{
    const char *name = json_string_value(json_object_get(input, "loss_fn"));
    int kind = name ? loss_by_name(name) : -1;

    if (kind < 0)
        return unknown_loss(name, r);
    if (backward && kind == LOSS_FORWARD_LOGPROB)
        return w_bad(r, "forward_logprob has no gradient: use it on forward-passes.");
    b->loss = loss_defaults((enum loss_kind)kind);
    return read_config(b, json_object_get(input, "loss_fn_config"), r);
}

int w_batch_read(struct w_batch *b, const json_t *input, struct w_pack *pack,
                 const struct w_limits *limits, bool backward, struct refusal *r)
{
    const json_t *data = json_object_get(input, "data"), *v;
    struct reader rd = {.b = b, .pack = pack, .limits = limits, .r = r};
    size_t i, n = json_array_size(data);

    *b = (struct w_batch){0};
    if (!json_is_object(input))
        return w_bad(r, "payload.%s must be an object.",
                     backward ? "forward_backward_input" : "forward_input");
    if (read_loss(b, input, backward, r) < 0)
        return -1;
    if (n == 0 || n > DATA_MAX)
        return refuse(r, REFUSAL_W_INVALID_DATUM, "data must be a list of 1 to %d data.", DATA_MAX);
    b->n = (int)n;
    b->data = arena_alloc(&b->arena, n * sizeof *b->data);
    b->ids = arena_alloc(&b->arena, n * sizeof *b->ids);
    if (!b->data || !b->ids)
        return no_memory(r);
    memset(b->data, 0, n * sizeof *b->data);
    memset(b->ids, 0, n * sizeof *b->ids);
    json_array_foreach ((json_t *)data, i, v) {
        rd.index = (int)i;
        if (read_datum(&rd, v) < 0)
            return -1;
    }
    return check_ids(b, r);
}

void w_batch_release(struct w_batch *b)
{
    arena_release(&b->arena);
    *b = (struct w_batch){0};
}
