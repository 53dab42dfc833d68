/* service/weaver/artifacts.h - exports of checkpoints in the form of Hugging Face tools.
 *
 * A checkpoint's own files are that form already, so an export links them (or copies, across file
 * systems) into <WEAVER_CHECKPOINT_DIR>/.artifacts/<id>/; only a merged adapter is computed. An
 * artifact outlives its checkpoint. */
#ifndef SERVICE_WEAVER_ARTIFACTS_H
#define SERVICE_WEAVER_ARTIFACTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct refusal;
struct w_ckpt;
struct w_op;
struct weaver;

struct w_export {
    bool merge, force;
    int64_t ttl_s; /* 0: none of its own */
};

/* Body of export-hf and of checkpoints/{id}/export. merge_adapter_unsupported, invalid_ttl. */
int w_export_read(const json_t *body, bool full, struct w_export *x, struct refusal *r);
/* Makes the artifact and ends the operation with it. Blocks: on a job. */
void w_export_run(struct weaver *w, struct w_op *op, const struct w_ckpt *c,
                  const struct w_export *x);
void w_artifacts_sweep(struct weaver *w);
int w_artifacts_restart(struct weaver *w, struct err *e);
#endif
