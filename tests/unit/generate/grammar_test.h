/* What the tests of constrained decoding share: a vocabulary, and whether a text belongs to a
 * language. */
#ifndef GRAMMAR_TEST_H
#define GRAMMAR_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"
#include "text/tokenizer.h"

#define MODELS "tests/vectors/models/"

static inline struct token_trie *open_trie(const char *dir)
{
    struct err e = {0};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct tokenizer *t = fd < 0 ? NULL : tokenizer_open(fd, &e);
    struct token_trie *trie = t ? token_trie_new(t, tokenizer_vocab_size(t), &e) : NULL;

    if (!trie)
        fail_msg("%s: %s", dir, e.msg);
    tokenizer_unref(t);
    close(fd);
    return trie;
}

static inline struct grammar *schema_grammar(const char *text)
{
    struct err e = {0};
    json_t *schema = json_parse(text, strlen(text), &e);
    struct grammar *g = schema ? grammar_schema(schema, &e) : NULL;

    if (!g)
        fail_msg("%s: %s (%s)", text, e.msg, e.detail);
    json_decref(schema);
    return g;
}

static inline struct grammar_run *start_run(struct grammar *g, struct token_trie *trie)
{
    struct err e = {0};
    struct grammar_bound *b = grammar_bind(g, trie, &e);
    struct grammar_run *r = b ? grammar_run_new(b, &e) : NULL;

    assert_non_null(r);
    grammar_bound_unref(b);
    return r;
}

static inline bool mask_has(const uint64_t *mask, int32_t id)
{
    return mask[(uint32_t)id / 64] >> ((uint32_t)id % 64) & 1;
}

/* How many bytes of the text are a beginning of a string of the language, one token a byte; *whole:
 * all of it may be the answer. */
static inline size_t bytes_that_fit(struct grammar *g, struct token_trie *trie, const char *text,
                                    size_t len, bool *whole)
{
    struct grammar_run *r = start_run(g, trie);
    struct err e = {0};
    size_t i;

    for (i = 0; i < len; i++) {
        int32_t id = tokenizer_find(trie->tokenizer, text + i, 1);

        assert_true(id >= 0);
        if (grammar_run_accept(r, id, &e) < 0)
            break;
    }
    *whole = i == len && grammar_run_may_end(r);
    grammar_run_free(r);
    return i;
}

static inline bool fits(struct grammar *g, struct token_trie *trie, const char *text)
{
    bool whole;

    bytes_that_fit(g, trie, text, strlen(text), &whole);
    return whole;
}
#endif
