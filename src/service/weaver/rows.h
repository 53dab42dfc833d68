/* service/weaver/rows.h - rows of a table as structs. Any thread; each call takes the database's
 * lock and gives it back.
 *
 * A condition is a literal that may use ?1 and ?2 (texts, NULL binds null) and ?3 (now, ms). */
#ifndef SERVICE_WEAVER_ROWS_H
#define SERVICE_WEAVER_ROWS_H

#include <stddef.h>
#include <stdint.h>

struct db;
struct db_stmt;
struct err;

struct w_table {
    const char *name, *columns; /* columns: in the order that read() expects */
    size_t row_bytes;
    void (*read)(const struct db_stmt *q, void *row);
    void (*release)(void *row); /* what a row owns; NULL: nothing */
};

/* The first row into *row. 1 found, 0 none, -1 with *e. */
int w_row_first(struct db *d, const struct w_table *t, const char *where, const char *a,
                const char *b, void *row, struct err *e);
/* All of them, owned by the caller, who releases each and frees the array; *n tells how many. NULL
 * with *n 0: none; with *n -1: *e says why. */
void *w_rows_all(struct db *d, const struct w_table *t, const char *where, const char *a, int *n,
                 struct err *e);
/* How many rows a table has, whatever page of them was asked for. */
int w_count(struct db *d, const char *table, int64_t *n, struct err *e);
#endif
