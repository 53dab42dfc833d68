/* store/name.h - checkpoint names and directory names.
 *
 *     name       <base_model>:<run_id>:step-<n>      n unpadded; the base may hold colons
 *     directory  <run_id>/step-<n>                   n with at least six digits
 * Steps run from 0 to 2^53 - 1. Nothing here touches the disk. */
#ifndef STORE_NAME_H
#define STORE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

#define CKPT_STEP_MAX    9007199254740991 /* 2^53 - 1: exact in every JSON reader */
#define CKPT_RUN_PATTERN "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

enum {
    CKPT_RUN_MAX = 255, /* bytes of a run id that can be loaded: one path segment */
    CKPT_STEP_DIR = 32, /* room for "step-" and sixteen digits */
    CKPT_PATH_MAX = CKPT_RUN_MAX + 1 + CKPT_STEP_DIR, /* "<run_id>/step-<NNNNNN>" with NUL */
    CKPT_NAME_MAX_CHARS = 255,                        /* code points a served name may have */
};

struct ckpt_name {
    size_t base_len; /* base_model is the first base_len bytes of the parsed text */
    char run_id[CKPT_RUN_MAX + 1];
    int64_t step;
};

/* From the right: "step-" and digits without leading zeros, then run_id, the rest is base_model.
 * False: not of this form (an empty part, a NUL, a run id that is no path segment). */
bool ckpt_name_parse(const char *text, size_t len, struct ckpt_name *out);
void ckpt_name_write(struct buf *b, const char *base_model, const char *run_id, int64_t step);
size_t ckpt_name_chars(const char *name); /* Unicode code points of valid UTF-8 */

void ckpt_step_dir(char out[CKPT_STEP_DIR], int64_t step); /* "step-000500" */
/* True for exactly what ckpt_step_dir writes: at least six digits, no other leading zeros. */
bool ckpt_step_dir_parse(const char *text, int64_t *step);
void ckpt_path(char out[CKPT_PATH_MAX], const char *run_id, int64_t step);

bool ckpt_run_id_may_save(const char *run_id, size_t len); /* CKPT_RUN_PATTERN */
/* One safe path segment: 1..255 bytes, no '/', NUL or ':', not "." or "..". */
bool ckpt_run_id_may_load(const char *run_id, size_t len);
#endif
