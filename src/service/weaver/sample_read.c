#include <math.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/json.h"
#include "engine/image.h"
#include "model/config.h"
#include "service/weaver/datums.h"
#include "service/weaver/impl.h"
#include "service/weaver/samplers.h"
#include "service/weaver/samples.h"
#include "service/weaver/tensors.h"

static int check_transport(const json_t *o, const char *key, struct refusal *r)
{
    const char *word = NULL;

    if (w_str(o, key, &word, r) < 0)
        return -1;
    if (word && strcmp(word, "inline") != 0)
        return refuse(r, REFUSAL_W_UNSUPPORTED_OPTION,
                      "%s must be inline: this server gives no "
                      "references to files.",
                      key);
    return 0;
}

/* ---- stops ---- */

static int read_stop_strings(struct sample_op *x, const json_t *list, struct refusal *r)
{
    const json_t *v;
    size_t i;

    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list) || json_array_size(list) > SAMPLE_STOPS_MAX)
        return w_bad(r, "stop must be a list of at most %d strings.", SAMPLE_STOPS_MAX);
    json_array_foreach ((json_t *)list, i, v) {
        struct stop_string *s = &x->p.stops[i];

        if (!json_is_string(v) || json_string_length(v) < 1 ||
            json_string_length(v) > STOP_BYTES_MAX)
            return w_bad(r, "A stop string has 1 to %d bytes.", STOP_BYTES_MAX);
        s->len = json_string_length(v);
        s->text = arena_strdup(&x->arena, json_string_value(v), s->len);
        if (!s->text)
            return w_refuse_memory(r);
        x->p.n_stops = (int)i + 1;
    }
    return 0;
}

static int read_stop_ids(struct sample_op *x, const json_t *list, struct refusal *r)
{
    const struct model_config *c = x->sampler->image->files->config;
    const json_t *v;
    int64_t id;
    size_t i;

    for (int k = 0; k < c->n_eos && k < GEN_STOP_IDS_MAX / 2; k++)
        x->p.stop_ids[x->p.n_stop_ids++] = c->eos[k];
    x->p.n_own_stop_ids = x->p.n_stop_ids;
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return w_bad(r, "stop_token_ids must be a list of tokens.");
    json_array_foreach ((json_t *)list, i, v) {
        if (!json_is_whole(v, &id) || id < 0 || id >= x->sampler->limits.vocab)
            return refuse(r, REFUSAL_W_TOKEN_OUT_OF_RANGE,
                          "stop_token_ids must hold tokens from 0 to %d.",
                          x->sampler->limits.vocab - 1);
        if (x->p.n_stop_ids == GEN_STOP_IDS_MAX)
            return w_bad(r, "stop_token_ids may hold at most %d tokens.",
                         GEN_STOP_IDS_MAX - x->p.n_own_stop_ids);
        x->p.stop_ids[x->p.n_stop_ids++] = (int32_t)id;
    }
    return 0;
}

/* ---- numbers ---- */

static int read_seed(struct sample_op *x, const json_t *params, struct refusal *r)
{
    static const char *const keys[] = {"sampling_seed", "seed"};
    int64_t seed = 0;

    for (int i = 0; i < 2; i++) {
        if (json_is_null(json_object_get(params, keys[i])) || !json_object_get(params, keys[i]))
            continue;
        if (w_int(params, keys[i], INT64_MIN, INT64_MAX, &seed, r) < 0)
            return -1;
        x->p.seed = (uint64_t)seed;
        return 0;
    }
    return RAND_bytes((unsigned char *)&x->p.seed, sizeof x->p.seed) == 1
               ? 0
               : refuse(r, REFUSAL_W_INTERNAL_ERROR, "no random bytes");
}

static int read_numbers(struct sample_op *x, const json_t *params, struct refusal *r)
{
    double temperature = 1, top_p = 1;
    int64_t top_k = -1, max_tokens = SAMPLE_TOKENS_DEFAULT;

    if (params && !json_is_null(params) && !json_is_object(params))
        return w_bad(r, "sampling_params must be an object.");
    if (w_num(params, "temperature", &temperature, r) < 0 ||
        w_num(params, "top_p", &top_p, r) < 0 ||
        w_int(params, "top_k", INT32_MIN, INT32_MAX, &top_k, r) < 0 ||
        w_int(params, "max_tokens", 1, INT32_MAX, &max_tokens, r) < 0)
        return -1;
    if (temperature < 0 || temperature > 1e9)
        return w_bad(r, "temperature must be at least 0.");
    if (!(top_p > 0) || top_p > 1)
        return w_bad(r, "top_p must be above 0 and at most 1.");
    x->p.temperature = (float)temperature;
    x->p.top_p = (float)top_p;
    x->p.top_k = top_k > 0 ? (int)top_k : 0;
    x->p.max_tokens = (int)max_tokens;
    return read_seed(x, params, r);
}

/* ---- what is told beside the tokens ---- */

static int read_centering(struct sample_op *x, const json_t *body, struct refusal *r)
{
    const json_t *o = json_object_get(body, "score_centering");
    int64_t head = 0;

    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return w_bad(r, "score_centering must be an object.");
    if (w_int(o, "head_size", 1, GEN_TOP_MAX, &head, r) < 0 ||
        check_transport(o, "transport", r) < 0)
        return -1;
    if (head == 0)
        return w_bad(r, "score_centering.head_size must be from 1 to %d.", GEN_TOP_MAX);
    if (x->p.temperature != 1 || x->p.top_p != 1 || x->p.top_k != 0)
        return refuse(r, REFUSAL_W_UNSUPPORTED_OPTION,
                      "score_centering tells the unfiltered distribution: temperature and top_p "
                      "must be 1, top_k off.");
    x->p.head = head < x->sampler->limits.vocab ? (int)head : x->sampler->limits.vocab;
    return 0;
}

static int read_extras(struct sample_op *x, const json_t *body, struct refusal *r)
{
    int64_t copies = 1, top = 0;

    if (w_int(body, "num_samples", 1, SAMPLE_COPIES_MAX, &copies, r) < 0 ||
        w_int(body, "topk_prompt_logprobs", 0, GEN_TOP_MAX, &top, r) < 0 ||
        w_flag(body, "prompt_logprobs", &x->p.prompt_logprobs, r) < 0 ||
        w_flag(body, "return_sampling_mask", &x->p.masks, r) < 0 ||
        w_flag(body, "return_old_logprob", &x->p.old_logprobs, r) < 0 ||
        w_flag(body, "return_moe_topk_indices", &x->p.experts, r) < 0 ||
        check_transport(body, "sampling_mask_transport", r) < 0 || read_centering(x, body, r) < 0)
        return -1;
    x->p.copies = (int)copies;
    x->p.prompt_top = top < x->sampler->limits.vocab ? (int)top : x->sampler->limits.vocab;
    return 0;
}

static int read_prompt(struct sample_op *x, const json_t *body, struct refusal *r)
{
    return w_tokens_read(json_object_get(body, "prompt"), &(struct w_pack){0}, &x->arena,
                         &x->sampler->limits, &x->prompt, &x->n_prompt, r);
}

int sample_read(struct sample_op *x, const json_t *body, struct refusal *r)
{
    const json_t *params = json_object_get(body, "sampling_params");

    if (read_prompt(x, body, r) < 0 || read_numbers(x, params, r) < 0 ||
        read_stop_strings(x, json_object_get(params, "stop"), r) < 0 ||
        read_stop_ids(x, json_object_get(params, "stop_token_ids"), r) < 0 ||
        read_extras(x, body, r) < 0)
        return -1;
    if (x->n_prompt < x->sampler->limits.max_tokens)
        return 0;
    return refuse(r, REFUSAL_W_CONTEXT_LENGTH_EXCEEDED,
                  "The prompt fills all %d tokens of this model: nothing can follow.",
                  x->sampler->limits.max_tokens);
}

int sample_read_logprobs(struct sample_op *x, const json_t *body, struct refusal *r)
{
    const json_t *config = json_object_get(body, "loss_fn_config");
    double temperature = 1;

    x->only_logprobs = true;
    x->p = (struct sample_params_w){.temperature = 1, .top_p = 1, .copies = 1};
    x->p.prompt_logprobs = true;
    if (read_prompt(x, body, r) < 0 || w_num(config, "temperature", &temperature, r) < 0 ||
        w_flag(body, "return_rollout_token_expert", &x->p.experts, r) < 0)
        return -1;
    if (!((float)temperature > 0) || !isfinite((float)temperature))
        return w_bad(r, "loss_fn_config.temperature must be above 0 and fit a float32.");
    x->p.prompt_temperature = temperature == 1 ? 0 : (float)temperature;
    return 0;
}
