/* service/batch_chunk.h - some rows of a batch, on their way together.
 *
 * chunk_begin reads lines and starts a thread for each row; chunk_wait comes back when all are
 * answered; then chunk_write and chunk_free. chunk_free may be called at any time: rows that still
 * run are given up. The batches' thread only. */
#ifndef SERVICE_BATCH_CHUNK_H
#define SERVICE_BATCH_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#include "service/batch_impl.h"

struct buf;
struct err;

struct chunk {
    struct batches *b;
    int64_t seq; /* of the batch */
    char endpoint[BATCH_ENDPOINT_MAX];
    uint64_t load_counter;
    int64_t offset, line;           /* where it begins in the input */
    int64_t next_offset, next_line; /* where the next one begins */
    bool end;                       /* of the input: there is no next one */
    struct item *items;
    int n, cap;
    int n_running;  /* guarded by batches.lock, and so is: */
    bool interrupt; /* rows are to be given up */
};

/* NULL with *e: the input cannot be read, or is not what was validated. */
struct chunk *chunk_begin(struct batches *b, const struct batch_row *row, int64_t offset,
                          int64_t line, struct err *e);
/* false: the rows were given up, because the batch was cancelled or is late, or the server stops.
 */
bool chunk_wait(struct chunk *c, const struct batch_row *row);
/* Why the rows must be tried again later (static), when the server, not a row, is the reason. */
const char *chunk_later(const struct chunk *c);
/* The lines of both files, in order; counts them in the row. */
void chunk_write(const struct chunk *c, struct batch_row *row, struct buf *output,
                 struct buf *error);
void chunk_free(struct chunk *c); /* NULL is allowed */
#endif
