/* generate/history.h - inside the room: one entry of sample_history's table. */
#ifndef GENERATE_HISTORY_H
#define GENERATE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

struct sample_seen {
    int32_t token;
    int32_t generated; /* times in the answer; 0: only in the prompt */
    bool used;
};
#endif
