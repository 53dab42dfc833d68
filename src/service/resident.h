/* service/resident.h - the one place where other weights become the resident. */
#ifndef SERVICE_RESIDENT_H
#define SERVICE_RESIDENT_H

#include <stdint.h>

struct err;
struct image;
struct model_row;
struct refusal;
struct served;
struct service;

/* The record of a catalogue row: its name, origin model, lineage root = repository id, or row name.
 * Owned; NULL: out of memory. */
struct served *resident_of_row(const struct model_row *row);

enum residency { SAME_MODEL, OTHER_MODEL };
/* [engine] Swaps the resident between two steps: state clean, counters 0, a new load counter and
 * generation. A lease outlives it only where it is the same model with other weights. Both
 * consumed. The caller publishes (state_changed). */
void resident_become(struct service *s, struct image *im, struct served *served,
                     enum residency how);
/* [engine] The same counters for weights that were written in place: `served` replaces the record
 * only. */
void resident_rewritten(struct service *s, struct served *served);
/* [engine] No resident. */
void resident_drop(struct service *s);

/* [engine] No adapter beside the resident: before the first write of a load, and on request. */
void resident_remove_adapter(struct service *s);

/* Room for one more image: waits until running requests of earlier residents have let go of theirs.
 * Any thread but the engine's. MODEL_BUSY (drain_timeout) after GRACEFUL_UNLOAD_TIMEOUT. */
int resident_wait_room(struct service *s, struct refusal *r);

/* A deliberate load or unload: the commits that no save has taken are lost, and the log says so.
 * NULL: there is none. */
void resident_log_discarded(const struct served *now);

/* Row states after a swap or a failed one: each of the two rows (0: none) is loaded if it is the
 * resident's, else ready. What the catalogue does not take is kept (service/row_status.h). */
void resident_note_rows(struct service *s, int64_t old_row, int64_t new_row);
#endif
