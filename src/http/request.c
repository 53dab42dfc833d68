#include "http/request.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/nomem.h"
#include "http/call.h"

const char *http_req_header(const struct http_req *req, const char *name)
{
    for (int i = 0; i < req->n_headers; i++)
        if (strcasecmp(req->headers[i].name, name) == 0)
            return req->headers[i].value;
    return NULL;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

char *http_percent_decode(const char *s, size_t len, bool plus_is_space, struct err *e)
{
    char *out = nomem_malloc(len + 1), *to = out;

    if (!out) {
        err_nomem(e);
        return NULL;
    }
    for (size_t i = 0; i < len; i++) {
        int c = (unsigned char)s[i];

        if (c == '%') {
            int high = i + 2 < len ? hex_digit(s[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(s[i + 2]) : -1;

            c = low < 0 ? 0 : high * 16 + low;
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (c == 0) {
            free(out);
            err_set(e, ERR_ARG, "a broken %%XX escape or a NUL byte in the address");
            return NULL;
        }
        *to++ = (char)c;
    }
    *to = 0;
    return out;
}

char *http_req_query(const struct http_req *req, const char *name)
{
    struct err ignored = {0};
    const char *at = req->query;

    while (*at) {
        size_t pair = strcspn(at, "&"), key = strcspn(at, "=&");
        char *decoded = http_percent_decode(at, key, true, &ignored);
        bool found = decoded && strcmp(decoded, name) == 0;

        free(decoded);
        if (found) {
            size_t skip = key + (key < pair);
            return http_percent_decode(at + skip, pair - skip, true, &ignored);
        }
        at += pair + (at[pair] == '&');
    }
    return NULL;
}

const atomic_bool *http_req_gone(const struct http_req *req)
{
    return &((const struct http_call *)(const void *)req)->gone;
}

void http_req_on_gone(struct http_req *req, http_gone_fn *fn, void *arg)
{
    struct http_call *call = call_of_req(req);

    pthread_mutex_lock(&call->lock);
    call->gone_fn = fn;
    call->gone_arg = arg;
    if (fn && atomic_load(&call->gone)) {
        call->gone_fn = NULL;
        fn(arg);
    }
    pthread_mutex_unlock(&call->lock);
}

void http_req_server_stats(const struct http_req *req, struct http_stats *out)
{
    const struct http_call *call = (const struct http_call *)req; /* its first member */

    *out = (struct http_stats){0};
    if (call->srv)
        http_server_stats(call->srv, out);
}
