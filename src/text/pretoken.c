#include "text/pretoken.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/char_class.h"
#include "text/pattern.h"

enum { JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 4 << 20 };

/* ---- from JSON ---- */

static struct pretoken_step *next_step(struct pretoken *p, struct err *e)
{
    if (p->n == PRETOKEN_MAX_STEPS) {
        err_set(e, ERR_FORMAT, "the pre_tokenizer has more than %d steps", PRETOKEN_MAX_STEPS);
        return NULL;
    }
    return &p->steps[p->n];
}

static int add_regex(struct pretoken *p, const char *pattern, bool literal, struct err *e)
{
    struct pretoken_step *s = next_step(p, e);

    if (!s)
        return -1;
    *s = (struct pretoken_step){.kind = STEP_REGEX, .keep_matches = 1, .keep_gaps = 1};
    s->regex = pattern_compile(pattern, literal, e);
    if (!s->regex)
        return -1;
    p->n++;
    return 0;
}

int pretoken_add_pattern(struct pretoken *p, const char *pattern, int by_hand, struct err *e)
{
    scan_fn *scan = by_hand ? scan_for_pattern(pattern) : NULL;
    struct pretoken_step *s;

    if (!scan)
        return add_regex(p, pattern, false, e);
    s = next_step(p, e);
    if (!s)
        return -1;
    *s = (struct pretoken_step){.kind = STEP_SCAN, .scan = scan};
    p->n++;
    return 0;
}

/* Isolated keeps matches and gaps; Removed drops the matches, or with invert the gaps. */
static int set_behavior(struct pretoken_step *s, const char *behavior, bool invert, struct err *e)
{
    if (strcmp(behavior, "Isolated") == 0)
        return 0;
    if (strcmp(behavior, "Removed") != 0)
        return err_set(e, ERR_FORMAT,
                       "the Split behavior \"%s\" is not supported; Isolated and Removed are",
                       behavior);
    if (s->kind == STEP_SCAN && invert)
        return 0; /* a scanner leaves no gaps */
    if (s->kind == STEP_SCAN)
        return err_set(e, ERR_FORMAT, "this Split removes the whole text");
    s->keep_matches = invert;
    s->keep_gaps = !invert;
    return 0;
}

static int add_split(struct pretoken *p, const json_t *spec, struct err *e)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *behavior;
    bool invert = false;

    if (!regex && !literal)
        return err_set(e, ERR_FORMAT, "a Split has neither pattern.Regex nor pattern.String");
    if (json_get_str(spec, "behavior", &behavior, e) < 0 ||
        json_opt_bool(spec, "invert", &invert, e) < 0)
        return -1;
    if (regex ? pretoken_add_pattern(p, regex, 1, e) < 0 : add_regex(p, literal, true, e) < 0)
        return -1;
    return set_behavior(&p->steps[p->n - 1], behavior, invert, e);
}

static int add_digits(struct pretoken *p, const json_t *spec, struct err *e)
{
    struct pretoken_step *s = next_step(p, e);
    bool single = false;

    if (!s || json_opt_bool(spec, "individual_digits", &single, e) < 0)
        return -1;
    *s = (struct pretoken_step){.kind = single ? STEP_DIGITS : STEP_DIGIT_RUNS};
    p->n++;
    return 0;
}

static int add_byte_level(struct pretoken *p, const json_t *spec, struct err *e)
{
    bool prefix = true, regex = true;

    if (json_opt_bool(spec, "add_prefix_space", &prefix, e) < 0 ||
        json_opt_bool(spec, "use_regex", &regex, e) < 0)
        return -1;
    if (prefix)
        return err_set(e, ERR_FORMAT, "ByteLevel with add_prefix_space is not supported");
    return regex ? pretoken_add_pattern(p, scan_gpt2_pattern, 1, e) : 0;
}

static int add_step(struct pretoken *p, const json_t *spec, bool *byte_level, struct err *e)
{
    const char *type;

    if (json_get_str(spec, "type", &type, e) < 0)
        return err_wrap(e, "pre_tokenizer");
    if (*byte_level)
        return err_set(e, ERR_FORMAT, "the pre_tokenizer %s after ByteLevel is not supported",
                       type);
    if (strcmp(type, "Split") == 0)
        return add_split(p, spec, e);
    if (strcmp(type, "Digits") == 0)
        return add_digits(p, spec, e);
    if (strcmp(type, "ByteLevel") != 0)
        return err_set(e, ERR_FORMAT,
                       "the pre_tokenizer %s is not supported; Split, Digits and ByteLevel are",
                       type);
    *byte_level = true;
    return add_byte_level(p, spec, e);
}

static int add_steps(struct pretoken *p, const json_t *spec, struct err *e)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    const json_t *list = json_object_get(spec, "pretokenizers"), *item;
    bool byte_level = false;
    size_t i;

    if (!type || strcmp(type, "Sequence") != 0) {
        if (add_step(p, spec, &byte_level, e) < 0)
            return -1;
    } else {
        json_array_foreach (list, i, item)
            if (add_step(p, item, &byte_level, e) < 0)
                return -1;
    }
    if (!byte_level)
        return err_set(e, ERR_FORMAT,
                       "the pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
    return 0;
}

int pretoken_init(struct pretoken *p, const json_t *spec, struct err *e)
{
    *p = (struct pretoken){0};
    if (!json_is_object(spec))
        return err_set(e, ERR_FORMAT,
                       "there is no pre_tokenizer; only byte-level BPE is supported");
    if (add_steps(p, spec, e) == 0)
        return 0;
    pretoken_release(p);
    return -1;
}

void pretoken_release(struct pretoken *p)
{
    for (size_t i = 0; i < p->n; i++)
        pcre2_code_free(p->steps[i].regex);
    *p = (struct pretoken){0};
}

/* ---- cutting ---- */

struct cut {
    const struct pretoken *p;
    const struct char_classes *cc;
    struct pretoken_work *w;
    word_fn *word;
    void *arg;
    struct err *e;
};

static int run_step(const struct cut *c, size_t step, const char *text, size_t len);

static int cut_scan(const struct cut *c, size_t step, const char *text, size_t len)
{
    scan_fn *scan = c->p->steps[step].scan;
    const unsigned char *p = (const unsigned char *)text, *end = p + len;

    for (size_t n; p < end; p += n) {
        n = scan(c->cc, p, end);
        if (run_step(c, step + 1, (const char *)p, n) < 0)
            return -1;
    }
    return 0;
}

static int cut_digits(const struct cut *c, size_t step, const char *text, size_t len)
{
    bool single = c->p->steps[step].kind == STEP_DIGITS;
    const unsigned char *p = (const unsigned char *)text, *end = p + len, *from = p;
    bool in_number = false; /* whether [from, p) is a run of numbers */

    for (unsigned n; p < end; p += n) {
        bool number = char_class_at(c->cc, p, &n) == CC_NUMBER;

        if (p > from && (number != in_number || (number && single))) {
            if (run_step(c, step + 1, (const char *)from, (size_t)(p - from)) < 0)
                return -1;
            from = p;
        }
        in_number = number;
    }
    return run_step(c, step + 1, (const char *)from, (size_t)(end - from));
}

static int make_work(struct pretoken_work *w, struct err *e)
{
    if (w->match)
        return 0;
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    w->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!w->match || !w->context || !w->stack)
        return err_nomem(e);
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return 0;
}

void pretoken_work_release(struct pretoken_work *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    *w = (struct pretoken_work){0};
}

/* The next match from `at` on: 1 and its bounds, 0 none, -1. */
static int next_match(const struct cut *c, const struct pretoken_step *s, const char *text,
                      size_t len, size_t at, size_t *start, size_t *end)
{
    int rc = pcre2_match(s->regex, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, c->w->match,
                         c->w->context);
    const PCRE2_SIZE *ov;

    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return err_set(c->e, ERR_ARG,
                       "the tokenizer's pattern gives up on this text (PCRE2 error %d)", rc);
    ov = pcre2_get_ovector_pointer(c->w->match);
    *start = ov[0];
    *end = ov[1];
    return *start <= *end && *start >= at
               ? 1
               : err_set(c->e, ERR_FORMAT, "the tokenizer's pattern moves the start of a match");
}

static int cut_regex(const struct cut *c, size_t step, const char *text, size_t len)
{
    const struct pretoken_step *s = &c->p->steps[step];
    size_t gap = 0, at = 0, start = 0, end = 0;
    int found = 0;

    if (make_work(c->w, c->e) < 0)
        return -1;
    while (at <= len && (found = next_match(c, s, text, len, at, &start, &end)) > 0) {
        if (start > gap && s->keep_gaps && run_step(c, step + 1, text + gap, start - gap) < 0)
            return -1;
        if (end > start && s->keep_matches && run_step(c, step + 1, text + start, end - start) < 0)
            return -1;
        gap = at = end;
        if (end == start) { /* an empty match cuts, and the search goes on behind the character */
            for (at++; at < len && ((unsigned char)text[at] & 0xc0) == 0x80;)
                at++;
        }
    }
    if (found < 0)
        return -1;
    return gap < len && s->keep_gaps ? run_step(c, step + 1, text + gap, len - gap) : 0;
}

static int run_step(const struct cut *c, size_t step, const char *text, size_t len)
{
    if (step == c->p->n)
        return c->word(c->arg, text, len, c->e);
    switch (c->p->steps[step].kind) {
    case STEP_DIGITS:
    case STEP_DIGIT_RUNS:
        return cut_digits(c, step, text, len);
    case STEP_SCAN:
        return cut_scan(c, step, text, len);
    case STEP_REGEX:
        return cut_regex(c, step, text, len);
    }
    return 0;
}

int pretoken_words(const struct pretoken *p, const struct char_classes *cc, const char *text,
                   size_t len, struct pretoken_work *w, word_fn *word, void *arg, struct err *e)
{
    struct cut c = {.p = p, .cc = cc, .w = w, .word = word, .arg = arg, .e = e};

    return len > 0 ? run_step(&c, 0, text, len) : 0;
}
