#include "db/db.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"
#include "db/migrations.h"

enum { BUSY_MS = 5000, KEPT = 48 };

struct db {
    sqlite3 *sql;
    pthread_mutex_t lock;
    int version;
    sqlite3_stmt *kept[KEPT]; /* finished, the latest first: to parse one takes longer than to run
                                 it */
    int n_kept;
};

static enum err_code code_of(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_CONSTRAINT:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ERR_CONFLICT;
    case SQLITE_FULL:
        return ERR_SPACE;
    case SQLITE_NOMEM:
        return ERR_NOMEM;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return ERR_FORMAT;
    case SQLITE_CANTOPEN:
        return ERR_NOT_FOUND;
    default:
        return ERR_IO;
    }
}

/* SQLite says "disk I/O error" of a disk without room, too, where it meets it anywhere but in a
 * write. */
static int fail_io(int sys, const char *what, struct err *e)
{
    errno = sys;
    return err_io(e, "%s: disk I/O error", what);
}

static int fail(struct db *d, int rc, const char *what, struct err *e)
{
    const char *why = d->sql ? sqlite3_errmsg(d->sql) : sqlite3_errstr(rc);
    int sys = d->sql ? sqlite3_system_errno(d->sql) : 0;

    if ((rc & 0xff) == SQLITE_IOERR && (sys == ENOSPC || sys == EDQUOT || sys == EFBIG))
        return fail_io(sys, what, e);
    err_set(e, code_of(rc), "%s: %s", what, why);
    return err_detail(e, "%s", why);
}

/* Statements of this file: fixed text, nothing bound. */
static int run(struct db *d, const char *sql, struct err *e)
{
    int rc = sqlite3_exec(d->sql, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK ? 0 : fail(d, rc, "database", e);
}

static int read_version(struct db *d, struct err *e)
{
    struct db_stmt q = {0};
    int rc = -1;

    if (db_prepare(&q, d, "PRAGMA user_version", e) < 0)
        return -1;
    if (db_step(&q, e) == 1) {
        d->version = (int)db_int(&q, 0);
        rc = 0;
    }
    db_finish(&q);
    return rc;
}

static int apply(struct db *d, int to, const char *sql, struct err *e)
{
    char *set = sqlite3_mprintf("PRAGMA user_version = %d", to);
    int rc = -1;

    if (!set)
        return err_nomem(e);
    if (db_begin(d, e) < 0)
        goto done;
    if (run(d, sql, e) < 0 || run(d, set, e) < 0) {
        err_wrap(e, "migration %d", to);
        db_abort(d);
        goto done;
    }
    if (db_commit(d, e) < 0)
        goto done;
    d->version = to;
    rc = 0;

done:
    sqlite3_free(set);
    return rc;
}

static int migrate(struct db *d, struct err *e)
{
    int newest = db_migration_count();

    if (read_version(d, e) < 0)
        return -1;
    if (d->version > newest)
        return err_set(
            e, ERR_FORMAT,
            "the database is of version %d, this program knows %d: use the newer program, "
            "or another STATE_DIR",
            d->version, newest);
    for (int v = d->version; v < newest; v++)
        if (apply(d, v + 1, db_migration(v), e) < 0)
            return -1;
    return 0;
}

/* Made before SQLite opens it, so that it is never readable by others; the -wal and -shm files copy
 * its mode. One that exists is not touched: closing any descriptor of a file lets go of every lock
 * that the process has on it, also those of a connection of before; without them another process
 * would take itself for the last one, and remove the -wal file that is written here. */
static int create_private(const char *path, struct err *e)
{
    int fd;

    if (strcmp(path, ":memory:") == 0)
        return 0;
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST ? 0 : err_io(e, "open database %s", path);
    close(fd);
    return 0;
}

static void name_file(const char *path, struct err *e)
{
    if (e->code == ERR_FORMAT)
        err_set(e, ERR_FORMAT,
                "%.200s is damaged: put a copy of before in its place, or move it away and let "
                "`cairn reindex` make the rows of checkpoints again",
                path);
    else
        err_wrap(e, "%s", path);
}

/* SQLite opens what may only be read for reading, and says so at the first write: too late. */
static int open_file(struct db *d, const char *path, struct err *e)
{
    int rc = sqlite3_open_v2(path, &d->sql,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
                             NULL),
        sys = d->sql ? sqlite3_system_errno(d->sql) : 0;

    if (rc == SQLITE_OK && sqlite3_db_readonly(d->sql, "main") != 1)
        return 0;
    if (rc == SQLITE_OK || sys == EACCES || sys == EPERM || sys == EROFS)
        return err_set(e, ERR_IO,
                       "%.200s may not be written by this user: run as its owner, or give it to "
                       "this user",
                       path);
    fail(d, rc, "open database", e);
    return err_wrap(e, "%s", path);
}

struct db *db_open(const char *path, struct err *e)
{
    struct db *d = calloc(1, sizeof *d);

    if (!d) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&d->lock, NULL);
    if (create_private(path, e) < 0 || open_file(d, path, e) < 0)
        goto fail;
    sqlite3_busy_timeout(d->sql, BUSY_MS);
    if (run(d,
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
            "PRAGMA trusted_schema=OFF;",
            e) < 0) {
        name_file(path, e);
        goto fail;
    }
    if (migrate(d, e) < 0) {
        err_wrap(e, "%s", path);
        goto fail;
    }
    return d;

fail:
    db_close(d);
    return NULL;
}

void db_close(struct db *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_kept; i++)
        sqlite3_finalize(d->kept[i]);
    sqlite3_close_v2(d->sql);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

int db_version(const struct db *d)
{
    return d->version;
}

void db_lock(struct db *d)
{
    pthread_mutex_lock(&d->lock);
}

void db_unlock(struct db *d)
{
    pthread_mutex_unlock(&d->lock);
}

int db_begin(struct db *d, struct err *e)
{
    db_lock(d);
    if (run(d, "BEGIN IMMEDIATE", e) == 0)
        return 0;
    db_unlock(d);
    return -1;
}

int db_commit(struct db *d, struct err *e)
{
    if (run(d, "COMMIT", e) < 0) {
        db_abort(d);
        return -1;
    }
    db_unlock(d);
    return 0;
}

void db_abort(struct db *d)
{
    if (!sqlite3_get_autocommit(d->sql))
        sqlite3_exec(d->sql, "ROLLBACK", NULL, NULL, NULL);
    db_unlock(d);
}

int db_end(struct db *d, int rc, struct err *e)
{
    if (rc >= 0)
        return db_commit(d, e) < 0 ? -1 : rc;
    db_abort(d);
    return -1;
}

/* The kept statement of this text, taken out; NULL: there is none. */
static sqlite3_stmt *take_kept(struct db *d, const char *sql)
{
    for (int i = 0; i < d->n_kept; i++) {
        sqlite3_stmt *stmt = d->kept[i];

        if (strcmp(sqlite3_sql(stmt), sql) == 0) {
            memmove(&d->kept[i], &d->kept[i + 1],
                    (size_t)(--d->n_kept - i) * sizeof(sqlite3_stmt *));
            return stmt;
        }
    }
    return NULL;
}

/* What a PRAGMA does or tells may be settled when it is parsed: it is not kept. */
static void keep(struct db *d, sqlite3_stmt *stmt)
{
    if (sqlite3_strnicmp(sqlite3_sql(stmt), "PRAGMA", 6) == 0) {
        sqlite3_finalize(stmt);
        return;
    }
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    if (d->n_kept == KEPT)
        sqlite3_finalize(d->kept[--d->n_kept]);
    memmove(&d->kept[1], &d->kept[0], (size_t)d->n_kept++ * sizeof(sqlite3_stmt *));
    d->kept[0] = stmt;
}

int db_prepare(struct db_stmt *q, struct db *d, const char *sql, struct err *e)
{
    int rc;

    *q = (struct db_stmt){.db = d, .stmt = take_kept(d, sql)};
    if (q->stmt)
        return 0;
    rc = sqlite3_prepare_v3(d->sql, sql, -1, SQLITE_PREPARE_PERSISTENT, &q->stmt, NULL);
    return rc == SQLITE_OK ? 0 : fail(d, rc, "prepare a statement", e);
}

static void bound(struct db_stmt *q, int rc)
{
    if (rc != SQLITE_OK && !q->failed)
        q->failed = rc;
}

void db_bind_int(struct db_stmt *q, int64_t v)
{
    bound(q, sqlite3_bind_int64(q->stmt, ++q->bound, v));
}

void db_bind_text(struct db_stmt *q, const char *s)
{
    q->bound++;
    bound(q, s ? sqlite3_bind_text(q->stmt, q->bound, s, -1, SQLITE_TRANSIENT)
               : sqlite3_bind_null(q->stmt, q->bound));
}

int db_step(struct db_stmt *q, struct err *e)
{
    int rc = q->failed ? q->failed : sqlite3_step(q->stmt);

    if (rc == SQLITE_ROW)
        return 1;
    if (rc == SQLITE_DONE)
        return 0;
    return fail(q->db, rc, "database", e);
}

int64_t db_int(const struct db_stmt *q, int column)
{
    return sqlite3_column_int64(q->stmt, column);
}

const char *db_text(const struct db_stmt *q, int column)
{
    return (const char *)sqlite3_column_text(q->stmt, column);
}

bool db_is_null(const struct db_stmt *q, int column)
{
    return sqlite3_column_type(q->stmt, column) == SQLITE_NULL;
}

void db_copy_text(const struct db_stmt *q, int column, char *to, size_t size)
{
    const char *text = db_text(q, column);

    str_copy(to, size, text ? text : "");
}

bool db_dup_text(const struct db_stmt *q, int column, char **out)
{
    const char *text = db_text(q, column);

    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

void db_finish(struct db_stmt *q)
{
    if (q->stmt)
        keep(q->db, q->stmt);
    *q = (struct db_stmt){0};
}

int db_exec(struct db *d, const char *sql, struct err *e)
{
    struct db_stmt q = {0};
    int rc;

    if (db_prepare(&q, d, sql, e) < 0)
        return -1;
    do
        rc = db_step(&q, e);
    while (rc > 0);
    db_finish(&q);
    return rc;
}

int64_t db_last_id(const struct db *d)
{
    return sqlite3_last_insert_rowid(d->sql);
}

int64_t db_changes(const struct db *d)
{
    return sqlite3_changes64(d->sql);
}
