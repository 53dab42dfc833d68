/* service/weaver/ckpt_files.h - the directory of a checkpoint: written in one step, verified when
 * read.
 *
 * <WEAVER_CHECKPOINT_DIR>/<model-id>/<checkpoint-id>/ holds model.safetensors with its companions
 * or adapter_model.safetensors with adapter_config.json, optimizer.safetensors and
 * masters.safetensors where they were asked for, checkpoint.json (every fact, sha256 and size of
 * each file) and expiry.json, the one file that is ever replaced. docs/formats/weaver-checkpoint.md
 * is the normative text. Any thread; calls write and hash whole files. */
#ifndef SERVICE_WEAVER_CKPT_FILES_H
#define SERVICE_WEAVER_CKPT_FILES_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "service/weaver/ckpt.h"

struct adapter;
struct err;
struct image;
struct model_config;
struct run_view;

/* Beside the row, what checkpoint.json tells. Borrowed during the call. */
struct ckpt_facts_of_run {
    const struct run_view *view;
    uint64_t seed;
    const char *numerics;    /* "exact-1" */
    const char *base_sha256; /* "" when unknown */
    const char *parent;      /* path or id of the checkpoint that was loaded last, "" for none */
};
/* Writes and publishes; takes c->created_ms and expires_ms anew: the moment it is complete. */
int ckpt_files_write(struct weaver *w, struct w_ckpt *c, const struct ckpt_facts_of_run *f,
                     struct err *e);

int ckpt_files_dir(struct weaver *w, const char *model_id, const char *id, struct err *e);
/* checkpoint.json as an owned object; ERR_FORMAT when it is no whole record. */
json_t *ckpt_files_record(int dir_fd, struct err *e);
/* sha256 that the record has for a file; NULL: not there. */
const char *ckpt_record_sha(const json_t *record, const char *file);
/* Hashes the file and compares. ERR_CANCELLED once *stop is true; NULL: never. */
int ckpt_files_verify(int dir_fd, const json_t *record, const char *file, const atomic_bool *stop,
                      struct err *e);
/* The adapter of a checkpoint, verified, for a base of this config; counted. */
struct adapter *ckpt_files_adapter(struct weaver *w, const struct w_ckpt *c,
                                   const struct model_config *config, struct err *e);

/* Every file of the record is there with its size; the lifetime of expiry.json into *c. */
int ckpt_files_whole(int dir_fd, const json_t *record, struct w_ckpt *c, struct err *e);

int ckpt_files_set_expiry(struct weaver *w, const struct w_ckpt *c, struct err *e);
/* expiry.json can be read and its time is over. Where it can be read *c takes its lifetime. */
bool ckpt_files_expired(struct weaver *w, struct w_ckpt *c, struct err *e);
/* What cannot be removed is logged, and tried again (store/leftovers.h). */
void ckpt_files_clear(struct weaver *w, const struct w_ckpt *c);
/* Is a pending one whole on disk after all? Then its row's facts are filled in from there. */
int ckpt_files_settle(struct weaver *w, struct w_ckpt *c, struct err *e);
/* Temporary entries of a process that died are removed. */
void ckpt_files_clean(struct weaver *w);
#endif
