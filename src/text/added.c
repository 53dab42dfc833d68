#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/char_class.h"
#include "text/utf8.h"

int added_put(struct added_set *s, const struct added_token *t, struct err *e)
{
    struct added_token *grown = realloc(s->tokens, (s->n + 1) * sizeof *grown);
    char *text;

    if (!grown)
        return err_nomem(e);
    s->tokens = grown;
    text = malloc(t->len);
    if (!text)
        return err_nomem(e);
    memcpy(text, t->text, t->len);
    s->tokens[s->n] = *t;
    s->tokens[s->n++].text = text;
    return 0;
}

static int by_text(const void *pa, const void *pb)
{
    const struct added_token *a = pa, *b = pb;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->text, b->text, n);

    return c ? c : (a->len > b->len) - (a->len < b->len);
}

void added_seal(struct added_set *s)
{
    size_t at = 0;
    int n_starts = 0;

    if (s->n > 1)
        qsort(s->tokens, s->n, sizeof *s->tokens, by_text);
    s->only_start = -1;
    for (int b = 0; b < 256; b++) {
        s->first[b] = (uint32_t)at;
        while (at < s->n && (unsigned char)s->tokens[at].text[0] == b)
            at++;
        s->starts[b] = at > s->first[b];
        if (s->starts[b] && n_starts++ == 0)
            s->only_start = b;
    }
    s->first[256] = (uint32_t)at;
    if (n_starts > 1)
        s->only_start = -1;
}

void added_release(struct added_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->tokens[i].text);
    free(s->tokens);
    *s = (struct added_set){0};
}

/* First index in [lo, hi) whose byte at `depth` is >= want; all of them are longer than depth. */
static size_t lower_bound(const struct added_set *s, size_t lo, size_t hi, size_t depth, int want)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if ((unsigned char)s->tokens[mid].text[depth] < want)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token that the text at p begins with: the sorted tokens narrowed byte by byte. */
static const struct added_token *longest_at(const struct added_set *s, const unsigned char *p,
                                            size_t len, bool special_as_text)
{
    const struct added_token *best = NULL;
    size_t lo = s->first[p[0]], hi = s->first[p[0] + 1];

    for (size_t depth = 1; lo < hi; depth++) {
        if (s->tokens[lo].len == depth) { /* the shorter sorts first */
            if (!special_as_text || !s->tokens[lo].special)
                best = &s->tokens[lo];
            while (lo < hi && s->tokens[lo].len == depth)
                lo++;
        }
        if (depth == len || lo == hi)
            break;
        lo = lower_bound(s, lo, hi, depth, p[depth]);
        hi = lower_bound(s, lo, hi, depth, p[depth] + 1);
    }
    return best;
}

static bool is_word_char(const struct char_classes *cc, const unsigned char *p)
{
    unsigned n;
    enum char_class c = char_class_at(cc, p, &n);

    return c == CC_LETTER || c == CC_NUMBER || *p == '_';
}

static bool stands_alone(const struct char_classes *cc, const unsigned char *text, size_t len,
                         size_t start, size_t end)
{
    if (start > 0 && is_word_char(cc, utf8_before(text, text + start)))
        return false;
    return end == len || !is_word_char(cc, text + end);
}

static size_t spaces_before(const struct char_classes *cc, const unsigned char *text, size_t from,
                            size_t start)
{
    while (start > from) {
        const unsigned char *p = utf8_before(text + from, text + start);
        unsigned n;

        if (char_class_at(cc, p, &n) != CC_SPACE)
            break;
        start = (size_t)(p - text);
    }
    return start;
}

static size_t spaces_after(const struct char_classes *cc, const unsigned char *text, size_t end,
                           size_t len)
{
    for (unsigned n; end < len && char_class_at(cc, text + end, &n) == CC_SPACE; end += n)
        ;
    return end;
}

/* Next place where a token may begin, or len. */
static size_t next_start(const struct added_set *s, const unsigned char *text, size_t len,
                         size_t at)
{
    const unsigned char *p;

    if (s->only_start >= 0) {
        p = at < len ? memchr(text + at, s->only_start, len - at) : NULL;
        return p ? (size_t)(p - text) : len;
    }
    while (at < len && !s->starts[text[at]])
        at++;
    return at;
}

bool added_find(const struct added_set *s, const struct char_classes *cc, const char *text,
                size_t len, size_t from, bool special_as_text, struct added_match *m)
{
    const unsigned char *p = (const unsigned char *)text;

    if (s->n == 0)
        return false;
    for (size_t at = next_start(s, p, len, from); at < len; at = next_start(s, p, len, at + 1)) {
        const struct added_token *t = longest_at(s, p + at, len - at, special_as_text);
        size_t end;

        if (!t)
            continue;
        end = at + t->len;
        if (t->single_word && !stands_alone(cc, p, len, at, end)) {
            at = end - 1; /* this match is spent */
            continue;
        }
        m->start = t->lstrip ? spaces_before(cc, p, from, at) : at;
        m->end = t->rstrip ? spaces_after(cc, p, end, len) : end;
        m->id = t->id;
        return true;
    }
    return false;
}
