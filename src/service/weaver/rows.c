#include "service/weaver/rows.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "db/db.h"

static int query(struct db_stmt *q, struct db *d, const struct w_table *t, const char *where,
                 const char *a, const char *b, struct err *e)
{
    struct buf sql = {0};
    int rc;

    buf_printf(&sql, "SELECT %s FROM %s WHERE %s", t->columns, t->name, where);
    rc = db_query(q, d, e, buf_str(&sql), "tti", a, b, clock_wall_ms());
    buf_release(&sql);
    return rc;
}

int w_row_first(struct db *d, const struct w_table *t, const char *where, const char *a,
                const char *b, void *row, struct err *e)
{
    struct db_stmt q;
    int rc = query(&q, d, t, where, a, b, e);

    if (rc == 0)
        rc = db_step(&q, e);
    if (rc > 0)
        t->read(&q, row);
    db_query_end(&q, d);
    return rc;
}

int w_count(struct db *d, const char *table, int64_t *n, struct err *e)
{
    struct buf sql = {0};
    struct db_stmt q;
    int rc;

    buf_printf(&sql, "SELECT count(*) FROM %s", table);
    rc = db_query(&q, d, e, buf_str(&sql), "");
    if (rc == 0)
        rc = db_step(&q, e);
    *n = rc > 0 ? db_int(&q, 0) : 0;
    db_query_end(&q, d);
    buf_release(&sql);
    return rc < 0 ? -1 : 0;
}

static void drop(const struct w_table *t, char *rows, int n)
{
    for (int i = 0; t->release && i < n; i++)
        t->release(rows + (size_t)i * t->row_bytes);
    free(rows);
}

void *w_rows_all(struct db *d, const struct w_table *t, const char *where, const char *a, int *n,
                 struct err *e)
{
    char *rows = NULL, *grown;
    struct db_stmt q;
    int cap = 0, rc = query(&q, d, t, where, a, NULL, e);

    *n = 0;
    while (rc == 0 && (rc = db_step(&q, e)) > 0) {
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            grown = realloc(rows, (size_t)cap * t->row_bytes);
            if (!grown) {
                rc = err_nomem(e);
                break;
            }
            rows = grown;
        }
        t->read(&q, rows + (size_t)(*n)++ * t->row_bytes);
        rc = 0;
    }
    db_query_end(&q, d);
    if (rc == 0)
        return rows;
    drop(t, rows, *n);
    *n = -1;
    return NULL;
}
