#include "service/weaver/sequence.h"

static int find(const struct sequence_gate *g, int64_t number)
{
    for (int i = 0; i < g->n; i++)
        if (g->next[i] == number)
            return i;
    return -1;
}

bool sequence_fits(const struct sequence_gate *g, int64_t number)
{
    return number == 1 || find(g, number) >= 0;
}

void sequence_admit(struct sequence_gate *g, int64_t number)
{
    int at = find(g, number);

    if (at < 0 && g->n < SEQUENCE_STREAMS) {
        at = g->n++;
    } else if (at < 0) {
        at = g->oldest;
        g->oldest = (g->oldest + 1) % SEQUENCE_STREAMS;
    }
    g->next[at] = number + 1;
}
