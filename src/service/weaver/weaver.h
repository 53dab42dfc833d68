/* service/weaver/weaver.h - the training and sampling API (/api/v1), without HTTP.
 *
 * One struct weaver, opened by service_open, holds sessions, runs, operations, checkpoints,
 * samplers and exports. Rows live in the catalogue's database; what is being done lives in memory.
 * Each route is one use case of the type weaver_fn: it reads a struct weaver_call and fills its
 * answer. The contract: docs/api/weaver.md.
 *
 * Threads: use cases run on any thread but the engine's, and may block (an operation is held for at
 * most WEAVER_HOLD_GET_MS). Operations of one run go strictly in order (runs.h). */
#ifndef SERVICE_WEAVER_WEAVER_H
#define SERVICE_WEAVER_WEAVER_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/uuid.h"

struct err;
struct refusal;
struct service;
struct weaver;

enum {
    WEAVER_HOLD_POST_MS = 250,
    WEAVER_HOLD_GET_MS = 10000,
    WEAVER_PAGE_MAX = 1000, /* items of one list answer */
};

/* One request, decoded. Everything above `status` is borrowed. */
struct weaver_call {
    const char *owner;   /* identity of the key */
    const char *key;     /* the id in the path, "" without one */
    const char *rest;    /* what follows it, "" without one */
    const json_t *body;  /* an object; {} when there was none */
    const json_t *query; /* an object of strings */
    const void *pack;    /* tensor pack beside the body, or NULL */
    size_t pack_bytes;
    const char *origin;      /* "http://host:port", for links in answers */
    const char *range;       /* Range header or NULL */
    const atomic_bool *gone; /* the client has left */
    /* the answer: data, or text (JSON), or a file */
    int status; /* set to the route's before the call */
    json_t *data;
    struct buf text;
    char ended[UUID_TEXT]; /* text is the envelope of this operation, which has ended; "": no */
    int file;              /* -1: none; else a descriptor, positioned at the first of file_bytes */
    int64_t file_bytes, file_from, file_size;
};

/* 0 with the answer filled in, or -1 with *r. */
typedef int weaver_fn(struct weaver *w, struct weaver_call *c, struct refusal *r);

/* sessions.c */
weaver_fn weaver_session_create, weaver_session_get, weaver_session_heartbeat,
    weaver_session_metrics;
/* catalogue.c */
weaver_fn weaver_supported_models, weaver_model_catalog, weaver_organizations, weaver_projects,
    weaver_scope, weaver_scheduling, weaver_quota_balance, weaver_quota_list, weaver_quota_request,
    weaver_deployments, weaver_deployment_get, weaver_deploy, weaver_datasets, weaver_dataset_get,
    weaver_dataset_lengths;
/* operations.c */
weaver_fn weaver_operation_get, weaver_operation_list;
/* models.c */
weaver_fn weaver_model_create, weaver_model_list, weaver_model_get, weaver_run_get,
    weaver_run_losses, weaver_model_terminate;
/* training.c */
weaver_fn weaver_forward, weaver_forward_backward, weaver_optimizer_step;
/* checkpoints.c, save.c, load.c */
weaver_fn weaver_checkpoint_list, weaver_checkpoint_ttl, weaver_checkpoint_all,
    weaver_checkpoint_get, weaver_checkpoint_delete, weaver_save, weaver_export_sampler,
    weaver_load;
/* samplers.c, samples.c */
weaver_fn weaver_sampler_create, weaver_sampler_get, weaver_sampler_delete, weaver_sample,
    weaver_logprobs, weaver_pause, weaver_continue;
/* artifacts.c, download.c */
weaver_fn weaver_export_model, weaver_export_checkpoint, weaver_artifact_list, weaver_artifact_get,
    weaver_artifact_files, weaver_file;

/* A run or a sampler holds the weights of this catalogue row. NULL is allowed. */
bool weaver_holds_row(struct weaver *w, int64_t row_id);

/* Rows of an earlier process are put in order: operations that had not ended, checkpoints between
 * rename and row. NULL with *e. */
struct weaver *weaver_open(struct service *s, struct err *e);
/* Ends runs and operations; background work of the service may still run. NULL is allowed. */
void weaver_stop(struct weaver *w);
/* After weaver_stop and the last request: what the engine has done is finished, which may begin
 * background work one last time. NULL is allowed. */
void weaver_settle(struct weaver *w);
void weaver_close(struct weaver *w); /* after weaver_stop and the end of all work */
#endif
