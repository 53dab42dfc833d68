/* generate/grammar_regex.c - a pattern as the rule of a JSON string: the automaton of the pattern
 * is made deterministic, so that an answer stands in one place only, and each of its steps over a
 * character becomes steps over the bytes that spell it.
 *
 * A pattern may fit any part of the text: before it and behind it any characters may stand, unless
 * it says ^ and $. Where the text has a length as well, a state also counts. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "generate/grammar_graph.h"
#include "generate/grammar_schema.h"
#include "generate/regex.h"

enum { STATES_MAX = 1500, CLASSES_MAX = 200 };

/* A set of states of the pattern, and a number of characters. */
struct dfa_state {
    int first, n; /* members, rising */
    uint32_t count;
    int32_t node;
    bool fits;     /* the pattern has been found: anything may follow */
    bool accepted; /* the text may end here */
};

struct dfa {
    const struct regex *re;
    struct graph *g;
    struct dfa_state states[STATES_MAX];
    int n_states;
    int *members;
    size_t n_members, cap_members;
    uint32_t cuts[CLASSES_MAX + 1]; /* class i is [cuts[i], cuts[i + 1]) */
    int n_classes;
    uint32_t min, max;
    bool *marked; /* [states of the pattern] */
    int *stack;   /* [2 * states of the pattern] */
    int *set;     /* [states of the pattern]: the one that is being made */
    int n_set;
    bool failed, full;
};

/* ---- classes of characters that the pattern does not tell apart ---- */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static int find_classes(struct dfa *d)
{
    int n = 0;

    if (2 * d->re->n_ranges + 1 > CLASSES_MAX)
        return -1;
    d->cuts[n++] = 0;
    for (int i = 0; i < d->re->n_ranges; i++) {
        d->cuts[n++] = d->re->ranges[i].lo;
        d->cuts[n++] = d->re->ranges[i].hi + 1;
    }
    qsort(d->cuts, (size_t)n, sizeof *d->cuts, by_value);
    for (int i = 0; i < n; i++)
        if (d->cuts[i] <= LAST_CHAR &&
            (d->n_classes == 0 || d->cuts[i] != d->cuts[d->n_classes - 1]))
            d->cuts[d->n_classes++] = d->cuts[i];
    d->cuts[d->n_classes] = LAST_CHAR + 1;
    return 0;
}

static bool takes(const struct dfa *d, const struct regex_state *s, uint32_t c)
{
    for (int i = s->first; i < s->first + s->n; i++)
        if (c >= d->re->ranges[i].lo && c <= d->re->ranges[i].hi)
            return true;
    return false;
}

/* ---- sets ---- */

static void push(struct dfa *d, int *n, int state)
{
    if (state < 0 || d->marked[state])
        return;
    d->marked[state] = true;
    d->stack[(*n)++] = state;
}

/* Adds a state and what is reached from it without a character. */
static void reach(struct dfa *d, int from, bool at_begin, bool at_end)
{
    int n = 0;

    push(d, &n, from);
    while (n > 0) {
        int at = d->stack[--n];
        const struct regex_state *s = &d->re->states[at];

        d->set[d->n_set++] = at;
        if (s->step == STEP_SPLIT || (s->step == STEP_BEGIN && at_begin) ||
            (s->step == STEP_END && at_end)) {
            push(d, &n, s->to);
            push(d, &n, s->step == STEP_SPLIT ? s->other : -1);
        }
    }
}

static void clear_set(struct dfa *d)
{
    memset(d->marked, 0, (size_t)d->re->n_states * sizeof *d->marked);
    d->n_set = 0;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static bool set_matches(const struct dfa *d)
{
    for (int i = 0; i < d->n_set; i++)
        if (d->re->states[d->set[i]].step == STEP_MATCH)
            return true;
    return false;
}

/* Whether the text may end with this state: what is left may be assertions of the end. */
static bool ends_here(struct dfa *d, const struct dfa_state *s)
{
    if (s->fits)
        return true;
    clear_set(d);
    for (int i = 0; i < s->n; i++)
        reach(d, d->members[s->first + i], false, true);
    return set_matches(d);
}

static bool keep_members(struct dfa *d)
{
    while (d->n_members + (size_t)d->n_set > d->cap_members) {
        size_t cap = d->cap_members ? 2 * d->cap_members : 1024;
        int *members = realloc(d->members, cap * sizeof *members);

        if (!members) {
            d->failed = true;
            return false;
        }
        d->members = members;
        d->cap_members = cap;
    }
    if (d->n_set)
        memcpy(d->members + d->n_members, d->set, (size_t)d->n_set * sizeof *d->set);
    d->n_members += (size_t)d->n_set;
    return true;
}

/* The state with the present set and this count, a new one if need be; -1: there is no room. */
static int find_state(struct dfa *d, bool fits, uint32_t count)
{
    struct dfa_state *s = &d->states[d->n_states];

    fits = fits || set_matches(d);
    d->n_set = fits ? 0 : d->n_set;
    if (d->n_set)
        qsort(d->set, (size_t)d->n_set, sizeof *d->set, by_number);
    for (int i = 0; i < d->n_states; i++) {
        const struct dfa_state *old = &d->states[i];

        if (old->fits == fits && old->count == count && old->n == d->n_set &&
            (d->n_set == 0 ||
             memcmp(d->members + old->first, d->set, (size_t)d->n_set * sizeof *d->set) == 0))
            return i;
    }
    if (d->n_states == STATES_MAX) {
        d->full = true;
        return -1;
    }
    *s =
        (struct dfa_state){.first = (int)d->n_members, .n = d->n_set, .count = count, .fits = fits};
    if (!keep_members(d))
        return -1;
    s->accepted = ends_here(d, s) && count >= d->min;
    s->node = graph_node(d->g);
    return d->n_states++;
}

/* ---- steps ---- */

/* Without a length nothing is counted; with a least one only, up to it. */
static uint32_t count_on(const struct dfa *d, uint32_t count)
{
    uint32_t most = d->max != UINT32_MAX ? d->max : d->min;

    return count < most ? count + 1 : most;
}

/* Where a character leads. -1: nowhere. */
static int step(struct dfa *d, int from, uint32_t c)
{
    const struct dfa_state s = d->states[from];

    clear_set(d);
    if (!s.fits) {
        for (int i = 0; i < s.n; i++) {
            const struct regex_state *state = &d->re->states[d->members[s.first + i]];

            if (state->step == STEP_CHARS && takes(d, state, c))
                reach(d, state->to, false, false);
        }
        reach(d, d->re->start, false, false); /* the pattern may begin behind any character */
    }
    return find_state(d, s.fits, count_on(d, s.count));
}

/* Neighbouring classes that lead to one state are one range. */
static void add_steps(struct dfa *d, int from)
{
    uint32_t lo = 0;
    int to = -1;

    if (d->max != UINT32_MAX && d->states[from].count >= d->max)
        return;
    for (int i = 0; i <= d->n_classes && !d->failed && !d->full; i++) {
        int next = i < d->n_classes ? step(d, from, d->cuts[i]) : -1;

        if (i > 0 && next == to)
            continue;
        if (i > 0 && to >= 0)
            graph_string_chars(d->g, d->states[from].node, lo, d->cuts[i] - 1, d->states[to].node,
                               ARC_PLAIN);
        lo = d->cuts[i];
        to = next;
    }
}

static int build(struct dfa *d, int32_t from, int32_t to, struct err *e)
{
    size_t n = (size_t)d->re->n_states;

    d->marked = calloc(n, sizeof *d->marked);
    d->stack = calloc(2 * n, sizeof *d->stack);
    d->set = calloc(n, sizeof *d->set);
    if (!d->marked || !d->stack || !d->set)
        return err_nomem(e);
    if (find_classes(d) < 0)
        return err_set(e, ERR_ARG, "the pattern has too many classes of characters");
    clear_set(d);
    reach(d, d->re->start, true, false);
    if (find_state(d, false, 0) == 0)
        graph_bytes(d->g, from, '"', '"', d->states[0].node);
    for (int i = 0; i < d->n_states && !d->failed && !d->full && !d->g->full; i++) {
        add_steps(d, i);
        if (d->states[i].accepted)
            graph_bytes(d->g, d->states[i].node, '"', '"', to);
    }
    if (d->failed)
        return err_nomem(e);
    return d->full ? err_set(e, ERR_ARG, "the pattern needs more than %d states", STATES_MAX) : 0;
}

int graph_pattern(struct graph *g, int32_t from, const char *pattern, size_t len, uint32_t min,
                  uint32_t max, int32_t to, struct err *e)
{
    struct dfa *d = calloc(1, sizeof *d);
    struct regex re = {0};
    int rc;

    if (!d)
        return err_nomem(e);
    d->re = &re;
    d->g = g;
    d->min = min;
    d->max = max;
    rc = regex_compile(&re, pattern, len, e);
    if (rc == 0)
        rc = build(d, from, to, e);
    free(d->members);
    free(d->marked);
    free(d->stack);
    free(d->set);
    free(d);
    regex_release(&re);
    return rc;
}
