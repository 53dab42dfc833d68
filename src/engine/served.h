/* engine/served.h - what the resident model is called: an immutable, counted record.
 *
 * A request takes a reference at admission and reports that record's name to its end, even if a
 * save renames the resident meanwhile. A change of name or count makes a new record. */
#ifndef ENGINE_SERVED_H
#define ENGINE_SERVED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A base has 255 characters of 4 bytes at most; a name has that, a run of 255 bytes, a step of 16
 * digits, and what stands between them. */
enum { SERVED_BASE_MAX = 1024, SERVED_NAME_MAX = 4 * 255 + 255 + 24, SERVED_ADAPTER_MAX = 129 };

struct served {
    atomic_int refs;
    char name[SERVED_NAME_MAX];       /* "<row name>" or "<base>:<run>:step-<n>" */
    bool checkpoint;                  /* origin: checkpoint or model */
    int64_t commits;                  /* commit-ends since the name was set */
    int64_t row_id;                   /* catalogue row of the resident */
    uint64_t load_counter;            /* grows with every load of any kind */
    char base_model[SERVED_BASE_MAX]; /* lineage root */
    char manifest_sha256[65];         /* "" for a catalogue model */
    char adapter[SERVED_ADAPTER_MAX]; /* applied beside the weights, "" when none */
    char weights_sha256[65];          /* of the named checkpoint, "" when none */
};

/* A copy of *from with one reference; NULL: out of memory. */
struct served *served_new(const struct served *from);
/* The same into a record that nobody else has yet. */
void served_fill(struct served *to, const struct served *from);
struct served *served_ref(struct served *s);
void served_unref(struct served *s); /* NULL is allowed; any thread */
#endif
