/* api/router.h - finds the row for a method and a path. The product's table is api/routes.tbl.
 *
 * A pattern is literal segments, "{id}" (one segment, a number), "{key}" (one segment, any) or, as
 * the last one, "{rest...}" (everything that is left, slashes too, at least one byte). Segments are
 * compared as sent; what a pattern takes is decoded once. The first row that fits wins, so literal
 * rows stand before patterns. */
#ifndef API_ROUTER_H
#define API_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/api.h"

/* 64 KiB (skipped), 1 MiB, 16 MiB; BODY_UPLOAD: BATCH_MAX_FILE_BYTES and 64 KiB. */
enum api_body_class { BODY_NONE, BODY_SMALL, BODY_LARGE, BODY_UPLOAD };

/* What GET /openapi.json says of a route; schemas are names in docs/schemas/openapi-parts.json. */
struct api_doc {
    const char *summary; /* NULL: a row that another table describes */
    int status;          /* of a success */
    const char *asks;    /* schema of the JSON body, or NULL */
    const char *answers; /* of the answer: under /api of its `data`. NULL: not JSON, see media */
    const char *media;   /* content type of an answer that is not JSON */
    bool token;          /* needs a token of WEIGHTS_TOKENS */
};

struct api_route {
    const char *method;
    const char *pattern;
    api_fn *fn;
    enum api_body_class body;
    struct api_doc doc;
};

struct api_match {
    const struct api_route *route; /* NULL: see allow */
    int64_t id;     /* {id}: 1 and more, 0 when there is none, -1 when it is no such number */
    char *rest;     /* {rest...}: owned, "" when it cannot be decoded; else NULL */
    char key[65];   /* {key}: as sent; "" when there is none or it is longer */
    char allow[64]; /* methods of this path ("GET, POST"); "": no such path */
};

/* HEAD finds the row of GET. A row with {id} that is no number counts only where the method fits
 * too. */
void api_match_route(const struct api_route *table, size_t n, const char *method,
                     const char *raw_path, struct api_match *out);

/* One pattern alone: of *out only key is set; *rest points into raw_path, NULL without {rest...}.
 */
bool api_pattern_fits(const char *pattern, const char *raw_path, struct api_match *out,
                      const char **rest);

const struct api_route *api_routes(size_t *n); /* the product's one table */
size_t api_body_limit(enum api_body_class c);
#endif
