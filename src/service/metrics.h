/* service/metrics.h - what the use cases count, and GET /metrics.
 *
 * One struct metrics a service; every function may be called from any thread and never blocks for
 * long. Names and meanings: docs/api/metrics.md. */
#ifndef SERVICE_METRICS_H
#define SERVICE_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "service/refusal.h"

struct buf;
struct err;
struct http_stats;
struct metrics;
struct service;

struct metrics *metrics_new(struct err *e);
void metrics_free(struct metrics *m); /* NULL is allowed */

/* The gate for new requests is closed, or open; the time in between is a pause. */
void metrics_gate(struct metrics *m, bool closed);
void metrics_snapshot(struct metrics *m, double ms); /* the instant of a save */
/* A protected call has ended: "weights_save" (static), its status, and why not (NULL: accepted). */
void metrics_operation(struct metrics *m, const char *operation, int status,
                       const struct refusal *r);
void metrics_saved(struct metrics *m, int64_t bytes, double ms);
void metrics_verified(struct metrics *m, double ms); /* a checkpoint was hashed for a load */
void metrics_refused(struct metrics *m, enum refusal_code code); /* told to a client */
/* A trainer computed the log-probabilities of n sampled tokens again; the largest difference. */
void metrics_gap(struct metrics *m, int n, double gap);

/* Appends everything in the text format of Prometheus 0.0.4. */
void metrics_write(struct service *s, const char *version, const struct http_stats *http,
                   struct buf *out);

/* ---- inside the room: metrics.c counts, metrics_text.c writes ---- */

enum { METRICS_OPERATIONS_MAX = 24 };

struct operation_count {
    const char *name; /* static */
    uint64_t accepted, refused, failed;
};

struct metrics_counts {
    struct histogram pause_s, snapshot_s, save_s, verify_s;
    int64_t saved_bytes;
    uint64_t verify_failures;
    uint64_t compared_tokens;
    double logprob_gap; /* the largest since the start */
    struct operation_count operations[METRICS_OPERATIONS_MAX];
    int n_operations;
    uint64_t refusals[REFUSAL_CODES];
};

void metrics_copy(struct metrics *m, struct metrics_counts *out);
#endif
