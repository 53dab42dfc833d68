/* generate/regex.c - one pass over the pattern. Each part becomes a fragment: states with one entry
 * and one exit. A part that is repeated is read again from its text, so no tree is kept. */
#include "generate/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

enum { DEPTH_MAX = 60, REPEAT_MAX = 1000 };

/* Entry and exit of a part; the exit is a STEP_SPLIT whose `to` is not set yet. */
struct fragment {
    int from, to;
};

struct parser {
    struct regex *re;
    const char *text, *at, *end;
    int depth;
    struct err *e;
};

static int parse_alternatives(struct parser *p, struct fragment *out);

static int refuse(struct parser *p, const char *what)
{
    return err_set(p->e, ERR_ARG, "the pattern has %s at byte %zu", what,
                   (size_t)(p->at - p->text));
}

/* ---- states and ranges ---- */

static int add_state(struct parser *p, enum regex_step step, int to)
{
    struct regex *re = p->re;

    if (re->n_states == REGEX_STATES_MAX)
        return err_set(p->e, ERR_ARG, "the pattern is too large");
    if (re->n_states == re->cap_states) {
        int cap = re->cap_states ? 2 * re->cap_states : 64;
        struct regex_state *states = realloc(re->states, (size_t)cap * sizeof *states);

        if (!states)
            return err_nomem(p->e);
        re->states = states;
        re->cap_states = cap;
    }
    re->states[re->n_states] = (struct regex_state){.step = step, .to = to, .other = -1};
    return re->n_states++;
}

static int add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    struct regex *re = p->re;

    if (re->n_ranges == re->cap_ranges) {
        int cap = re->cap_ranges ? 2 * re->cap_ranges : 64;
        struct char_range *ranges = realloc(re->ranges, (size_t)cap * sizeof *ranges);

        if (!ranges)
            return err_nomem(p->e);
        re->ranges = ranges;
        re->cap_ranges = cap;
    }
    re->ranges[re->n_ranges++] = (struct char_range){lo, hi};
    return 0;
}

static int by_lo(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Turns ranges[first ..) into what they leave out. */
static int negate(struct parser *p, int first)
{
    int n = p->re->n_ranges - first;
    struct char_range *own = malloc(((size_t)n + 1) * sizeof *own);
    uint32_t from = 0;
    int rc = 0;

    if (!own)
        return err_nomem(p->e);
    if (n)
        memcpy(own, p->re->ranges + first, (size_t)n * sizeof *own);
    qsort(own, (size_t)n, sizeof *own, by_lo);
    p->re->n_ranges = first;
    for (int i = 0; i < n && rc == 0; i++) {
        if (own[i].lo > from)
            rc = add_range(p, from, own[i].lo - 1);
        from = own[i].hi + 1 > from ? own[i].hi + 1 : from;
    }
    if (rc == 0 && from <= LAST_CHAR)
        rc = add_range(p, from, LAST_CHAR);
    free(own);
    return rc;
}

/* A fragment over the characters of ranges[first ..). */
static int chars_fragment(struct parser *p, int first, struct fragment *out)
{
    int n = p->re->n_ranges - first;

    out->from = add_state(p, STEP_CHARS, -1);
    out->to = out->from < 0 ? -1 : add_state(p, STEP_SPLIT, -1);
    if (out->to < 0)
        return -1;
    p->re->states[out->from] =
        (struct regex_state){.step = STEP_CHARS, .to = out->to, .first = first, .n = n};
    return 0;
}

static int empty_fragment(struct parser *p, struct fragment *out)
{
    out->from = out->to = add_state(p, STEP_SPLIT, -1);
    return out->from < 0 ? -1 : 0;
}

static int assertion(struct parser *p, enum regex_step step, struct fragment *out)
{
    out->to = add_state(p, STEP_SPLIT, -1);
    out->from = out->to < 0 ? -1 : add_state(p, step, out->to);
    return out->from < 0 ? -1 : 0;
}

/* ---- characters ---- */

static uint32_t next_char(struct parser *p)
{
    const unsigned char *at = (const unsigned char *)p->at;
    size_t n = utf8_sequence(at, (const unsigned char *)p->end);
    uint32_t c = n <= 1 ? at[0] : at[0] & (0x7fu >> n);

    for (size_t i = 1; i < n; i++)
        c = c << 6 | (at[i] & 0x3fu);
    p->at += n ? n : 1;
    return c;
}

static int add_class(struct parser *p, char name)
{
    static const struct char_range digits[] = {{'0', '9'}};
    static const struct char_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct char_range spaces[] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    char low = (char)(name | 0x20);
    const struct char_range *list = low == 'd' ? digits : low == 'w' ? words : spaces;
    int n = low == 'd' ? 1 : low == 'w' ? 4 : 10, first = p->re->n_ranges;

    for (int i = 0; i < n; i++)
        if (add_range(p, list[i].lo, list[i].hi) < 0)
            return -1;
    return name == low ? 0 : negate(p, first);
}

static int hex_digits(struct parser *p, int most, uint32_t *out)
{
    int n = 0;

    for (*out = 0; n < most && p->at < p->end; n++, p->at++) {
        const char *digits = "0123456789abcdef", *found;
        char c = *p->at;

        if (c >= 'A' && c <= 'F')
            c = (char)(c + 'a' - 'A');
        found = c ? strchr(digits, c) : NULL;
        if (!found)
            break;
        *out = *out * 16 + (uint32_t)(found - digits);
    }
    return n;
}

/* Behind \x or \u. */
static int coded_char(struct parser *p, char kind, uint32_t *c)
{
    bool braces = kind == 'u' && p->at < p->end && *p->at == '{';
    int want = kind == 'x' ? 2 : 4, n;

    p->at += braces;
    n = hex_digits(p, braces ? 6 : want, c);
    if (braces && p->at < p->end && *p->at == '}')
        p->at++;
    else if (braces)
        n = 0;
    if ((braces ? n == 0 : n != want) || *c > LAST_CHAR || (*c >= 0xd800 && *c < 0xe000))
        return refuse(p, "a code that is no character");
    return 0;
}

/* Behind a backslash: a character (0), a class of characters that has been added (1), or -1. */
static int parse_escape(struct parser *p, uint32_t *c)
{
    static const char letters[] = "tnvfr0", codes[] = "\t\n\v\f\r";
    const char *found;

    if (p->at == p->end)
        return refuse(p, "nothing behind a backslash");
    *c = next_char(p);
    if (*c < 0x80 && strchr("dDwWsS", (int)*c) && *c)
        return add_class(p, (char)*c) < 0 ? -1 : 1;
    if (*c == 'x' || *c == 'u')
        return coded_char(p, (char)*c, c);
    if (*c == 'c' && p->at < p->end) {
        *c = next_char(p) & 0x1f;
        return 0;
    }
    found = *c && *c < 0x80 ? strchr(letters, (int)*c) : NULL;
    if (found) {
        *c = (unsigned char)codes[found - letters];
        return 0;
    }
    if (*c < 0x80 && ((*c >= '0' && *c <= '9') || (*c | 0x20) >= 'a') && (*c | 0x20) <= 'z')
        return refuse(p, "an escape that is not supported (back references, \\b, \\p, ...)");
    return 0;
}

/* One member of a class in brackets; as parse_escape. */
static int class_member(struct parser *p, uint32_t *c)
{
    if (*p->at != '\\') {
        *c = next_char(p);
        return 0;
    }
    p->at++;
    if (p->at < p->end && *p->at == 'b') { /* a backspace, here */
        p->at++;
        *c = '\b';
        return 0;
    }
    return parse_escape(p, c);
}

static int class_range(struct parser *p)
{
    uint32_t lo, hi;
    int kind = class_member(p, &lo);

    if (kind != 0)
        return kind < 0 ? -1 : 0;
    if (p->end - p->at < 2 || p->at[0] != '-' || p->at[1] == ']')
        return add_range(p, lo, lo);
    p->at++;
    kind = class_member(p, &hi);
    if (kind < 0)
        return -1;
    if (kind == 1 || hi < lo)
        return refuse(p, "a range without an order");
    return add_range(p, lo, hi);
}

static int parse_class(struct parser *p, struct fragment *out)
{
    int first = p->re->n_ranges;
    bool negated = p->at < p->end && *p->at == '^';

    p->at += negated;
    while (p->at < p->end && *p->at != ']')
        if (class_range(p) < 0)
            return -1;
    if (p->at == p->end)
        return refuse(p, "a [ without its ]");
    p->at++;
    if (negated && negate(p, first) < 0)
        return -1;
    return chars_fragment(p, first, out);
}

static int parse_dot(struct parser *p, struct fragment *out)
{
    int first = p->re->n_ranges;

    if (add_range(p, 0, 9) < 0 || add_range(p, 11, 12) < 0 || add_range(p, 14, 0x2027) < 0 ||
        add_range(p, 0x202a, LAST_CHAR) < 0)
        return -1;
    return chars_fragment(p, first, out);
}

/* ---- parts ---- */

static int parse_group(struct parser *p, struct fragment *out)
{
    if (p->end - p->at >= 2 && p->at[0] == '?') {
        const char *name_end = memchr(p->at, '>', (size_t)(p->end - p->at));

        if (p->at[1] == ':')
            p->at += 2;
        else if (p->at[1] == '<' && p->end - p->at > 2 && !strchr("=!", p->at[2]) && name_end)
            p->at = name_end + 1;
        else
            return refuse(p, "a group that looks around, which is not supported,");
    }
    if (++p->depth > DEPTH_MAX)
        return refuse(p, "too many nested groups");
    if (parse_alternatives(p, out) < 0)
        return -1;
    p->depth--;
    if (p->at == p->end)
        return refuse(p, "a ( without its )");
    p->at++;
    return 0;
}

static int parse_atom(struct parser *p, struct fragment *out)
{
    int first = p->re->n_ranges, kind = 0;
    uint32_t c = next_char(p);

    switch (c) {
    case '(':
        return parse_group(p, out);
    case '[':
        return parse_class(p, out);
    case '.':
        return parse_dot(p, out);
    case '^':
        return assertion(p, STEP_BEGIN, out);
    case '$':
        return assertion(p, STEP_END, out);
    case '*':
    case '+':
    case '?':
        return refuse(p, "a repetition of nothing");
    case '\\':
        kind = parse_escape(p, &c);
        break;
    default:
        break;
    }
    if (kind < 0 || (kind == 0 && add_range(p, c, c) < 0))
        return -1;
    return chars_fragment(p, first, out);
}

/* "{m}", "{m,}" or "{m,n}"; false: a brace that stands for itself. */
static bool parse_counts(struct parser *p, int *min, int *max)
{
    const char *at = p->at + 1;
    long values[2] = {0, -1};
    int i = 0;

    for (; i < 2; i++) {
        char *after;

        if (at < p->end && *at >= '0' && *at <= '9') {
            values[i] = strtol(at, &after, 10);
            at = after;
        } else if (i == 0) {
            return false;
        }
        if (i == 1 || at == p->end || *at != ',')
            break;
        at++;
    }
    if (at >= p->end || *at != '}')
        return false;
    *min = values[0] > REPEAT_MAX ? REPEAT_MAX + 1 : (int)values[0];
    *max = i == 0 ? *min : values[1] > REPEAT_MAX ? REPEAT_MAX + 1 : (int)values[1];
    p->at = at + 1;
    return true;
}

/* What stands behind a part: true when it is repeated. max -1: without end. */
static bool parse_quantifier(struct parser *p, int *min, int *max)
{
    char c = p->at < p->end ? *p->at : '\0';

    *min = c == '+';
    *max = c == '?' ? 1 : -1;
    if (c == '{') {
        if (!parse_counts(p, min, max))
            return false;
    } else if (c && strchr("*+?", c)) {
        p->at++;
    } else {
        return false;
    }
    if (p->at < p->end && *p->at == '?') /* lazy: the same texts */
        p->at++;
    return true;
}

/* One more copy of the part that begins at `text`; afterwards the parser stands where it stood. */
static int copy_part(struct parser *p, const char *text, struct fragment *out)
{
    const char *back = p->at;
    int rc;

    p->at = text;
    rc = parse_atom(p, out);
    p->at = back;
    return rc;
}

/* Appends `part` to *all, so that it may be left out when `optional`, and repeated when `loop`. */
static int append(struct parser *p, struct fragment *all, struct fragment part, bool optional,
                  bool loop)
{
    int join = add_state(p, STEP_SPLIT, -1);
    struct regex_state *states = p->re->states; /* behind the call that may move them */

    if (join < 0)
        return -1;
    states[all->to].to = part.from;
    if (optional)
        states[all->to].other = join;
    states[part.to].to = join;
    if (loop)
        states[part.to].other = part.from;
    all->to = join;
    return 0;
}

static int repeat(struct parser *p, const char *text, struct fragment first, int min, int max,
                  struct fragment *out)
{
    int n = max < 0 ? (min > 0 ? min : 1) : max;

    if (min > REPEAT_MAX || max > REPEAT_MAX)
        return refuse(p, "a repetition of more than 1000");
    if (max >= 0 && max < min)
        return refuse(p, "a repetition whose numbers are out of order");
    if (empty_fragment(p, out) < 0)
        return -1;
    for (int i = 0; i < n; i++) {
        struct fragment part = first;

        if (i > 0 && copy_part(p, text, &part) < 0)
            return -1;
        if (append(p, out, part, i >= min, max < 0 && i + 1 == n) < 0)
            return -1;
    }
    return 0;
}

static int parse_sequence(struct parser *p, struct fragment *out)
{
    if (empty_fragment(p, out) < 0)
        return -1;
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        const char *text = p->at;
        struct fragment part = {0}, whole;
        int min = 0, max = 0;

        if (parse_atom(p, &part) < 0)
            return -1;
        whole = part;
        if (parse_quantifier(p, &min, &max) && repeat(p, text, part, min, max, &whole) < 0)
            return -1;
        p->re->states[out->to].to = whole.from;
        out->to = whole.to;
    }
    return 0;
}

static int parse_alternatives(struct parser *p, struct fragment *out)
{
    int join, split;
    struct fragment one = {0};

    if (parse_sequence(p, out) < 0)
        return -1;
    while (p->at < p->end && *p->at == '|') {
        p->at++;
        if (parse_sequence(p, &one) < 0 || (join = add_state(p, STEP_SPLIT, -1)) < 0 ||
            (split = add_state(p, STEP_SPLIT, out->from)) < 0)
            return -1;
        p->re->states[split].other = one.from;
        p->re->states[out->to].to = join;
        p->re->states[one.to].to = join;
        *out = (struct fragment){split, join};
    }
    return 0;
}

int regex_compile(struct regex *re, const char *text, size_t len, struct err *e)
{
    struct parser p = {.re = re, .text = text, .at = text, .end = text + len, .e = e};
    struct fragment all;
    int match;

    *re = (struct regex){0};
    if (parse_alternatives(&p, &all) < 0)
        return -1;
    if (p.at < p.end)
        return refuse(&p, "a ) without its (");
    match = add_state(&p, STEP_MATCH, -1);
    if (match < 0)
        return -1;
    re->states[all.to].to = match;
    re->start = all.from;
    return 0;
}

void regex_release(struct regex *re)
{
    free(re->states);
    free(re->ranges);
    *re = (struct regex){0};
}
