/* service/weaver/sequence.h - which call comes next, by the numbers that clients give them.
 *
 * A client counts the calls of one model 1, 2, 3, ... and may send a later one first. Several
 * clients may drive one model, each counting from 1, and numbers may be skipped. So the next
 * expected number of each of the last SEQUENCE_STREAMS clients is kept: a call that is numbered 1,
 * or that one of them expects, fits. Another one waits for its predecessor, and is let in as a new
 * stream when that does not come. Pure; the caller locks. */
#ifndef SERVICE_WEAVER_SEQUENCE_H
#define SERVICE_WEAVER_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { SEQUENCE_STREAMS = 16 };

struct sequence_gate {
    int64_t next[SEQUENCE_STREAMS];
    int n, oldest; /* the one that a new stream takes the place of, when all are used */
};

bool sequence_fits(const struct sequence_gate *g, int64_t number);
/* It goes in: number + 1 is expected from now on. */
void sequence_admit(struct sequence_gate *g, int64_t number);
#endif
