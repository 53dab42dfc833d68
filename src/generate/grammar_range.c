/* generate/grammar_range.c - numbers between two bounds, as an automaton over their digits.
 *
 * A number is written without exponent. While its digits are those of a bound, the next digit must
 * not fall below (or rise above) the bound's; the first digit that differs makes that side free. So
 * a state is how many digits there are, and which of the two bounds still binds. A dead end (a
 * value that would have to be both above one and below the other) has no end, and is cut off when
 * the grammar is finished. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "generate/grammar_graph.h"
#include "generate/grammar_schema.h"

enum { WHOLE_MAX = 18, PART_MAX = 15, TEXT_MAX = 48 };

/* |value| in decimal digits, no leading zeros before the point, no trailing ones behind it. */
struct bound {
    bool given, excluded, negative;
    char whole[TEXT_MAX], part[TEXT_MAX];
    int n_whole, n_part;
};

struct range {
    struct graph *g;
    struct bound lo, hi; /* of the absolute value; hi may be missing */
    bool integer;
    int32_t end;
    int32_t part[PART_MAX + 1][2][2]; /* [digits behind the point][lo binds][hi binds], 0: none */
};

/* ---- bounds ---- */

/* Digits and exponent as json_write puts them. */
static int parse_decimal(const char *text, struct bound *b)
{
    char digits[TEXT_MAX];
    int n = 0, point = -1, shift;

    b->negative = *text == '-';
    for (text += b->negative; *text && *text != 'e' && *text != 'E'; text++)
        if (*text == '.')
            point = n;
        else if (n < TEXT_MAX - 1)
            digits[n++] = *text;
    point = point < 0 ? n : point;
    shift = *text ? (int)strtol(text + 1, NULL, 10) : 0;
    point += shift;
    if (point > WHOLE_MAX || n - point > PART_MAX)
        return -1;
    b->n_whole = b->n_part = 0;
    for (int i = point < 0 ? point : 0; i < n || i < point; i++) {
        char c = i >= 0 && i < n ? digits[i] : '0';

        if (i >= point)
            b->part[b->n_part++] = c;
        else if (c != '0' || b->n_whole > 0)
            b->whole[b->n_whole++] = c;
    }
    while (b->n_part > 0 && b->part[b->n_part - 1] == '0')
        b->n_part--;
    if (b->n_whole == 0)
        b->whole[b->n_whole++] = '0';
    return 0;
}

static bool is_zero(const struct bound *b)
{
    return b->n_whole == 1 && b->whole[0] == '0' && b->n_part == 0;
}

static int read_one(struct schema_reader *s, const json_t *schema, const char *key, bool excluded,
                    struct bound *b, struct err *e)
{
    const json_t *v = json_object_get(schema, key);
    struct buf text = {0};
    int rc = 0;

    if (!v)
        return 0;
    if (!json_is_number(v))
        return schema_refuse(s, e, key, "%s must be a number", key);
    if (b->given)
        return schema_refuse(s, e, key, "two bounds on one side are not supported");
    json_write(&text, v);
    if (parse_decimal(buf_str(&text), b) < 0)
        rc = schema_refuse(s, e, key, "%s has more digits than the %d and %d that are understood",
                           key, WHOLE_MAX, PART_MAX);
    b->given = true;
    b->excluded = excluded;
    if (is_zero(b))
        b->negative = false;
    buf_release(&text);
    return rc;
}

static double value_of(const struct bound *b)
{
    char text[2 * TEXT_MAX + 4];

    snprintf(text, sizeof text, "%s%.*s.%.*s", b->negative ? "-" : "", b->n_whole, b->whole,
             b->n_part, b->part);
    return strtod(text, NULL);
}

/* The whole number at or inside the bound. */
static void round_inwards(struct bound *b, bool is_lo)
{
    char text[TEXT_MAX];
    long long v =
        strtoll((snprintf(text, sizeof text, "%.*s", b->n_whole, b->whole), text), NULL, 10);
    bool whole = b->n_part == 0;

    if (!b->given)
        return;
    v = b->negative ? -v : v;
    if (whole)
        v += b->excluded ? (is_lo ? 1 : -1) : 0;
    else if (is_lo && !b->negative)
        v++;
    else if (!is_lo && b->negative)
        v--;
    b->excluded = false;
    snprintf(text, sizeof text, "%lld", v);
    parse_decimal(text, b);
}

/* ---- digits ---- */

static int digit_of(const char *digits, int n, int i)
{
    return i < n ? digits[i] - '0' : 0;
}

/* Arcs for the digits that may come, each to the node that `to` names for the bounds that bind
 * then. */
static void add_digit_arcs(struct graph *g, int32_t from, int first, int lo, int hi, bool binds_lo,
                           bool binds_hi, int32_t to[2][2])
{
    for (int d = first; d <= 9; d++) {
        if ((binds_lo && d < lo) || (binds_hi && d > hi))
            continue;
        int32_t *node = &to[binds_lo && d == lo][binds_hi && d == hi];

        if (*node == 0)
            *node = graph_node(g);
        graph_bytes(g, from, '0' + d, '0' + d, *node);
    }
}

/* The value so far, with j digits behind the point, may be the whole. */
static bool may_stop(const struct range *r, int j, bool binds_lo, bool binds_hi)
{
    bool above = !binds_lo || (j >= r->lo.n_part && !r->lo.excluded);
    bool below = !binds_hi || !r->hi.excluded || j < r->hi.n_part;

    return above && below;
}

/* What comes behind j digits of the part. */
static void add_part_from(struct range *r, int j, bool binds_lo, bool binds_hi)
{
    int32_t from = r->part[j][binds_lo][binds_hi];

    if (j > 0 && may_stop(r, j, binds_lo, binds_hi))
        graph_free_arc(r->g, from, r->end);
    if (j < PART_MAX)
        add_digit_arcs(r->g, from, 0, digit_of(r->lo.part, r->lo.n_part, j),
                       digit_of(r->hi.part, r->hi.n_part, j), binds_lo, binds_hi, r->part[j + 1]);
}

static void add_parts(struct range *r)
{
    for (int j = 0; j <= PART_MAX; j++)
        for (int lo = 0; lo < 2; lo++)
            for (int hi = 0; hi < 2; hi++)
                if (r->part[j][lo][hi])
                    add_part_from(r, j, lo, hi);
}

/* All digits before the point are there. */
static void add_point(struct range *r, int32_t from, bool binds_lo, bool binds_hi)
{
    int32_t *point = &r->part[0][binds_lo][binds_hi];

    if (may_stop(r, 0, binds_lo, binds_hi))
        graph_free_arc(r->g, from, r->end);
    if (r->integer)
        return;
    if (*point == 0)
        *point = graph_node(r->g);
    graph_bytes(r->g, from, '.', '.', *point);
}

/* Numbers with n digits before the point. */
static void add_whole(struct range *r, int32_t from, int n)
{
    bool lo = n == r->lo.n_whole, hi = r->hi.given && n == r->hi.n_whole;
    int32_t now[2][2] = {{0}};

    now[lo][hi] = from;
    for (int i = 0; i < n; i++) {
        int32_t next[2][2] = {{0}};

        for (int k = 0; k < 4; k++)
            if (now[k / 2][k % 2] || (i == 0 && k == 2 * lo + hi))
                add_digit_arcs(r->g, now[k / 2][k % 2], i == 0 && n > 1,
                               digit_of(r->lo.whole, r->lo.n_whole, i),
                               digit_of(r->hi.whole, r->hi.n_whole, i), k / 2, k % 2, next);
        memcpy(now, next, sizeof now);
    }
    for (int k = 0; k < 4; k++)
        if (now[k / 2][k % 2])
            add_point(r, now[k / 2][k % 2], k / 2, k % 2);
}

/* Absolute values from lo to hi; both given, hi perhaps not. */
static void add_range(struct graph *g, int32_t from, const struct bound *lo, const struct bound *hi,
                      bool integer, int32_t end)
{
    struct range r = {.g = g, .lo = *lo, .hi = *hi, .integer = integer, .end = end};
    int most = hi->given ? hi->n_whole : WHOLE_MAX;

    for (int n = lo->n_whole; n <= most; n++)
        add_whole(&r, from, n);
    add_parts(&r);
}

static struct bound zero(bool excluded)
{
    return (struct bound){.given = true, .excluded = excluded, .whole = "0", .n_whole = 1};
}

/* Negative numbers are the mirror image; minus zero is not written. */
static void add_both_signs(struct graph *g, int32_t node, const struct bound *lo,
                           const struct bound *hi, bool integer, int32_t end)
{
    struct bound least = lo->given && !lo->negative ? *lo : zero(false);
    struct bound small = hi->given && hi->negative ? *hi : zero(true);
    int32_t minus = graph_node(g);

    if (!hi->given || !hi->negative)
        add_range(g, node, &least, hi, integer, end);
    if (lo->given && !lo->negative)
        return;
    if (integer && is_zero(&small))
        small = (struct bound){.given = true, .whole = "1", .n_whole = 1};
    graph_bytes(g, node, '-', '-', minus);
    add_range(g, minus, &small, lo, integer, end);
}

int schema_number(struct schema_reader *s, const json_t *schema, bool whole, int32_t node,
                  int32_t end, struct err *e)
{
    struct bound lo = {0}, hi = {0};

    if (read_one(s, schema, "minimum", false, &lo, e) < 0 ||
        read_one(s, schema, "exclusiveMinimum", true, &lo, e) < 0 ||
        read_one(s, schema, "maximum", false, &hi, e) < 0 ||
        read_one(s, schema, "exclusiveMaximum", true, &hi, e) < 0)
        return -1;
    if (!lo.given && !hi.given) {
        graph_call(s->g, node, whole ? rule_integer(s->g) : rule_number(s->g), end);
        return 0;
    }
    if (whole) {
        round_inwards(&lo, true);
        round_inwards(&hi, false);
    }
    if (lo.given && hi.given && value_of(&lo) > value_of(&hi))
        return schema_refuse(s, e, "maximum", "no number lies between minimum and maximum");
    add_both_signs(s->g, node, &lo, &hi, whole, end);
    return 0;
}
