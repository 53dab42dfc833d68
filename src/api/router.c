#include "api/router.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "http/request.h"

static int64_t parse_id(const char *s, size_t n)
{
    int64_t id = 0;

    if (n == 0 || n > 18 || *s == '0')
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        id = id * 10 + (s[i] - '0');
    }
    return id;
}

static char *decode_rest(const char *s)
{
    struct err ignored = {0};
    char *rest = http_percent_decode(s, strlen(s), false, &ignored);

    return rest ? rest : strdup("");
}

static void take_key(char key[65], const char *s, size_t n)
{
    if (n > 64)
        n = 0;
    memcpy(key, s, n);
    key[n] = '\0';
}

/* Both paths begin with '/'. On a match *id, *rest (borrowed from path) and key are what the
 * pattern took. */
static bool fits(const char *pattern, const char *path, int64_t *id, const char **rest,
                 char key[65])
{
    *id = 0;
    *rest = NULL;
    *key = '\0';
    while (*pattern == '/' && *path == '/') {
        size_t p = strcspn(++pattern, "/"), n = strcspn(++path, "/");

        if (strcmp(pattern, "{rest...}") == 0) {
            *rest = path;
            return *path != 0;
        }
        if (p == 4 && strncmp(pattern, "{id}", 4) == 0)
            *id = parse_id(path, n);
        else if (p == 5 && strncmp(pattern, "{key}", 5) == 0)
            take_key(key, path, n);
        else if (p != n || strncmp(pattern, path, n) != 0)
            return false;
        pattern += p;
        path += n;
    }
    return *pattern == 0 && *path == 0;
}

static void allow(struct api_match *m, const char *method)
{
    if (*m->allow)
        strncat(m->allow, ", ", sizeof m->allow - strlen(m->allow) - 1);
    strncat(m->allow, method, sizeof m->allow - strlen(m->allow) - 1);
}

void api_match_route(const struct api_route *table, size_t n, const char *method,
                     const char *raw_path, struct api_match *out)
{
    const char *rest;
    int64_t id;

    *out = (struct api_match){0};
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < n; i++) {
        if (!fits(table[i].pattern, raw_path, &id, &rest, out->key))
            continue;
        if (strcmp(table[i].method, method) == 0) {
            out->route = &table[i];
            out->id = id;
            out->rest = rest ? decode_rest(rest) : NULL;
            return;
        }
        if (id >= 0)
            allow(out, table[i].method);
    }
}

bool api_pattern_fits(const char *pattern, const char *raw_path, struct api_match *out,
                      const char **rest)
{
    int64_t id;

    *out = (struct api_match){0};
    return fits(pattern, raw_path, &id, rest, out->key);
}

size_t api_body_limit(enum api_body_class c)
{
    static const size_t limits[] = {
        [BODY_NONE] = 64 << 10, [BODY_SMALL] = 1 << 20, [BODY_LARGE] = 16 << 20};

    return limits[c];
}
