/* db/db.h - one SQLite file: open, migrate, transactions, prepared statements.
 *
 * Opened in WAL mode with synchronous=FULL and foreign keys on; a commit that returned is on disk.
 * The schema version is PRAGMA user_version; db_open brings an older file up to date in one
 * transaction and refuses a file whose version is newer than this program knows.
 *
 * Threads: a database may be shared. Every use is between db_lock and db_unlock (db_begin takes the
 * lock, db_commit and db_abort give it back); statements live inside that bracket. Errors:
 * ERR_CONFLICT for a broken UNIQUE or CHECK, ERR_SPACE for a full disk, ERR_FORMAT for a file that
 * is no database or is too new, else ERR_IO. */
#ifndef DB_DB_H
#define DB_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct db;
struct err;
struct sqlite3_stmt;

/* Creates the file (mode 0600) when it is missing; ":memory:" for tests. Owned (db_close), NULL
 * with *e. */
struct db *db_open(const char *path, struct err *e);
void db_close(struct db *d); /* NULL is allowed */
int db_version(const struct db *d);
/* From now on a commit of this connection survives the end of the process, and a power cut only
 * once a later commit of another connection, or the checkpoint of the log, has synced it. For rows
 * that no promise depends on. */
int db_relax(struct db *d, struct err *e);

void db_lock(struct db *d);
void db_unlock(struct db *d);
/* lock + BEGIN IMMEDIATE ... COMMIT + unlock. After db_begin failed, nothing is held. */
int db_begin(struct db *d, struct err *e);
int db_commit(struct db *d, struct err *e); /* rolls back when the commit fails */
void db_abort(struct db *d);
/* One of the two, as rc says: rc where it is at least 0 and the commit works, else -1. */
int db_end(struct db *d, int rc, struct err *e);

/* One statement. Bind from the left, then step; a failed bind is reported by the step. Statements
 * that were finished lately are kept parsed, by their text: values are bound, never written into
 * it.
 *     struct db_stmt q = {0};
 *     if (db_prepare(&q, d, "SELECT name FROM models WHERE id = ?", e) < 0) ...
 *     db_bind_int(&q, id);
 *     while ((rc = db_step(&q, e)) > 0) use(db_text(&q, 0));
 *     db_finish(&q); */
struct db_stmt {
    struct db *db;
    struct sqlite3_stmt *stmt;
    int bound;  /* parameters bound so far */
    int failed; /* result code of the first bind that failed */
};

int db_prepare(struct db_stmt *q, struct db *d, const char *sql, struct err *e);
void db_bind_int(struct db_stmt *q, int64_t v);
void db_bind_text(struct db_stmt *q, const char *s); /* NULL binds null; copied */
int db_step(struct db_stmt *q, struct err *e);       /* 1 a row, 0 done, -1 with *e */
int64_t db_int(const struct db_stmt *q, int column);
const char *db_text(const struct db_stmt *q,
                    int column); /* borrowed until the next step; NULL: null */
bool db_is_null(const struct db_stmt *q, int column);
/* A text column into a fixed field (str_copy), null as "". */
void db_copy_text(const struct db_stmt *q, int column, char *to, size_t size);
/* The same as an owned string, null as NULL. False: out of memory. */
bool db_dup_text(const struct db_stmt *q, int column, char **out);
void db_finish(struct db_stmt *q); /* a zeroed statement is allowed */

/* A whole statement in one call. `types` has a letter for each parameter: i int64_t, t const char *
 * (NULL binds null); those that the statement has no parameter for are left out. db_run takes and
 * gives back the lock; db_query takes it, and db_query_end, which must follow also a failure, gives
 * it back. */
int db_run(struct db *d, struct err *e, const char *sql, const char *types, ...);
int db_query(struct db_stmt *q, struct db *d, struct err *e, const char *sql, const char *types,
             ...);
void db_query_end(struct db_stmt *q, struct db *d);

/* Prepare, step to the end, finish: for statements without parameters. */
int db_exec(struct db *d, const char *sql, struct err *e);
int64_t db_last_id(const struct db *d);
int64_t db_changes(const struct db *d); /* rows the last statement changed */
#endif
