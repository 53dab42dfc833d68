/* service/batch_files_impl.h - inside of batch_files: the statements. The database's lock is held
 * in functions that end in _locked. */
#ifndef SERVICE_BATCH_FILES_IMPL_H
#define SERVICE_BATCH_FILES_IMPL_H

#include "service/batch_files.h"
#include "service/batch_rows.h"

struct batch_files {
    const struct settings *settings; /* borrowed */
    struct db *db;                   /* borrowed */
    struct leftovers *leftovers;     /* borrowed */
    int dir;
};

int batch_files_sweep(struct batch_files *f, struct err *e);

/* 1 found, 0 none, -1. */
int batch_files_get_locked(struct db *d, const char *id, struct file_row *row, struct err *e);
/* Up to limit + 1 rows behind the row `seq` (0: from the start); *rows owned. */
int batch_files_page_locked(struct db *d, const struct file_query *q, int64_t seq,
                            struct file_row **rows, int *n, struct err *e);
/* 1: the open batch `user` reads the file. */
int batch_files_user_locked(struct db *d, const char *id, char user[BATCH_ID_MAX], struct err *e);
int batch_files_end_locked(struct db *d, const char *id, enum file_status status, int64_t now,
                           struct err *e);
/* Marks what has expired and tells the ids (*ids owned); forgets rows that ended before `oldest`.
 */
int batch_files_expire_locked(struct db *d, int64_t now, int64_t oldest, char (**ids)[FILE_ID_MAX],
                              int *n, struct err *e);
/* 1: a row or an open batch needs the bytes of this name. */
int batch_files_wanted_locked(struct db *d, const char *id, bool partial, struct err *e);
#endif
