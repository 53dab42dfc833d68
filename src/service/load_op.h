/* service/load_op.h - one weights load on its way; shared by the load*.c files. */
#ifndef SERVICE_LOAD_OP_H
#define SERVICE_LOAD_OP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"
#include "engine/image.h"
#include "service/core_loan.h"
#include "service/op.h"
#include "store/catalogue.h"
#include "store/manifest.h"
#include "store/reader.h"
#include "store/resolve.h"
#include "tensor/safetensors.h"

struct load_op {
    struct op op; /* first: the checks take a struct op */
    /* the request */
    const json_t *name, *path; /* strings, borrowed; at most one is set */
    bool plan;                 /* only look: nothing is kept in memory */
    bool by_id;
    int64_t model_id;
    const json_t *gpu; /* of any type, borrowed; NULL: not given */
    bool trust_remote_code;
    /* what it names */
    struct resolved at;
    struct manifest manifest;
    struct model_row row; /* by_id */
    /* the weights file */
    struct ckpt_reader *reader;
    struct st_index index;
    bool index_ok;
    struct err index_error;      /* why not */
    bool room;                   /* memory can hold a second image */
    struct image_staging staged; /* the verified bytes, when memory allowed to keep them */
    char sha256[SHA256_HEX];
    double verify_ms, write_ms;
    bool delayed;          /* a test build's delay is over */
    struct core_loan loan; /* while the file is hashed */
    /* how it goes on */
    bool in_place;
    struct image_files *files; /* counted: of the resident (in place) or of the directory */
    char *dir;                 /* owned: real path of the step directory */
    int64_t carrier;           /* row of a full reload */
    bool carrier_new;
    struct image *image; /* counted: what becomes the resident by a swap */
    bool through_arena;  /* written into the memory of the resident, which must drain first */
    uint64_t serial;     /* of the attachment then; 0: none */
    bool drained;
    bool again;     /* the attachment came or went meanwhile: decide anew */
    bool need_room; /* too many images are alive for a swap */
    int64_t old_row;
};

/* Rows 1 to 14 of the documented order, decided before the file is opened. */
extern const struct refusal_rule load_rules[];
/* Rows 15 to 17: the file, its hash, its header. */
extern const struct refusal_rule load_file_rules[];
/* Rows 18 to 22: what a full reload needs; rows of an in-place load pass. */
extern const struct refusal_rule load_mode_rules[];
/* Rows 9 to 14 again, on the engine thread, together with the reservation. */
extern const struct refusal_rule load_barrier_rules[];

refusal_check_fn check_weights_file, check_weights_hash, check_weights_header; /* load_verify.c */
refusal_check_fn check_load_dir; /* load_dir.c: row 19 */
/* Row 21: `id` has the `what` ("directory" or "name") that this checkpoint's row would have. */
int load_refuse_registered(const struct load_op *op, int64_t id, const char *name, const char *what,
                           struct refusal *r);

/* Nonzero: the client has left, or the server is being stopped. For image_load.progress; ctx is a
 * struct load_op. */
int load_given_up(void *ctx, uint64_t done, uint64_t total);

bool load_may_write(
    const struct op *op); /* the caller may load in place although something is attached */

void load_op_release(struct load_op *op); /* everything but op.op */
#endif
