/* base/json.h - strict JSON on top of jansson, with errors that name the field.
 *
 * json_parse refuses duplicate keys, NaN and Infinity, invalid UTF-8, lone surrogates, a byte order
 * mark, trailing bytes, nesting deeper than JSON_DEPTH_MAX and more than JSON_NESTS_MAX lists and
 * objects (each takes up to 220 bytes of memory, for two of text). The getters return 0 or -1 with
 * ERR_ARG and a message that names the key; json_opt_* leave *out alone when the key is absent or
 * null. Strings are borrowed from the object. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct buf;

enum { JSON_DEPTH_MAX = 64, JSON_NESTS_MAX = 1 << 20 };

/* jansson's allocations that fail are noted (base/nomem.h). Once, before there are threads. */
void json_memory_watch(void);

/* 0, or -1 with ERR_FORMAT: text that jansson reads directly, with other flags than json_parse, is
 * looked at first. Its parser recurses, and the stacks of handlers are small. */
int json_check_nesting(const char *text, size_t len, struct err *e);

/* jansson's json_loadb with `flags`, of text that was looked at. Owned value, or NULL with
 * ERR_FORMAT or ERR_NOMEM; *at as jansson fills it. */
json_t *json_load_text(const char *text, size_t len, size_t flags, json_error_t *at, struct err *e);

/* Owned value (json_decref), or NULL with ERR_FORMAT or ERR_NOMEM. Any JSON value is accepted at
 * the top. */
json_t *json_parse(const char *text, size_t len, struct err *e);
json_t *json_parse_file(int dir_fd, const char *name, size_t max_bytes, struct err *e);

int json_get_str(const json_t *o, const char *key, const char **out, struct err *e);
int json_get_int(const json_t *o, const char *key, int64_t *out, struct err *e);
int json_opt_str(const json_t *o, const char *key, const char **out, struct err *e);
int json_opt_bool(const json_t *o, const char *key, bool *out, struct err *e);
int json_opt_int(const json_t *o, const char *key, int64_t *out,
                 struct err *e); /* 500.0 counts as 500 */
int json_opt_num(const json_t *o, const char *key, double *out, struct err *e);

/* The text under a key, borrowed; `absent` where there is none. */
const char *json_text_or(const json_t *o, const char *key, const char *absent);

/* Whole number stored as integer or as a real without fraction, |v| <= 2^53. */
bool json_is_whole(const json_t *v, int64_t *out);

/* Compact text of v appended to b: keys in insertion order, reals in shortest form that reads back
 * to the same binary64, only ", \ and control characters escaped. */
void json_write(struct buf *b, const json_t *v);
void json_write_str(struct buf *b, const char *s, size_t len);

/* The same with two-space indent, ": " and ",\n": the form of manifest.json. No newline at the end.
 */
void json_write_pretty(struct buf *b, const json_t *v);
void json_write_real(struct buf *b, double v);

/* A string that holds a NUL: who reads it as text would see it cut there. */
bool json_holds_nul(const json_t *v);
/* A string of text that may hold any bytes, a path or a quotation of a damaged file: those that are
 * not UTF-8 become '?'. Owned; NULL: out of memory. */
json_t *json_repaired(const char *s);
#endif
