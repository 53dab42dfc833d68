/* text/tokenizer_impl.h - the inside of struct tokenizer, for its own files: tokenizer_load.c fills
 * it, tokenizer.c reads it. */
#ifndef TEXT_TOKENIZER_IMPL_H
#define TEXT_TOKENIZER_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/char_class.h"
#include "text/normalize.h"
#include "text/pretoken.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

enum { NORMAL_MAX_STEPS = 4 };

struct tokenizer {
    atomic_int refs;
    struct char_classes classes;
    struct vocab vocab;
    struct bpe bpe;
    bool ignore_merges;          /* a word that is a piece is that piece */
    struct added_set raw;        /* looked for before the normaliser */
    struct added_set normalized; /* and after it */
    enum normal_form forms[NORMAL_MAX_STEPS];
    size_t n_forms;
    struct pretoken pretoken;
    struct token_list prefix, suffix; /* of the post-processor */
    int32_t bos, eos, pad;            /* -1: none */
};

struct tokenizer_text;

/* Fills a zeroed tokenizer. `config` may be NULL. */
int tokenizer_load(struct tokenizer *t, const struct tokenizer_text *text, const json_t *config,
                   struct err *e);
void tokenizer_release(struct tokenizer *t);
#endif
