/* db/run.c - whole statements in one call. */
#include <sqlite3.h>
#include <stdarg.h>

#include "base/err.h"
#include "db/db.h"

static void bind_all(struct db_stmt *q, const char *types, va_list args)
{
    int most = sqlite3_bind_parameter_count(q->stmt);

    for (; *types && q->bound < most; types++) {
        if (*types == 'i')
            db_bind_int(q, va_arg(args, int64_t));
        else
            db_bind_text(q, va_arg(args, const char *));
    }
}

int db_run(struct db *d, struct err *e, const char *sql, const char *types, ...)
{
    struct db_stmt q = {0};
    va_list args;
    int rc;

    db_lock(d);
    rc = db_prepare(&q, d, sql, e);
    if (rc == 0) {
        va_start(args, types);
        bind_all(&q, types, args);
        va_end(args);
        rc = db_step(&q, e);
    }
    db_finish(&q);
    db_unlock(d);
    return rc < 0 ? -1 : 0;
}

int db_query(struct db_stmt *q, struct db *d, struct err *e, const char *sql, const char *types,
             ...)
{
    va_list args;

    *q = (struct db_stmt){0};
    db_lock(d);
    if (db_prepare(q, d, sql, e) < 0)
        return -1;
    va_start(args, types);
    bind_all(q, types, args);
    va_end(args);
    return 0;
}

void db_query_end(struct db_stmt *q, struct db *d)
{
    db_finish(q);
    db_unlock(d);
}

int db_relax(struct db *d, struct err *e)
{
    int rc;

    db_lock(d);
    rc = db_exec(d, "PRAGMA synchronous=NORMAL", e);
    db_unlock(d);
    return rc;
}
