#include "generate/grammar_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "generate/grammar.h"

enum { LIMITS_MAX = 4096, HEIGHT_MAX = 40 };

void graph_init(struct graph *g)
{
    *g = (struct graph){.rule_space = NO_RULE,
                        .rule_string = NO_RULE,
                        .rule_number = NO_RULE,
                        .rule_integer = NO_RULE,
                        .rule_value = NO_RULE,
                        .rule_object = NO_RULE,
                        .rule_array = NO_RULE,
                        .n_limits = 1};
}

void graph_release(struct graph *g)
{
    free(g->arcs);
    free(g->finals);
    free(g->limit_of);
    free(g->limits);
    graph_init(g);
}

/* ---- nodes and arcs ---- */

static bool grow_nodes(struct graph *g)
{
    int32_t cap = g->cap_nodes ? 2 * g->cap_nodes : 256;
    bool *finals = realloc(g->finals, (size_t)cap * sizeof *finals);
    uint16_t *limit_of;

    if (finals)
        g->finals = finals;
    limit_of = realloc(g->limit_of, (size_t)cap * sizeof *limit_of);
    if (limit_of)
        g->limit_of = limit_of;
    if (!finals || !limit_of) {
        g->failed = true;
        return false;
    }
    g->cap_nodes = cap;
    return true;
}

int32_t graph_node(struct graph *g)
{
    if (g->failed || g->full)
        return 0;
    if (g->n_nodes == GRAPH_NODES_MAX) {
        g->full = true;
        return 0;
    }
    if (g->n_nodes == g->cap_nodes && !grow_nodes(g))
        return 0;
    g->finals[g->n_nodes] = false;
    g->limit_of[g->n_nodes] = 0;
    return g->n_nodes++;
}

static bool is_sound(const struct graph *g)
{
    return !g->failed && !g->full;
}

void graph_final(struct graph *g, int32_t node)
{
    if (is_sound(g))
        g->finals[node] = true;
}

static void add_arc(struct graph *g, struct graph_arc arc)
{
    if (!is_sound(g))
        return;
    if (g->n_arcs == g->cap_arcs) {
        size_t cap = g->cap_arcs ? 2 * g->cap_arcs : 512;
        struct graph_arc *arcs = realloc(g->arcs, cap * sizeof *arcs);

        if (!arcs) {
            g->failed = true;
            return;
        }
        g->arcs = arcs;
        g->cap_arcs = cap;
    }
    g->arcs[g->n_arcs++] = arc;
}

void graph_byte_kind(struct graph *g, int32_t from, int lo, int hi, int32_t to,
                     enum byte_arc_kind kind)
{
    add_arc(
        g,
        (struct graph_arc){
            .from = from, .to = to, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .kind = (uint8_t)kind});
}

void graph_bytes(struct graph *g, int32_t from, int lo, int hi, int32_t to)
{
    graph_byte_kind(g, from, lo, hi, to, ARC_PLAIN);
}

void graph_free_arc(struct graph *g, int32_t from, int32_t to)
{
    graph_call(g, from, NO_RULE, to);
}

void graph_call(struct graph *g, int32_t from, int32_t rule, int32_t to)
{
    add_arc(g, (struct graph_arc){.from = from, .to = to, .callee = rule, .free = true});
}

void graph_call_inside(struct graph *g, int32_t from, int32_t rule, int32_t to)
{
    add_arc(g,
            (struct graph_arc){.from = from, .to = to, .callee = rule, .levels = 1, .free = true});
}

int graph_limit(struct graph *g, uint32_t min, uint32_t max)
{
    struct string_limit *limits;

    if (g->n_limits == LIMITS_MAX) {
        g->full = true;
        return 0;
    }
    limits = realloc(g->limits, (size_t)(g->n_limits + 1) * sizeof *limits);
    if (!limits) {
        g->failed = true;
        return 0;
    }
    g->limits = limits;
    limits[0] = (struct string_limit){0};
    limits[g->n_limits] = (struct string_limit){.min = min, .max = max};
    return g->n_limits++;
}

void graph_set_limit(struct graph *g, int32_t node, int limit)
{
    if (is_sound(g))
        g->limit_of[node] = (uint16_t)limit;
}

/* ---- the finished form ---- */

/* Counts into the node behind, so that the sums are the beginnings. */
static void count_arcs(const struct graph *g, struct grammar *out)
{
    for (size_t i = 0; i < g->n_arcs; i++) {
        struct graph_node *behind = &out->nodes[g->arcs[i].from + 1];

        if (g->arcs[i].free)
            behind->frees++;
        else
            behind->bytes++;
    }
    for (int32_t i = 0; i < out->n_nodes; i++) {
        out->nodes[i + 1].bytes += out->nodes[i].bytes;
        out->nodes[i + 1].frees += out->nodes[i].frees;
    }
}

static int place_arcs(const struct graph *g, struct grammar *out, struct err *e)
{
    uint32_t n = (uint32_t)g->n_nodes, *at = calloc(2 * (size_t)n + 2, sizeof *at);

    out->bytes = calloc((size_t)out->nodes[n].bytes + 1, sizeof *out->bytes);
    out->frees = calloc((size_t)out->nodes[n].frees + 1, sizeof *out->frees);
    if (!at || !out->bytes || !out->frees) {
        free(at);
        return err_nomem(e);
    }
    for (size_t i = 0; i < g->n_arcs; i++) {
        const struct graph_arc *a = &g->arcs[i];
        const struct graph_node *from = &out->nodes[a->from];

        if (a->free)
            out->frees[from->frees + at[n + (uint32_t)a->from]++] =
                (struct free_arc){.callee = a->callee, .to = a->to, .levels = a->levels};
        else
            out->bytes[from->bytes + at[a->from]++] =
                (struct byte_arc){.lo = a->lo, .hi = a->hi, .kind = a->kind, .to = a->to};
    }
    free(at);
    return 0;
}

static uint16_t need_behind(const struct grammar *g, const struct free_arc *a)
{
    uint16_t callee, to = g->nodes[a->to].need;

    if (a->callee == NO_RULE)
        return to;
    callee = g->nodes[a->callee].need;
    if (callee >= NEED_NONE - 1 || to == NEED_NONE)
        return NEED_NONE;
    callee = (uint16_t)(callee + a->levels);
    return callee > to ? callee : to;
}

static uint16_t least_need(const struct grammar *g, const struct graph_node *n)
{
    uint16_t need = n->final ? 0 : NEED_NONE;

    for (uint32_t i = n->bytes; i < n[1].bytes; i++)
        if (g->nodes[g->bytes[i].to].need < need)
            need = g->nodes[g->bytes[i].to].need;
    for (uint32_t i = n->frees; i < n[1].frees; i++) {
        uint16_t behind = need_behind(g, &g->frees[i]);

        need = behind < need ? behind : need;
    }
    return need;
}

/* Needs only fall; most arcs lead to a later node, so few rounds are enough. */
static void find_needs(struct grammar *g)
{
    bool changed = true;

    for (int32_t i = 0; i < g->n_nodes; i++)
        g->nodes[i].need = NEED_NONE;
    while (changed) {
        changed = false;
        for (int32_t i = g->n_nodes; i-- > 0;) {
            uint16_t need = least_need(g, &g->nodes[i]);

            changed = changed || need != g->nodes[i].need;
            g->nodes[i].need = need;
        }
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].need != NEED_NONE && g->nodes[i].need > g->height)
            g->height = g->nodes[i].need;
}

/* ---- rules that call themselves before any byte ---- */

static bool becomes_empty(const struct grammar *g, const bool *empty, int32_t node)
{
    const struct graph_node *n = &g->nodes[node];
    bool found = n->final;

    for (uint32_t i = n->frees; i < n[1].frees && !found; i++)
        found =
            empty[g->frees[i].to] && (g->frees[i].callee == NO_RULE || empty[g->frees[i].callee]);
    return found;
}

/* empty[node]: the end of the rule can be reached without a byte. */
static void find_empty(const struct grammar *g, bool *empty)
{
    bool changed = true;

    while (changed) {
        changed = false;
        for (int32_t i = g->n_nodes; i-- > 0;)
            if (!empty[i] && becomes_empty(g, empty, i))
                changed = empty[i] = true;
    }
}

struct visit {
    int32_t node;
    uint32_t next; /* twice the arc, the callee first, then what is behind it */
};

/* The next node that can be reached from the visited one without a byte, or -1. */
static int32_t next_free(const struct grammar *g, const bool *empty, struct visit *v)
{
    const struct graph_node *n = &g->nodes[v->node];

    while (v->next < 2 * (n[1].frees - n->frees)) {
        const struct free_arc *a = &g->frees[n->frees + v->next / 2];
        bool callee = v->next++ % 2 == 0;

        if (callee && a->callee != NO_RULE)
            return a->callee;
        if (!callee && (a->callee == NO_RULE || empty[a->callee]))
            return a->to;
    }
    return -1;
}

enum { UNSEEN, OPEN, SEEN };

/* Depth first; an arc to an open node closes a circle. */
static bool has_circle(const struct grammar *g, const bool *empty, uint8_t *state,
                       struct visit *path)
{
    for (int32_t root = 0; root < g->n_nodes; root++) {
        size_t n = 0;

        if (state[root] != UNSEEN)
            continue;
        path[n++] = (struct visit){.node = root};
        state[root] = OPEN;
        while (n > 0) {
            int32_t to = next_free(g, empty, &path[n - 1]);

            if (to < 0) {
                state[path[--n].node] = SEEN;
            } else if (state[to] == OPEN) {
                return true;
            } else if (state[to] == UNSEEN) {
                state[to] = OPEN;
                path[n++] = (struct visit){.node = to};
            }
        }
    }
    return false;
}

static int check_circles(const struct grammar *g, struct err *e)
{
    size_t n = (size_t)g->n_nodes;
    bool *empty = calloc(n, sizeof *empty);
    uint8_t *state = calloc(n, sizeof *state);
    struct visit *path = calloc(n, sizeof *path);
    int rc = 0;

    if (!empty || !state || !path) {
        rc = err_nomem(e);
    } else {
        find_empty(g, empty);
        if (has_circle(g, empty, state, path))
            rc = err_set(e, ERR_ARG, "a part refers to itself with nothing in between");
    }
    free(empty);
    free(state);
    free(path);
    return rc;
}

/* A digest of nodes, arcs and limits, number by number. */
static int make_key(const struct graph *g, struct grammar *out, struct err *e)
{
    struct buf numbers = {0};

    buf_add(&numbers, &out->start, sizeof out->start);
    for (size_t i = 0; i < g->n_arcs; i++) {
        const struct graph_arc *a = &g->arcs[i];
        int32_t arc[] = {a->from, a->to, a->callee, a->levels, a->lo, a->hi, a->kind, a->free};

        buf_add(&numbers, arc, sizeof arc);
    }
    buf_add(&numbers, g->finals, (size_t)g->n_nodes * sizeof *g->finals);
    buf_add(&numbers, g->limit_of, (size_t)g->n_nodes * sizeof *g->limit_of);
    if (g->limits)
        buf_add(&numbers, g->limits, (size_t)g->n_limits * sizeof *g->limits);
    bool ok = !numbers.failed;

    if (ok)
        sha256_of(buf_str(&numbers), numbers.len, out->key);
    buf_release(&numbers);
    return ok ? 0 : err_nomem(e);
}

static int fill_grammar(struct graph *g, struct grammar *out, int32_t start, struct err *e)
{
    if (g->failed)
        return err_nomem(e);
    if (g->full)
        return err_set(e, ERR_ARG, "it is too large: more than %d states", GRAPH_NODES_MAX);
    out->n_nodes = g->n_nodes;
    out->start = start;
    out->nodes = calloc((size_t)g->n_nodes + 1, sizeof *out->nodes);
    if (!out->nodes)
        return err_nomem(e);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        out->nodes[i].final = g->finals[i];
        out->nodes[i].limit = g->limit_of[i];
    }
    count_arcs(g, out);
    if (make_key(g, out, e) < 0 || place_arcs(g, out, e) < 0 || check_circles(out, e) < 0)
        return -1;
    out->limits = g->limits;
    g->limits = NULL;
    find_needs(out);
    if (out->nodes[start].need == NEED_NONE)
        return err_set(e, ERR_ARG, "no value can fit it");
    if (out->height > HEIGHT_MAX)
        return err_set(e, ERR_ARG, "its smallest values are nested too deeply");
    return 0;
}

struct grammar *graph_finish(struct graph *g, int32_t start, struct err *e)
{
    struct grammar *out = calloc(1, sizeof *out);
    int rc = out ? 0 : err_nomem(e);

    if (out) {
        atomic_init(&out->refs, 1);
        rc = fill_grammar(g, out, start, e);
    }
    graph_release(g);
    if (rc < 0) {
        grammar_unref(out);
        return NULL;
    }
    return out;
}

const unsigned char *grammar_key(const struct grammar *g)
{
    return g->key;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    free(g->nodes);
    free(g->bytes);
    free(g->frees);
    free(g->limits);
    free(g);
}
