/* service/body.h - bodies of the management face: unknown keys and wrong types become one list.
 *
 * A zeroed struct is empty. Check every field, then body_refuse answers VALIDATION_ERROR with the
 * list. */
#ifndef SERVICE_BODY_H
#define SERVICE_BODY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct refusal;

struct body {
    const json_t *object;
    json_t *errors; /* owned list of {path, message, type}, or NULL */
};

void body_error(struct body *b, const char *path, const char *type, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void body_known_keys(struct body *b, const char *const *names, int n);
/* Absent or null leaves *out alone. max_chars counts code points; 0: any. A text with a NUL, which
 * would be cut there, is an error. */
void body_str(struct body *b, const char *key, int max_chars, const char **out);
void body_bool(struct body *b, const char *key, bool *out);
void body_int(struct body *b, const char *key, int64_t least, int64_t *out);
void body_num(struct body *b, const char *key, double *out); /* finite */
/* 0, or -1 with *r when there were errors. Releases the list. */
int body_refuse(struct body *b, struct refusal *r);
#endif
