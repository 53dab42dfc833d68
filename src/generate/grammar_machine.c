#include "generate/grammar_machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "generate/grammar_graph.h"

enum { FIRST_FRAMES = 64, FIRST_SLOTS = 256 };

/* ---- frames ---- */

static uint32_t *slot_of(const struct machine *m, int32_t parent, int32_t behind)
{
    uint32_t at = (uint32_t)parent * 0x9E3779B1u ^ (uint32_t)behind * 0x85EBCA6Bu;

    for (at = (at ^ at >> 15) & (m->n_slots - 1);; at = (at + 1) & (m->n_slots - 1)) {
        int32_t i = m->slots[at];

        if (i < 0 || (m->frames[i].parent == parent && m->frames[i].behind == behind))
            return (uint32_t *)&m->slots[at];
    }
}

static void empty_slots(struct machine *m)
{
    memset(m->slots, 0xff, m->n_slots * sizeof *m->slots);
}

static bool grow_slots(struct machine *m)
{
    int32_t *slots = malloc(2 * (size_t)m->n_slots * sizeof *slots);

    if (!slots)
        return false;
    free(m->slots);
    m->slots = slots;
    m->n_slots *= 2;
    empty_slots(m);
    for (int32_t i = 1; i < m->n_frames; i++)
        *slot_of(m, m->frames[i].parent, m->frames[i].behind) = (uint32_t)i;
    return true;
}

static bool grow_frames(struct machine *m)
{
    int32_t cap = 2 * m->cap_frames;
    struct frame *frames = realloc(m->frames, (size_t)cap * sizeof *frames);

    if (!frames)
        return false;
    m->frames = frames;
    m->cap_frames = cap;
    return (uint32_t)cap < m->n_slots / 2 || grow_slots(m);
}

/* -1: out of memory. */
static int32_t push(struct machine *m, int32_t parent, int32_t behind, int32_t levels)
{
    uint32_t *slot = slot_of(m, parent, behind);

    if ((int32_t)*slot >= 0)
        return (int32_t)*slot;
    if (m->n_frames == m->cap_frames) {
        if (!grow_frames(m)) {
            m->failed = true;
            return -1;
        }
        slot = slot_of(m, parent, behind);
    }
    m->frames[m->n_frames] = (struct frame){parent, behind, m->frames[parent].depth + levels};
    *slot = (uint32_t)m->n_frames;
    return m->n_frames++;
}

int machine_init(struct machine *m, const struct grammar *g, int depth_max, struct err *e)
{
    *m = (struct machine){.grammar = g,
                          .depth_max = depth_max,
                          .frames = malloc(FIRST_FRAMES * sizeof *m->frames),
                          .slots = malloc(FIRST_SLOTS * sizeof *m->slots),
                          .cap_frames = FIRST_FRAMES,
                          .n_slots = FIRST_SLOTS};
    if (!m->frames || !m->slots) {
        machine_release(m);
        return err_nomem(e);
    }
    machine_forget(m);
    return 0;
}

void machine_release(struct machine *m)
{
    free(m->frames);
    free(m->slots);
    *m = (struct machine){0};
}

void machine_forget(struct machine *m)
{
    m->frames[BOTTOM] = (struct frame){.parent = -1, .behind = -1};
    m->n_frames = 1;
    empty_slots(m);
}

/* The frame of the old list, in the new one. */
static int32_t carry_over(struct machine *m, const struct frame *old, int32_t frame)
{
    int32_t parent;

    if (frame == BOTTOM)
        return BOTTOM;
    parent = carry_over(m, old, old[frame].parent);
    return parent < 0 ? -1
                      : push(m, parent, old[frame].behind,
                             old[frame].depth - old[old[frame].parent].depth);
}

int machine_compact(struct machine *m, struct place_set *set, struct err *e)
{
    size_t bytes = (size_t)m->n_frames * sizeof *m->frames;
    struct frame *old = malloc(bytes);

    if (!old)
        return err_nomem(e);
    memcpy(old, m->frames, bytes);
    machine_forget(m);
    for (int i = 0; i < set->n; i++)
        set->list[i].frame = carry_over(m, old, set->list[i].frame);
    free(old);
    return m->failed ? err_nomem(e) : 0;
}

/* ---- places ---- */

static void add_place(struct place_set *set, struct place p)
{
    for (int i = 0; i < set->n; i++)
        if (set->list[i].node == p.node && set->list[i].frame == p.frame &&
            set->list[i].count == p.count)
            return;
    if (set->n < PLACES_MAX)
        set->list[set->n++] = p;
}

/* The graph has no circle of free arcs, so this ends, and a full set ends it at once: alternatives
 * of alternatives would be as many as their product. A branch that would need more levels than are
 * left is not entered; the one with the least need always is. */
void machine_add(struct machine *m, struct place_set *set, int32_t node, int32_t frame,
                 uint32_t count)
{
    const struct grammar *g = m->grammar;
    const struct graph_node *n = &g->nodes[node];

    if (set->n == PLACES_MAX || m->frames[frame].depth + n->need > m->depth_max)
        return;
    if (n->bytes < n[1].bytes)
        add_place(set, (struct place){node, frame, count});
    if (n->final && frame == BOTTOM)
        set->ended = true;
    else if (n->final)
        machine_return(m, set, frame);
    for (uint32_t i = n->frees; i < n[1].frees; i++) {
        const struct free_arc *a = &g->frees[i];
        int32_t inner = a->callee == NO_RULE ? frame : push(m, frame, a->to, a->levels);

        if (inner >= 0)
            machine_add(m, set, a->callee == NO_RULE ? a->to : a->callee, inner, count);
    }
}

void machine_return(struct machine *m, struct place_set *set, int32_t frame)
{
    machine_add(m, set, m->frames[frame].behind, m->frames[frame].parent, 0);
}

/* Whether the arc may be taken with so many characters; *count is what it makes of them. */
static bool pass_limit(const struct machine *m, const struct graph_node *n,
                       const struct byte_arc *a, uint32_t *count)
{
    const struct string_limit *limit = &m->grammar->limits[n->limit];

    if (a->kind == ARC_BEGINS)
        return (*count)++ < limit->max || m->unlimited;
    if (*count < limit->min && !m->unlimited)
        return false;
    *count = 0;
    return true;
}

void machine_step(struct machine *m, const struct place_set *from, unsigned char byte,
                  struct place_set *to)
{
    const struct grammar *g = m->grammar;

    to->n = 0;
    to->ended = false;
    for (int i = 0; i < from->n; i++) {
        const struct place *p = &from->list[i];
        const struct graph_node *n = &g->nodes[p->node];

        for (uint32_t k = n->bytes; k < n[1].bytes; k++) {
            const struct byte_arc *a = &g->bytes[k];
            uint32_t count = p->count;

            if (byte < a->lo || byte > a->hi ||
                (a->kind != ARC_PLAIN && !pass_limit(m, n, a, &count)))
                continue;
            machine_add(m, to, a->to, p->frame, count);
        }
    }
}
