/* service/save_op.h - one save on its way; shared by save.c (execution) and save_rules.c
 * (refusals). */
#ifndef SERVICE_SAVE_OP_H
#define SERVICE_SAVE_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "service/core_loan.h"
#include "service/op.h"
#include "store/name.h"
#include "store/publish.h"

struct err;
struct image;
struct snapshot;

struct save_op {
    struct op op;           /* first: the checks take a struct op */
    const json_t *manifest; /* the caller's, borrowed from the body */
    const char *run_id;     /* borrowed from the manifest */
    int64_t step;
    struct buf name;          /* <base_model>:<run_id>:step-<n> */
    char path[CKPT_PATH_MAX]; /* <run_id>/step-<NNNNNN> */
    char dir[CKPT_STEP_DIR];  /* step-<NNNNNN> */
    struct image *image;      /* counted: the resident; its files are copied along */
    /* fixed at the instant of the snapshot */
    struct snapshot *snapshot;
    char base_model[SERVED_BASE_MAX]; /* the lineage root; of a promotion: from the start */
    int64_t created_ms, pause_end_ns;
    double snapshot_ms, write_ms;
    int64_t commits_ever;
    uint64_t load_counter;
    struct served
        *renamed; /* what the resident becomes: its memory is taken before the first write */
    bool parent_match;
    struct core_loan loan; /* while the files are written */
    /* of a promotion (promote.c); zero in a save */
    struct ckpt_source source; /* of the weights; read NULL: the snapshot */
    const struct buf *config;  /* config.json of a merged adapter, or NULL */
    /* afterwards */
    struct publish_result result;
    bool identity_set;
};

/* Everything that can be decided without the barrier, in the documented order (spec 5.3, rows 1 to
 * 14). */
extern const struct refusal_rule save_rules[];
/* Decided together with the snapshot, between two steps (rows 3, 4 and 8 again, then 15 to 17'). */
extern const struct refusal_rule save_barrier_rules[];

/* The same for a promotion, which needs neither resident nor attachment. */
extern const struct refusal_rule promote_rules[];
/* promote.c: the checkpoint that is promoted is there; fills image and base_model. */
refusal_check_fn check_promoted;

/* save.c: companions, weights and manifest, published; op->result tells how far it came. */
int save_write_files(struct save_op *op, struct err *e);
json_t *save_answer(const struct save_op *op);
int save_refuse_write(const struct save_op *op, const struct err *e, struct refusal *r);
void save_fill_audit(struct save_op *op);

/* The manifest's parent is the checkpoint (or, with null, the model) that the weights came from. */
bool save_parent_matches(const json_t *manifest, const struct served *served);
#endif
