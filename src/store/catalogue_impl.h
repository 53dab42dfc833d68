/* store/catalogue_impl.h - what the files of the catalogue share. The lock of the database is held
 * in functions that end in _locked. */
#ifndef STORE_CATALOGUE_IMPL_H
#define STORE_CATALOGUE_IMPL_H

#include <stdint.h>

#include "store/catalogue.h"

struct db;
struct db_stmt;
struct err;
struct model_row;

/* `where` is a literal with one parameter: `text`, or `id` when text is NULL. 1 found, 0 none. */
int catalogue_find_locked(struct db *d, const char *where, int64_t id, const char *text,
                          struct model_row *out, struct err *e);
/* The id that `sql` selects; b may be NULL. 1 found, 0 none. */
int catalogue_find_id_locked(struct db *d, const char *sql, const char *a, const char *b,
                             int64_t *id, struct err *e);
int catalogue_insert_locked(struct db *d, struct model_row *row, struct err *e);
/* Runs q, which changes the row `id`, and finishes it; ERR_NOT_FOUND when it changed none. */
int catalogue_change_locked(struct db *d, struct db_stmt *q, int64_t id, struct err *e);
int catalogue_set_status_locked(struct db *d, int64_t id, enum model_status status,
                                const char *error_message, struct err *e);
#endif
