/* service/weaver/ckpt.h - checkpoints as rows: names, paths, lifetimes, who uses them.
 *
 * Life: w_ckpt_insert (pending: the row is on disk before anything is renamed), then
 * w_ckpt_complete or w_ckpt_drop. A completed one ends by its time or by hand: its row stays as a
 * tombstone for CKPT_TOMBSTONE_MS, so that its path is answered with 410. expiry.json in its
 * directory is the authority for deletion (ckpt_files.h); the row follows it. Any thread. */
#ifndef SERVICE_WEAVER_CKPT_H
#define SERVICE_WEAVER_CKPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/uuid.h"

struct buf;
struct db;
struct err;
struct refusal;
struct weaver;

enum { CKPT_NAME_MAX = 128 * 4, CKPT_SLUG_MAX = 160, CKPT_BASE_MAX = 1024, LORA_ALPHA = 32 };
#define CKPT_TOMBSTONE_MS (INT64_C(7) * 24 * 3600000)

enum ckpt_type { CKPT_WEIGHT, CKPT_WEIGHT_AND_OPTIMIZER, CKPT_SAMPLING };
const char *ckpt_type_name(enum ckpt_type t);
int ckpt_type_by_name(const char *name); /* -1: unknown */

struct w_shape { /* what a run trains: a checkpoint fits a run of the same shape and base */
    bool full;
    int rank;
    bool attn, mlp, unembed;
};

struct w_ckpt {
    char id[UUID_TEXT], model_id[UUID_TEXT], operation_id[UUID_TEXT];
    char slug[CKPT_SLUG_MAX];
    bool has_name;
    char name[CKPT_NAME_MAX + 1];
    enum ckpt_type type;
    char status[12]; /* pending, completed, error, deleted */
    char owner[65];
    char base_model[CKPT_BASE_MAX];
    int64_t row_id; /* of the base */
    struct w_shape shape;
    int64_t step;
    bool has_optimizer;
    int64_t ttl_s;      /* 0: permanent */
    int64_t expires_ms; /* 0: permanent */
    int64_t created_ms;
};

/* ---- names ---- */
/* The name a client sent (NULL: none): slug without the part that makes it unique. */
void ckpt_slug(const char *name, bool exported, int64_t counter, char out[CKPT_SLUG_MAX]);
int ckpt_check_name(const char *name, struct refusal *r); /* invalid_name */
/* "weaver://<model>/checkpoints/<slug>" appended. */
void w_ckpt_path(const struct w_ckpt *c, struct buf *out);
/* Cuts a path into its parts (borrowed lengths); false: no such path. */
bool ckpt_path_parse(const char *path, char model_id[65], char slug[CKPT_SLUG_MAX]);
/* ttl_seconds of a body: absent leaves *ttl_s, null gives 0. invalid_ttl. */
int ckpt_read_ttl(const json_t *body, int64_t *ttl_s, struct refusal *r);

/* ---- rows ---- */
/* Fills id, slug, status, created_ms. */
int w_ckpt_insert(struct weaver *w, struct w_ckpt *c, bool exported, struct refusal *r);
/* As it stands; the lock of the database is held. */
int w_ckpt_insert_row(struct db *d, const struct w_ckpt *c, struct err *e);
/* Takes created_ms, expires_ms, step of *c. */
int w_ckpt_complete(struct weaver *w, struct w_ckpt *c, struct err *e);
void w_ckpt_drop(struct weaver *w, const char *id);
/* Ends its row, then its files. */
int w_ckpt_delete(struct weaver *w, const struct w_ckpt *c, struct err *e);
/* ttl_s and expires_ms of *c, which stand in its expiry.json, into its row and its exports'. */
int w_ckpt_follow(struct weaver *w, const struct w_ckpt *c, struct err *e);
/* By path or by id; of any model. checkpoint_not_found, checkpoint_expired, checkpoint_not_ready.
 */
int w_ckpt_find(struct weaver *w, const char *ref, struct w_ckpt *out, struct refusal *r);
bool ckpt_expired(const struct w_ckpt *c);
json_t *ckpt_object(const struct w_ckpt *c);
/* The result of the operation that saved it. */
json_t *ckpt_result(const struct w_ckpt *c, bool exported);
/* Live ones of a model, oldest first: an owned array. */
json_t *w_ckpt_objects(struct weaver *w, const char *model_id, struct err *e);
int w_ckpt_each(struct weaver *w, const char *where, const char *arg,
                int (*fn)(void *arg, const struct w_ckpt *c), void *fn_arg, struct err *e);
/* Path of the newest completed one of a model into out; "" when there is none. */
void w_ckpt_last(struct weaver *w, const char *model_id, struct buf *out);

/* ---- use ---- */
/* While pinned its files are not removed. checkpoint_expired: they are, or are being removed. */
int w_ckpt_pin(struct weaver *w, const char *id, struct refusal *r);
/* Nobody else has it, and until the unpin nobody gets it: it may be removed. */
bool w_ckpt_ending(struct weaver *w, const char *id);
void w_ckpt_unpin(struct weaver *w, const char *id); /* after either of the two */
/* Sees to those whose time is over, and to old tombstones. */
void w_ckpts_sweep(struct weaver *w);
/* Rows that an earlier process left pending: finished, or dropped; directories whose rows it ended.
 * Before w_ops_restart: operations whose checkpoint is there are done. */
int w_ckpts_restart(struct weaver *w, struct err *e);
#endif
