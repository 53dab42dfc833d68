#include "service/body.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "service/refusal.h"
#include "store/name.h"

enum { BODY_ERRORS_MAX = 100 };

void body_error(struct body *b, const char *path, const char *type, const char *fmt, ...)
{
    char message[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    utf8_repair(message); /* values that are shown are cut anywhere */
    if (!b->errors)
        b->errors = json_array();
    if (json_array_size(b->errors) < BODY_ERRORS_MAX)
        json_array_append_new(b->errors, json_pack("{s:s, s:s, s:s}", "path", path, "message",
                                                   message, "type", type));
}

void body_known_keys(struct body *b, const char *const *names, int n)
{
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *)b->object, key, value) {
        int i = 0;

        while (i < n && strcmp(key, names[i]) != 0)
            i++;
        if (i == n)
            body_error(b, key, "extra_forbidden", "is no field of this route");
    }
}

void body_str(struct body *b, const char *key, int max_chars, const char **out)
{
    const json_t *v = json_object_get(b->object, key);

    if (!v || json_is_null(v))
        return;
    if (!json_is_string(v))
        body_error(b, key, "string_type", "must be a string");
    else if (json_holds_nul(v))
        body_error(b, key, "string_type", "must not hold a NUL character");
    else if (max_chars && ckpt_name_chars(json_string_value(v)) > (size_t)max_chars)
        body_error(b, key, "string_too_long", "may have at most %d characters", max_chars);
    else
        *out = json_string_value(v);
}

void body_bool(struct body *b, const char *key, bool *out)
{
    const json_t *v = json_object_get(b->object, key);

    if (!v || json_is_null(v))
        return;
    if (!json_is_boolean(v))
        body_error(b, key, "bool_type", "must be true or false");
    else
        *out = json_is_true(v);
}

void body_int(struct body *b, const char *key, int64_t least, int64_t *out)
{
    const json_t *v = json_object_get(b->object, key);
    int64_t n;

    if (!v || json_is_null(v))
        return;
    if (!json_is_integer(v) || !json_is_whole(v, &n))
        body_error(b, key, "int_type", "must be a whole number");
    else if (n < least)
        body_error(b, key, "greater_than_equal", "must be at least %" PRId64, least);
    else
        *out = n;
}

void body_num(struct body *b, const char *key, double *out)
{
    const json_t *v = json_object_get(b->object, key);

    if (!v || json_is_null(v))
        return;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        body_error(b, key, "float_type", "must be a number");
    else
        *out = json_number_value(v);
}

int body_refuse(struct body *b, struct refusal *r)
{
    const json_t *first = json_array_get(b->errors, 0);
    json_t *errors = b->errors;

    b->errors = NULL;
    if (!errors)
        return 0;
    refuse_with(r, REFUSAL_VALIDATION_ERROR, json_pack("{s:O}", "errors", errors),
                "The request body is not valid: %s %s.",
                json_string_value(json_object_get(first, "path")),
                json_string_value(json_object_get(first, "message")));
    json_decref(errors);
    return -1;
}
