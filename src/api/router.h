/* api/router.h - finds the row for a method and a path. The product's table is api/routes.c.
 *
 * A pattern is literal segments, "{id}" (a positive decimal integer of at most 18 digits) or, as
 * the last one,
 * "{rest...}" (everything that is left, slashes too, at least one byte). Segments are compared
 * after decoding %XX once; literal rows win over patterns. */
#ifndef API_ROUTER_H
#define API_ROUTER_H

#include <stddef.h>
#include <stdint.h>

#include "api/api.h"

enum api_body_class { BODY_NONE, BODY_SMALL, BODY_LARGE }; /* 64 KiB (ignored), 1 MiB, 16 MiB */

struct api_route {
    const char *method;
    const char *pattern;
    api_fn *fn;
    enum api_body_class body;
};

struct api_match {
    const struct api_route *route; /* NULL: see allow */
    int64_t id;
    char *rest;      /* owned, or NULL */
    char allow[128]; /* methods that the path has ("GET, POST"); "": no such path */
};

void api_match_route(const struct api_route *table, size_t n, const char *method,
                     const char *raw_path, struct api_match *out);

const struct api_route *api_routes(size_t *n); /* the product's one table */
size_t api_body_limit(enum api_body_class c);
#endif
