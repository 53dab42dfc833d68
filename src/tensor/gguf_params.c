/* The numbers behind an architecture, from the metadata. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tensor/gguf_arch.h"
#include "tensor/st_index.h"

static const char *const architectures[] = {"llama", "qwen2", "qwen3", "lfm2"};

static int read_arch(const struct gguf *g, struct gguf_params *p, struct err *e)
{
    struct gguf_str name = {0};
    char shown[96];

    if (gguf_get_str(g, "general.architecture", &name, e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        if (strlen(architectures[i]) == name.len &&
            memcmp(architectures[i], name.s, name.len) == 0) {
            snprintf(p->arch, sizeof p->arch, "%s", architectures[i]);
            return 0;
        }
    }
    return err_set(
        e, ERR_FORMAT,
        "architecture \"%s\" is not supported; llama, qwen2, qwen3 and lfm2 are imported",
        st_name_str(name.s, name.len, shown));
}

static const char *key_of(const struct gguf_params *p, const char *name, char out[96])
{
    snprintf(out, 96, "%s.%s", p->arch, name);
    return out;
}

/* A count that must be there and be 1 .. 2^31-1. */
static int read_count(const struct gguf *g, const struct gguf_params *p, const char *name,
                      int64_t *out, struct err *e)
{
    char key[96];

    if (gguf_get_int(g, key_of(p, name, key), out, e) < 0)
        return -1;
    if (*out < 1 || *out > INT32_MAX)
        return err_set(e, ERR_FORMAT, "metadata \"%s\" is %" PRId64 ", out of range", key, *out);
    return 0;
}

static int read_optional_count(const struct gguf *g, const struct gguf_params *p, const char *name,
                               int64_t *out, struct err *e)
{
    char key[96];

    return gguf_has(g, key_of(p, name, key)) ? read_count(g, p, name, out, e) : 0;
}

/* lfm2 gives one number a layer: 0 for a layer with a convolution. */
static int read_layer_kv_heads(const struct gguf *g, struct gguf_params *p, struct err *e)
{
    char key[96];
    size_t n = 0;

    if (gguf_get_ints(g, key_of(p, "attention.head_count_kv", key), &p->layer_kv_heads, &n, e) < 0)
        return -1;
    if (n != (size_t)p->layers)
        return err_set(e, ERR_FORMAT, "metadata \"%s\" has %zu entries for %" PRId64 " layers", key,
                       n, p->layers);
    for (size_t i = 0; i < n; i++) {
        int64_t v = p->layer_kv_heads[i];

        if (v < 0 || v > INT32_MAX || (v && p->kv_heads && v != p->kv_heads))
            return err_set(e, ERR_FORMAT, "metadata \"%s\" has different head counts", key);
        p->kv_heads = v ? v : p->kv_heads;
    }
    if (!p->kv_heads)
        return err_set(e, ERR_FORMAT, "metadata \"%s\" has no layer with attention", key);
    return 0;
}

static int read_heads(const struct gguf *g, struct gguf_params *p, struct err *e)
{
    if (read_count(g, p, "attention.head_count", &p->heads, e) < 0)
        return -1;
    if (strcmp(p->arch, "lfm2") == 0) {
        if (read_layer_kv_heads(g, p, e) < 0)
            return -1;
    } else {
        p->kv_heads = p->heads;
        if (read_optional_count(g, p, "attention.head_count_kv", &p->kv_heads, e) < 0)
            return -1;
    }
    p->head_dim = p->hidden / p->heads;
    if (read_optional_count(g, p, "rope.dimension_count", &p->head_dim, e) < 0 ||
        read_optional_count(g, p, "attention.key_length", &p->head_dim, e) < 0)
        return -1;
    if (p->heads % p->kv_heads || p->head_dim < 2 || p->head_dim % 2)
        return err_set(e, ERR_FORMAT,
                       "%" PRId64 " heads, %" PRId64
                       " key and value heads and a head size of %" PRId64 " do not fit together",
                       p->heads, p->kv_heads, p->head_dim);
    return 0;
}

/* The float32 in the file stands for the shortest decimal that reads back to it: 1e-05,
 * not 9.99999975e-06. */
static double shortest(double v)
{
    char text[32];

    if ((double)(float)v != v)
        return v;
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v)
            break;
    }
    return strtod(text, NULL);
}

static int read_real(const struct gguf *g, const struct gguf_params *p, const char *name,
                     double *out, struct err *e)
{
    char key[96];

    if (gguf_get_float(g, key_of(p, name, key), out, e) < 0)
        return -1;
    if (!(*out > 0) || !isfinite(*out))
        return err_set(e, ERR_FORMAT, "metadata \"%s\" is %g, not a positive number", key, *out);
    *out = shortest(*out);
    return 0;
}

static int refuse_unsupported(const struct gguf *g, const struct gguf_params *p, struct err *e)
{
    struct gguf_str scaling = {0};
    char key[96], shown[96];
    int64_t experts = 0;

    if (gguf_has(g, key_of(p, "expert_count", key)) && gguf_get_int(g, key, &experts, e) < 0)
        return -1;
    if (experts > 0)
        return err_set(e, ERR_FORMAT,
                       "the model is a mixture of %" PRId64 " experts, which is not supported",
                       experts);
    if (!gguf_has(g, key_of(p, "rope.scaling.type", key)))
        return 0;
    if (gguf_get_str(g, key, &scaling, e) < 0)
        return -1;
    if (scaling.len == 4 && memcmp(scaling.s, "none", 4) == 0)
        return 0;
    return err_set(e, ERR_FORMAT, "rope scaling \"%s\" is not supported",
                   st_name_str(scaling.s, scaling.len, shown));
}

static int read_token(const struct gguf *g, const char *key, int64_t vocab, int64_t *out,
                      struct err *e)
{
    *out = -1;
    if (!gguf_has(g, key))
        return 0;
    if (gguf_get_int(g, key, out, e) < 0)
        return -1;
    if (*out == UINT32_MAX) /* how some writers say "none" */
        *out = -1;
    if (*out < -1 || *out >= vocab)
        return err_set(e, ERR_FORMAT, "metadata \"%s\" is %" PRId64 ", outside the vocabulary", key,
                       *out);
    return 0;
}

static int read_tokens(const struct gguf *g, struct gguf_params *p, struct err *e)
{
    const struct gguf_tensor *embedding = gguf_find(g, "token_embd.weight");

    if (!embedding || embedding->ndim != 2)
        return err_set(e, ERR_FORMAT, "tensor \"token_embd.weight\" is missing or not a matrix");
    p->vocab = embedding->shape[0];
    p->tied = !gguf_find(g, "output.weight");
    if (read_token(g, "tokenizer.ggml.bos_token_id", p->vocab, &p->bos, e) < 0 ||
        read_token(g, "tokenizer.ggml.eos_token_id", p->vocab, &p->eos, e) < 0 ||
        read_token(g, "tokenizer.ggml.eot_token_id", p->vocab, &p->eot, e) < 0 ||
        read_token(g, "tokenizer.ggml.unknown_token_id", p->vocab, &p->unknown, e) < 0)
        return -1;
    return read_token(g, "tokenizer.ggml.padding_token_id", p->vocab, &p->pad, e);
}

/* Llama3 scaling with low factor 1, high factor 4, context 8192: how often frequency j turns in it.
 */
static double llama3_turns(const struct gguf_params *p, int64_t j)
{
    const double pi = 3.14159265358979323846;

    return 8192 * pow(p->theta, -2.0 * (double)j / (double)p->head_dim) / (2 * pi);
}

/* What it divides a frequency by. */
static double llama3_divisor(double turns, double factor)
{
    double s = (turns - 1) / 3;

    if (turns < 1)
        return factor;
    return turns > 4 ? 1 : 1 / ((1 - s) / factor + s);
}

/* The factor behind the divisor of the lowest frequency. */
static double llama3_factor(double turns, double divisor)
{
    double s = (turns - 1) / 3;

    return turns < 1 || turns >= 4 ? divisor : (1 - s) / (1 / divisor - s);
}

/* rope_freqs.weight holds the divisors. They must be those of llama3 scaling: nothing else is
 * known. */
static int read_rope_freqs(const struct gguf *g, struct gguf_params *p, struct err *e)
{
    const struct gguf_tensor *t = gguf_find(g, "rope_freqs.weight");
    float divisor[512];
    char factor[32];
    int64_t n = p->head_dim / 2;
    bool same = true;

    if (!t)
        return 0;
    if (strcmp(p->arch, "llama") != 0 || t->elements != n || n > 512)
        return err_set(e, ERR_FORMAT, "tensor \"rope_freqs.weight\" does not fit the head size");
    if (gguf_read_f32(g, t, 0, n, divisor, e) < 0)
        return err_wrap(e, "rope_freqs.weight");
    /* four digits: the divisors are float32, and all of them are compared below */
    snprintf(factor, sizeof factor, "%.4g",
             llama3_factor(llama3_turns(p, n - 1), (double)divisor[n - 1]));
    p->rope_factor = strtod(factor, NULL);
    for (int64_t j = 0; j < n; j++) {
        double want = llama3_divisor(llama3_turns(p, j), p->rope_factor);

        same = same && fabs((double)divisor[j] - want) <= 1e-4 * want;
    }
    if (!same || !(p->rope_factor > 1))
        return err_set(
            e, ERR_FORMAT,
            "tensor \"rope_freqs.weight\" is not llama3 rope scaling, the only kind supported");
    return 0;
}

int gguf_params_read(const struct gguf *g, struct gguf_params *p, struct err *e)
{
    *p = (struct gguf_params){0};
    if (read_arch(g, p, e) < 0 || refuse_unsupported(g, p, e) < 0 ||
        read_count(g, p, "embedding_length", &p->hidden, e) < 0 ||
        read_count(g, p, "feed_forward_length", &p->ff, e) < 0 ||
        read_count(g, p, "block_count", &p->layers, e) < 0 ||
        read_count(g, p, "context_length", &p->context, e) < 0 || read_heads(g, p, e) < 0)
        goto fail;
    if (read_real(g, p, "attention.layer_norm_rms_epsilon", &p->eps, e) < 0)
        goto fail;
    p->theta = 10000;
    if (gguf_has(g, key_of(p, "rope.freq_base", (char[96]){0})) &&
        read_real(g, p, "rope.freq_base", &p->theta, e) < 0)
        goto fail;
    if (p->layer_kv_heads && read_count(g, p, "shortconv.l_cache", &p->conv_taps, e) < 0)
        goto fail;
    if (read_tokens(g, p, e) < 0 || read_rope_freqs(g, p, e) < 0)
        goto fail;
    return 0;

fail:
    gguf_params_release(p);
    return -1;
}

void gguf_params_release(struct gguf_params *p)
{
    free(p->layer_kv_heads);
    p->layer_kv_heads = NULL;
}
