/* Foreign bytes as a pass with a tensor pack: the first line is the manifest, the rest the pack.
 *
 * What must hold: no crash and no leak; a refusal has a code and a sentence; what is accepted has
 * as many rows as tokens, tokens and targets within the vocabulary and finite numbers; and the
 * memory that was taken is bounded by what came, whatever sizes are claimed. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "service/refusal.h"
#include "service/weaver/datums.h"
#include "service/weaver/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

enum {
    VOCAB = 320,
    TOKENS_MAX = 512,
    PACK_MAX = 1 << 20,
    FIXED_BYTES = 1 << 16,
    BYTES_A_BYTE = 64
};

static void check_finite(const float *v, int n)
{
    for (int i = 0; v && i < n; i++)
        CHECK(isfinite(v[i]));
}

static void check_datum(const struct train_datum *d)
{
    const struct loss_datum *l = &d->loss;

    CHECK(l->n >= 1 && l->n <= TOKENS_MAX);
    for (int i = 0; i < l->n; i++) {
        CHECK(d->tokens[i] >= 0 && d->tokens[i] < VOCAB);
        CHECK(l->targets[i] == -100 || (l->targets[i] >= 0 && l->targets[i] < VOCAB));
    }
    check_finite(l->weights, l->n);
    check_finite(l->mask, l->n);
    check_finite(l->old_logprobs, l->n);
    check_finite(l->advantages, l->n);
    check_finite(l->surrogate, l->n);
}

static void check_batch(const struct w_batch *b)
{
    int64_t rows = 0;

    for (int i = 0; i < b->n; i++) {
        check_datum(&b->data[i]);
        rows += b->data[i].loss.n;
    }
    CHECK(b->n >= 1 && rows == b->rows);
    CHECK(isfinite(b->temperature) && b->temperature > 0);
}

static void read_batch(const json_t *payload, struct w_pack *pack, size_t came, const char *input)
{
    const struct w_limits limits = {.vocab = VOCAB, .max_tokens = TOKENS_MAX};
    struct refusal r = {0};
    struct w_batch b;

    pack->read = 0;
    if (w_batch_read(&b, json_object_get(payload, input), pack, &limits,
                     strcmp(input, "forward_input") != 0, &r) == 0)
        check_batch(&b);
    else
        CHECK(r.code != REFUSAL_NONE && r.message[0]);
    CHECK(b.arena.used <= FIXED_BYTES + BYTES_A_BYTE * (came + pack->n));
    w_batch_release(&b);
    refusal_clear(&r);
}

static void try_pass(const json_t *manifest, const void *raw, size_t n, size_t came)
{
    const json_t *payload = json_object_get(json_object_get(manifest, "request"), "payload");
    struct refusal r = {0};
    struct w_pack pack;

    if (w_pack_open(&pack, json_object_get(manifest, "tensor_pack"), raw, n, PACK_MAX, &r) == 0) {
        CHECK(pack.n <= PACK_MAX);
        read_batch(payload, &pack, came, "forward_input");
        read_batch(payload, &pack, came, "forward_backward_input");
    } else {
        CHECK(r.code != REFUSAL_NONE && r.message[0]);
    }
    w_pack_release(&pack);
    refusal_clear(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = memchr(data, '\n', size);
    size_t text = line ? (size_t)(line - data) : size, left = line ? size - text - 1 : 0;
    unsigned char *raw = malloc(left ? left : 1); /* its end is where a sanitizer looks */
    struct err e = {0};
    json_t *manifest = json_parse((const char *)data, text, &e);

    if (manifest && raw) {
        if (left)
            memcpy(raw, line + 1, left);
        try_pass(manifest, raw, left, size);
    }
    json_decref(manifest);
    free(raw);
    return 0;
}
