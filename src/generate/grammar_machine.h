/* generate/grammar_machine.h - where one can stand in a grammar, and what a byte makes of it
 * (inside the room).
 *
 * A place is a node, the calls that are open (a frame of a shared tree), and the characters of the
 * string it is in. Several places at once make a set. Frames are kept once each, so equal stacks
 * have equal numbers. One thread at a time. */
#ifndef GENERATE_GRAMMAR_MACHINE_H
#define GENERATE_GRAMMAR_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct grammar;

enum {
    PLACES_MAX =
        96,     /* beyond it the later alternatives are given up: what is left is still right */
    BOTTOM = 0, /* the frame without a call */
};

struct frame {
    int32_t parent;
    int32_t behind; /* node behind the call */
    int32_t depth;  /* levels of nesting */
};

struct place {
    int32_t node;
    int32_t frame;
    uint32_t count; /* characters of a string with a length; else 0 */
};

struct place_set {
    struct place *list; /* room for PLACES_MAX */
    int n;
    bool ended; /* the rule at the bottom may end here */
};

struct machine {
    const struct grammar *grammar; /* borrowed */
    struct frame *frames;
    int32_t n_frames, cap_frames;
    int32_t *slots; /* hash of (parent, behind) to frame, -1 empty */
    uint32_t n_slots;
    int depth_max;  /* levels of nesting that are allowed */
    bool unlimited; /* strings have any length; their characters are counted */
    bool failed;    /* out of memory */
};

int machine_init(struct machine *m, const struct grammar *g, int depth_max, struct err *e);
void machine_release(struct machine *m);
void machine_forget(struct machine *m); /* every frame but the bottom */
/* Keeps the frames of the set only, and gives them new numbers. */
int machine_compact(struct machine *m, struct place_set *set, struct err *e);

/* Adds the node and where one gets from it without a byte. */
void machine_add(struct machine *m, struct place_set *set, int32_t node, int32_t frame,
                 uint32_t count);
/* Adds what stands behind the innermost call of `frame`, which is not the bottom. */
void machine_return(struct machine *m, struct place_set *set, int32_t frame);
/* *to: where the byte leads; empty and not ended when nowhere. */
void machine_step(struct machine *m, const struct place_set *from, unsigned char byte,
                  struct place_set *to);
#endif
