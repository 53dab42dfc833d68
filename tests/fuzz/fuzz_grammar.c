/* Foreign bytes as a JSON schema, and an answer under it.
 *
 * What must hold: no crash and no leak; a refusal has a sentence and a path; under a schema that is
 * taken, a walk along tokens of the masks is never stuck, every token of a mask is accepted, and a
 * text that is over is JSON. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS = 48, SCHEMA_MAX = 4096 };

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static struct token_trie *open_trie(void)
{
    struct err e = {0};
    int fd = open("tests/vectors/models/tiny-llama", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct tokenizer *t = fd < 0 ? NULL : tokenizer_open(fd, &e);
    struct token_trie *trie = t ? token_trie_new(t, tokenizer_vocab_size(t), &e) : NULL;

    CHECK(trie);
    tokenizer_unref(t);
    close(fd);
    return trie;
}

/* A token of the mask; -1: there is none. */
static int32_t draw(const uint64_t *mask, int vocab, double u)
{
    int n = 0, k;

    for (int i = 0; i < vocab; i++)
        n += mask[i / 64] >> (i % 64) & 1;
    k = (int)(u * n);
    for (int i = 0; i < vocab; i++)
        if ((mask[i / 64] >> (i % 64) & 1) && k-- == 0)
            return i;
    return -1;
}

static void walk(struct grammar_bound *b, uint64_t seed)
{
    const struct token_trie *trie = grammar_bound_trie(b);
    uint64_t *mask = calloc(grammar_mask_words(trie->vocab), sizeof *mask);
    struct err e = {0};
    struct grammar_run *r = grammar_run_new(b, &e);
    struct buf text = {0};

    for (int i = 0; i < STEPS && !grammar_run_is_over(r); i++) {
        const char *bytes;
        size_t len;
        int32_t id;

        CHECK(grammar_run_mask(r, NULL, 0, mask, &e) == 0);
        id = draw(mask, trie->vocab, rng_unit(seed, 0, (uint64_t)i, 0));
        if (id < 0) {
            CHECK(grammar_run_may_end(r));
            break;
        }
        CHECK(grammar_run_accept(r, id, &e) == 0);
        CHECK(tokenizer_token_bytes(trie->tokenizer, id, &bytes, &len));
        buf_add(&text, bytes, len);
    }
    if (grammar_run_is_over(r)) {
        json_t *v = json_loadb(buf_str(&text), text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

        CHECK(v);
        json_decref(v);
    }
    buf_release(&text);
    grammar_run_free(r);
    free(mask);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct token_trie *trie;
    struct err e = {0};
    json_t *schema = size <= SCHEMA_MAX ? json_parse((const char *)data, size, &e) : NULL;
    struct grammar *g;

    if (!schema)
        return 0;
    if (!trie)
        trie = open_trie();
    g = grammar_schema(schema, &e);
    if (g) {
        struct grammar_bound *b = grammar_bind(g, trie, &e);

        CHECK(b);
        walk(b, size);
        walk(b, size + 1);
        grammar_bound_unref(b);
    } else {
        CHECK(e.code == ERR_ARG && e.msg[0] && (!e.detail[0] || e.detail[0] == '.'));
    }
    grammar_unref(g);
    json_decref(schema);
    return 0;
}
