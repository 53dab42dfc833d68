/* service/row_status.h - the status of a catalogue row, also while the catalogue takes no writes.
 *
 * What is loaded is a fact of the engine; the row's status is a note of it. A note that the
 * catalogue does not take (a full disk) is kept here: whoever reads the row is told what was to be
 * noted, and each look tries to note it again. A row would else stay "loading" or "loaded", which
 * nobody could wait for or delete, until the next start. Any thread but the engine's. */
#ifndef SERVICE_ROW_STATUS_H
#define SERVICE_ROW_STATUS_H

#include <stdint.h>

#include "store/catalogue.h"

struct err;
struct row_status;
struct service;

struct row_status *row_status_new(struct err *e); /* owned */
void row_status_free(struct row_status *n);       /* NULL is allowed */

/* Writes what must be written before anything else happens. Fails as catalogue_set_status; what was
 * kept of the row is no more. */
int row_status_set(struct service *s, int64_t row, enum model_status status, struct err *e);
/* Notes what has happened; `why` (NULL: none) is copied. Kept, and logged, where the catalogue does
 * not take it; a row that is not there needs no note. */
void row_status_note(struct service *s, int64_t row, enum model_status status, const char *why);
/* The row was written otherwise: what was kept of it is no more. */
void row_status_forget(struct service *s, int64_t row);

/* Puts what is kept into rows that were read just now, and tries to write it. */
void row_status_correct(struct service *s, struct model_row *rows, int n);
/* -1: the row's note is still not written; *e says why. */
int row_status_written(struct service *s, int64_t row, struct err *e);
#endif
