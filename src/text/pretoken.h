/* text/pretoken.h - cuts a piece of text into words, as the pre_tokenizer of tokenizer.json says.
 *
 * A pretoken is a list of steps (Split, Digits, ByteLevel); each step cuts every part that the one
 * before it left. Patterns run in PCRE2 with JIT, UTF and UCP, after a translation of the few
 * escapes that mean something else in Oniguruma, where these patterns come from; the best known
 * ones have a scanner by hand (text/scan.h).
 *
 * Calling order: pretoken_init, then pretoken_words any number of times. The object is immutable; a
 * call needs a pretoken_work of its own (zeroed, released by the caller). Formats:
 * docs/formats/tokenizer.md. */
#ifndef TEXT_PRETOKEN_H
#define TEXT_PRETOKEN_H

#include <jansson.h>
#include <stddef.h>

#include "text/scan.h"

struct err;
struct char_classes;

enum { PRETOKEN_MAX_STEPS = 8 };

enum pretoken_kind {
    STEP_DIGITS,     /* each number character alone */
    STEP_DIGIT_RUNS, /* each run of number characters */
    STEP_SCAN,       /* a scanner by hand: words without gaps */
    STEP_REGEX,      /* matches and what lies between them */
};

struct pretoken_step {
    enum pretoken_kind kind;
    scan_fn *scan;
    void *regex; /* pcre2_code, owned */
    int keep_matches, keep_gaps;
};

struct pretoken {
    struct pretoken_step steps[PRETOKEN_MAX_STEPS];
    size_t n;
};

struct pretoken_work {
    void *match; /* pcre2_match_data, owned */
    void *context, *stack;
};

/* `spec` is the pre_tokenizer object. ERR_FORMAT names the part that is not supported; one without
 * ByteLevel is not byte-level and refused too. */
int pretoken_init(struct pretoken *p, const json_t *spec, struct err *e);
void pretoken_release(struct pretoken *p);
void pretoken_work_release(struct pretoken_work *w);

/* Calls word(arg, text, len, e) for each word of the well-formed text, in order, len >= 1. -1 with
 * what `word` set, or ERR_ARG when a pattern gives up on this text. */
typedef int word_fn(void *arg, const char *text, size_t len, struct err *e);
int pretoken_words(const struct pretoken *p, const struct char_classes *cc, const char *text,
                   size_t len, struct pretoken_work *w, word_fn *word, void *arg, struct err *e);

/* A step for one pattern, for tests: without the scanner when `by_hand` is 0. */
int pretoken_add_pattern(struct pretoken *p, const char *pattern, int by_hand, struct err *e);
#endif
