/* service/weaver/common.c - fields of bodies, pages of lists, errors from below. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "service/weaver/impl.h"

int w_refuse_err(struct refusal *r, const struct err *e)
{
    switch (e->code) {
    case ERR_ARG:
        return refuse(r, REFUSAL_W_INVALID_REQUEST, "%s", e->msg);
    case ERR_NOMEM:
        return refuse(r, REFUSAL_W_OUT_OF_MEMORY,
                      "There is not enough memory: %s. End runs or sampling sessions that are no "
                      "longer needed.",
                      e->msg);
    case ERR_SPACE:
        return refuse(r, REFUSAL_W_STORAGE_FULL, "There is no room: %s.", e->msg);
    case ERR_CANCELLED:
        return refuse(r, REFUSAL_W_SERVER_RESTARTED,
                      "The server is being stopped; ask again when it runs.");
    default:
        return refuse(r, REFUSAL_W_INTERNAL_ERROR, "%s", e->msg);
    }
}

int w_refuse_memory(struct refusal *r)
{
    return refuse(r, REFUSAL_W_OUT_OF_MEMORY, "There is no memory for this request now.");
}

int w_bad(struct refusal *r, const char *fmt, ...)
{
    char text[REFUSAL_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return refuse(r, REFUSAL_W_INVALID_REQUEST, "%s", text);
}

json_t *w_list(json_t *items, int64_t total, int64_t limit, int64_t offset)
{
    return json_pack("{s:o, s:{s:I, s:I, s:I}}", "items", items, "pagination", "total_count",
                     (json_int_t)total, "limit", (json_int_t)limit, "offset", (json_int_t)offset);
}

const char *w_query(const struct weaver_call *c, const char *name)
{
    return json_string_value(json_object_get(c->query, name));
}

static int query_int(const struct weaver_call *c, const char *name, int64_t least, int64_t most,
                     int64_t *out, struct refusal *r)
{
    const char *text = w_query(c, name);
    char *end;
    long long v;

    if (!text)
        return 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end || v < least || v > most)
        return w_bad(r, "%s must be a whole number from %lld to %lld.", name, (long long)least,
                     (long long)most);
    *out = v;
    return 0;
}

int w_page(const struct weaver_call *c, int64_t limit_default, int64_t *limit, int64_t *offset,
           struct refusal *r)
{
    *limit = limit_default;
    *offset = 0;
    if (query_int(c, "limit", 1, INT32_MAX, limit, r) < 0 ||
        query_int(c, "offset", 0, INT32_MAX, offset, r) < 0)
        return -1;
    if (*limit > WEAVER_PAGE_MAX)
        *limit = WEAVER_PAGE_MAX;
    return 0;
}

int w_str(const json_t *o, const char *key, const char **out, struct refusal *r)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return w_bad(r, "%s must be a string.", key);
    if (json_holds_nul(v))
        return w_bad(r, "%s must not hold the character U+0000.", key);
    *out = json_string_value(v);
    return 0;
}

int w_int(const json_t *o, const char *key, int64_t least, int64_t most, int64_t *out,
          struct refusal *r)
{
    const json_t *v = json_object_get(o, key);
    int64_t n;

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_whole(v, &n) || n < least || n > most)
        return w_bad(r, "%s must be a whole number from %lld to %lld.", key, (long long)least,
                     (long long)most);
    *out = n;
    return 0;
}

int w_num(const json_t *o, const char *key, double *out, struct refusal *r)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return w_bad(r, "%s must be a finite number.", key);
    *out = json_number_value(v);
    return 0;
}

int w_flag(const json_t *o, const char *key, bool *out, struct refusal *r)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return w_bad(r, "%s must be true or false.", key);
    *out = json_is_true(v);
    return 0;
}

json_t *w_parse(const char *text)
{
    struct err ignored = {0};
    json_t *v = text ? json_parse(text, strlen(text), &ignored) : NULL;

    return v ? v : json_object();
}

char *w_dump(const json_t *v)
{
    struct buf b = {0};

    if (v)
        json_write(&b, v);
    else
        buf_add_str(&b, "null");
    return buf_take(&b);
}
