/* tensor/st_json.h - the JSON tokens of a safetensors header, inside the room only.
 *
 * A pull parser over bytes in memory: no recursion, no allocation but the decoded strings,
 * positions in every error. It exists beside base/json.h because tensor names may hold U+0000 and
 * because numbers must be plain non-negative integers: 2.0, 8e0 and 08 are refused, not converted.
 */
#ifndef TENSOR_ST_JSON_H
#define TENSOR_ST_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct err;

struct st_json {
    const unsigned char *start, *p, *end;
    struct err *e;
};

enum { ST_JSON_DEPTH = 32 }; /* of a value that is skipped */

/* Each returns 0, or -1 with ERR_FORMAT in j->e. Leading whitespace is skipped. */
int st_json_expect(struct st_json *j, char c);
bool st_json_accept(struct st_json *j, char c); /* takes c when it comes next */
int st_json_string(struct st_json *j, struct arena *mem, const char **out, size_t *len);
int st_json_int(struct st_json *j, int64_t *out); /* 0 .. 2^63-1 */
int st_json_skip(struct st_json *j);              /* any value */
int st_json_end(struct st_json *j);               /* nothing but whitespace is left */
int st_json_fail(struct st_json *j, const char *expected);
#endif
