/* store/manifest.h - manifest.json: written in one canonical form, read from anybody and validated.
 *
 * Format: docs/formats/manifest.md. manifest_sha256 is the SHA-256 of the exact bytes of the file.
 * Safe from several threads. */
#ifndef STORE_MANIFEST_H
#define STORE_MANIFEST_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct buf;
struct err;
struct schema;

enum { MANIFEST_MAX_BYTES = 1 << 20 };
#define MANIFEST_FILE    "manifest.json"
#define MANIFEST_KIND    "miforge.checkpoint-manifest"
#define MANIFEST_VERSION "1"

/* ---- writing ---- */

/* What a save knows before the weights are hashed. All borrowed. */
struct manifest_draft {
    const json_t *caller; /* passed schema_check(SCHEMA_CALLER) and ckpt_run_id_may_save */
    const char *base_model;
    int64_t created_ms; /* wall time of the snapshot, Unix milliseconds */
};

/* Appends the canonical bytes. Fits publish_req.manifest with arg = a struct manifest_draft. */
int manifest_write(void *draft, const char weights_sha256[SHA256_HEX], struct buf *out,
                   struct err *e);

/* ---- reading ---- */

struct manifest {
    json_t *json;     /* owned; the strings below are borrowed from it */
    const char *name; /* = base_model:run_id:step-<step> */
    const char *base_model;
    const char *run_id;
    const char *parent; /* NULL: null */
    const char *created_at;
    const char *weights_sha256;
    int64_t step;
    char sha256[SHA256_HEX]; /* of the file's bytes */
};

enum manifest_fault {
    MANIFEST_OK,
    MANIFEST_MISSING,
    MANIFEST_UNREADABLE, /* not a regular file, empty, bad UTF-8, BOM, duplicate keys, not JSON */
    MANIFEST_TOO_LARGE,
    MANIFEST_SCHEMA, /* `errors` lists all */
    MANIFEST_RUN_ID, /* its run_id is no path segment: INVALID_RUN_ID */
    MANIFEST_NAME_MISMATCH,
    MANIFEST_DIRECTORY_MISMATCH,
    MANIFEST_FAILED, /* no memory, or the schema is unusable; *e */
};
/* "missing", "unreadable", "too_large", "schema", "run_id", "name_mismatch", "directory_mismatch".
 */
const char *manifest_fault_name(enum manifest_fault f);

/* Where the manifest was found; each member is checked only when it is set. */
struct manifest_place {
    const char *run_id; /* name of the run directory; with it `step` of the step directory */
    int64_t step;
    const char *base_model; /* base of a request by name, base_len bytes */
    size_t base_len;
};

/* Reads <step dir>/manifest.json. On MANIFEST_OK *out is filled (release it). Every other fault
 * sets *e to a sentence about it; MANIFEST_SCHEMA also sets *errors (owned array, see schema.h).
 * `place` may be NULL. */
enum manifest_fault manifest_read(int step_dir_fd, const struct schema *s,
                                  const struct manifest_place *place, struct manifest *out,
                                  json_t **errors, struct err *e);
/* The same for a file that is open already, and for bytes in memory. */
enum manifest_fault manifest_read_open(int fd, const struct schema *s,
                                       const struct manifest_place *place, struct manifest *out,
                                       json_t **errors, struct err *e);
enum manifest_fault manifest_parse(const char *text, size_t len, const struct schema *s,
                                   const struct manifest_place *place, struct manifest *out,
                                   json_t **errors, struct err *e);
void manifest_release(struct manifest *m); /* a zeroed struct is allowed */
#endif
