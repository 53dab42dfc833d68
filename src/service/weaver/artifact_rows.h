/* service/weaver/artifact_rows.h - exports as rows. Any thread. */
#ifndef SERVICE_WEAVER_ARTIFACT_ROWS_H
#define SERVICE_WEAVER_ARTIFACT_ROWS_H

#include <jansson.h>
#include <stdint.h>

#include "base/uuid.h"

struct err;
struct refusal;
struct weaver;

struct w_artifact {
    char id[UUID_TEXT], checkpoint_id[UUID_TEXT], model_id[UUID_TEXT], operation_id[UUID_TEXT];
    char uri[320], kind[12], status[12], owner[65], error[320];
    int64_t size_bytes;
    json_t *manifest;                                  /* owned by who read it; NULL: none yet */
    int64_t ttl_s, expires_ms, created_ms, updated_ms; /* 0: none */
};

int w_artifact_insert(struct weaver *w, const struct w_artifact *a, struct err *e);
/* status, size, manifest, error, updated_ms. */
int w_artifact_update(struct weaver *w, const struct w_artifact *a, struct err *e);
/* Those of a checkpoint that have no lifetime of their own end with it; 0: never. */
int w_artifacts_follow(struct weaver *w, const char *checkpoint_id, int64_t expires_ms,
                       struct err *e);
/* A live one; artifact_not_found. */
int w_artifact_find(struct weaver *w, const char *id, struct w_artifact *out, struct refusal *r);
/* 1: the newest completed one of this kind. 0: none. */
int w_artifact_of(struct weaver *w, const char *checkpoint_id, const char *kind,
                  struct w_artifact *out);
/* `where` as in rows.h; arg is ?1. */
int w_artifact_each(struct weaver *w, const char *where, const char *arg,
                    int (*fn)(void *arg, const struct w_artifact *a), void *fn_arg, struct err *e);
json_t *w_artifact_object(const struct w_artifact *a);
json_t *w_artifact_objects(struct weaver *w, const char *checkpoint_id, struct err *e);
#endif
