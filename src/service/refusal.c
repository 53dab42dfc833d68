#include "service/refusal.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "base/utf8.h"

struct code_facts {
    const char *wire;
    const char *type; /* NULL: a management code */
    int status;
    bool weaver, retryable;
};

static const struct code_facts facts[REFUSAL_CODES] = {
    [REFUSAL_NONE] = {"", "", 0, false, false},
#define MANAGEMENT(name, st)          [REFUSAL_##name] = {#name, NULL, st, false, false},
#define OPENAI(name, code, st, type)  [REFUSAL_##name] = {code, type, st, false, false},
#define WEAVER(name, code, st, retry) [REFUSAL_##name] = {code, NULL, st, true, retry},
#include "service/refusals.tbl"
#undef MANAGEMENT
#undef OPENAI
#undef WEAVER
};

const char *refusal_wire_code(enum refusal_code code)
{
    return facts[code].wire;
}

int refusal_status(enum refusal_code code)
{
    return facts[code].status;
}

const char *refusal_type(enum refusal_code code)
{
    if (facts[code].type)
        return facts[code].type;
    return facts[code].status >= 500 ? "server_error" : "invalid_request_error";
}

bool refusal_is_weaver(enum refusal_code code)
{
    return facts[code].weaver;
}

bool refusal_retryable(enum refusal_code code)
{
    return facts[code].retryable;
}

bool refusal_is_openai(enum refusal_code code)
{
    return facts[code].type != NULL;
}

__attribute__((format(printf, 4, 0))) static void
fill(struct refusal *r, enum refusal_code code, json_t *details, const char *fmt, va_list args)
{
    char message[REFUSAL_MESSAGE_MAX]; /* the arguments may point into *r */

    vsnprintf(message, sizeof message, fmt, args);
    utf8_repair(message); /* names from addresses hold any bytes, and long ones are cut anywhere */
    refusal_clear(r);
    snprintf(r->message, sizeof r->message, "%s", message);
    r->code = code;
    r->details = details;
}

int refuse(struct refusal *r, enum refusal_code code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fill(r, code, NULL, fmt, args);
    va_end(args);
    return -1;
}

int refuse_with(struct refusal *r, enum refusal_code code, json_t *details, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fill(r, code, details, fmt, args);
    va_end(args);
    return -1;
}

int refuse_param(struct refusal *r, enum refusal_code code, const char *param, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fill(r, code, NULL, fmt, args);
    va_end(args);
    snprintf(r->param, sizeof r->param, "%s", param);
    utf8_repair(r->param);
    return -1;
}

int refuse_no_memory(struct refusal *r)
{
    return refuse(r, REFUSAL_INTERNAL_ERROR, "There is not enough memory; nothing was changed.");
}

int refuse_client_left(struct refusal *r)
{
    return refuse(r, REFUSAL_CLIENT_CLOSED_REQUEST,
                  "The client hung up before anything was changed.");
}

int refuse_stopping(struct refusal *r)
{
    return refuse_with(r, REFUSAL_MODEL_LOAD_FAILED, json_pack("{s:s}", "reason", "stopping"),
                       "The server is being stopped: the load was cut short. Load again when it "
                       "runs.");
}

int refuse_internal(struct refusal *r, const struct err *e)
{
    static const char *const kinds[] = {
        [ERR_ARG] = "argument",    [ERR_NOT_FOUND] = "not_found", [ERR_CONFLICT] = "conflict",
        [ERR_FORMAT] = "format",   [ERR_SPACE] = "space",         [ERR_NOMEM] = "memory",
        [ERR_IO] = "input_output", [ERR_CANCELLED] = "cancelled",
    };
    const char *kind = e->code >= ERR_ARG && e->code <= ERR_CANCELLED ? kinds[e->code] : "unknown";

    return refuse_with(r, REFUSAL_INTERNAL_ERROR, json_pack("{s:s}", "type", kind), "%s", e->msg);
}

void refusal_clear(struct refusal *r)
{
    json_decref(r->details);
    *r = (struct refusal){0};
}

int refusal_walk(const struct refusal_rule *rules, void *ctx, struct refusal *r)
{
    for (const struct refusal_rule *rule = rules; rule->check; rule++)
        if (rule->check(ctx, r) < 0)
            return -1;
    return 0;
}
