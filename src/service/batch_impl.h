/* service/batch_impl.h - inside of batches: what the requests and the one working thread share.
 *
 * `lock` covers everything below it; the database has its own. Nobody holds both. */
#ifndef SERVICE_BATCH_IMPL_H
#define SERVICE_BATCH_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "service/batch_rows.h"
#include "service/batches.h"
#include "service/secret.h"

struct batch_line;
struct buf;
struct chunk;

/* What is known of an open batch beside its row; gone with the process. */
struct batch_note {
    char id[BATCH_ID_MAX];
    const char *waits;       /* why nothing runs (static), or NULL */
    char lease[SECRET_MAX];  /* of the caller; "": none */
    int64_t renew_ns, ttl_s; /* of that lease */
    uint64_t missed; /* 1 + the count of loads at which its model was found missing; 0: never */
};

struct batches {
    struct service *s; /* borrowed */
    struct batch_files *files;
    batch_row_fn *row_fn;
    void *row_arg;
    pthread_t thread;
    bool started;
    int64_t prune_ns;      /* the thread's alone: when to look for expired files again */
    int64_t next_expiry_s; /* the thread's alone: of the batches that are open; 0: none */
    struct chunk *ahead;   /* the thread's alone: runs while another is recorded; or NULL */
    /* The thread's alone: the lease that batches take themselves; "" in `lease`: none. */
    struct batch_note own;
    int64_t own_model;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping, poked;
    struct batch_note *notes; /* owned */
    int n_notes;
    char running[BATCH_ID_MAX]; /* whose rows are with the engine */
    bool interrupt;             /* they are to be given up */
};

/* batches.c */
void batch_poke(struct batches *b);
/* The note of a batch, made when it is missing; NULL: out of memory. The lock is held. */
struct batch_note *batch_note_locked(struct batches *b, const char *id);
void batch_set_waits(struct batches *b, const char *id, const char *why);
void batch_forget_note(struct batches *b, const char *id);
bool batch_stopping(struct batches *b);

/* batch_lease.c: 0: the batch's model is leased for it; -1: *why. */
int batch_lease_hold(struct batches *b, const struct batch_row *row, const char **why);
/* Renews the lease that the batch has, when it is time. */
void batch_lease_renew(struct batches *b, const struct batch_row *row);
void batch_lease_drop(struct batches *b); /* the batches' own lease, if any */
/* The live lease's own id: 1; another one: 0. */
int batch_lease_lend(struct batches *b, const char *id, const char *lease);

/* batch_validate.c: true: something was done. */
bool batch_validate(struct batches *b, struct batch_row *row);

/* batch_progress.c: runs the next rows and records them. true: something was done. */
bool batch_run_chunk(struct batches *b, struct batch_row *row);
void batch_drop_ahead(struct batches *b); /* gives up the rows that run ahead, if any */

/* batch_results.c */
struct batch_results {
    int output, error; /* descriptors; -1 */
};
int batch_results_open(struct batch_results *x, struct batches *b, const struct batch_row *row,
                       struct err *e);
/* Appends, syncs, and moves row->output_bytes and row->error_bytes on. */
int batch_results_add(struct batch_results *x, struct batch_row *row, const struct buf *output,
                      const struct buf *error, struct err *e);
void batch_results_close(struct batch_results *x);

/* One line of a file of results, with its newline. `id`: a JSON string. */
void batch_write_answer(struct buf *out, const json_t *id, const struct batch_answer *a);
/* `a` NULL: there is no response. */
void batch_write_error(struct buf *out, const struct batch_line *l, const char *code,
                       const char *message, const struct batch_answer *a);

/* batch_close.c: the lines that are left get an error line each with this code, the files of
 * results are published, and the batch has ended. `errors` (JSON text, consumed) or NULL: as they
 * are. */
int batch_close(struct batches *b, struct batch_row *row, enum batch_status to, const char *code,
                const char *message);
/* Ends a batch as failed, with one entry of `errors` before the others. Entries are consumed;
 * `first` may be NULL. */
int batch_fail(struct batches *b, struct batch_row *row, json_t *first, json_t *others);

/* The same, because the input is missing or changed (ERR_NOT_FOUND, ERR_FORMAT). */
int batch_fail_input(struct batches *b, struct batch_row *row, const struct err *e);
/* An entry of `errors`. `line` is consumed; param may be NULL. */
json_t *batch_error(const char *code, json_t *line, const char *message, const char *param);

/* The input file for reading, and whether it is what was uploaded: -1 with ERR_NOT_FOUND or
 * ERR_FORMAT. */
int batch_open_input(struct batches *b, const struct batch_row *row, bool check_hash,
                     struct err *e);
#endif
