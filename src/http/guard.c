/* http/guard.c - protection against web pages in the user's own browser.
 *
 * A page of another site can send requests here, and with a name that it lets point to this machine
 * even read the answers. So Host must be an address, a local name or a listed one, and an Origin
 * must be our own or listed. */
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "http/call.h"

static bool list_has(const char *list, const char *item, size_t len)
{
    while (list && *list) {
        size_t n = strcspn(list, ",");
        const char *at = list + strspn(list, " ");
        size_t m = n - (size_t)(at - list);

        while (m && at[m - 1] == ' ')
            m--;
        if (m == len && strncasecmp(at, item, len) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

static bool is_address(const char *name)
{
    unsigned char scrap[16];

    return inet_pton(AF_INET, name, scrap) == 1 || inet_pton(AF_INET6, name, scrap) == 1;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcasecmp(s + n - m, tail) == 0;
}

/* "name:port", "[::1]:port" or without port: the name alone. */
static bool host_name(const char *host, char *out, size_t size)
{
    const char *start = host + (*host == '[');
    size_t n = strcspn(start, *host == '[' ? "]" : ":");
    const char *rest = start + n + (*host == '[' && start[n] == ']');

    if (n == 0 || n >= size)
        return false;
    memcpy(out, start, n);
    out[n] = 0;
    return *rest == 0 || (*rest == ':' && rest[1 + strspn(rest + 1, "0123456789")] == 0);
}

bool guard_host_ok(const struct http_config *c, const char *host)
{
    char name[256];

    if (!host) /* HTTP/1.0; no browser sends that */
        return true;
    if (!host_name(host, name, sizeof name))
        return false;
    return is_address(name) || strcasecmp(name, "localhost") == 0 ||
           ends_with(name, ".localhost") || (c->host && strcasecmp(name, c->host) == 0) ||
           list_has(c->hosts, name, strlen(name));
}

bool guard_origin_listed(const char *list, const char *origin)
{
    return list_has(list, "*", 1) || list_has(list, origin, strlen(origin));
}

bool guard_origin_ok(const struct http_config *c, const char *origin, const char *host)
{
    const char *authority = origin ? strstr(origin, "://") : NULL;

    if (!origin || guard_origin_listed(c->cors_origins, origin))
        return true;
    return authority && host && strcasecmp(authority + 3, host) == 0;
}
