/* text/json_scan.h - a strict pull reader for JSON text, for the members that are too big for a
 * tree.
 *
 * A tokenizer.json is nearly all vocabulary and merges: hundreds of thousands of values that are
 * looked at once. They are read here straight into tables; base/json.h reads the rest.
 *
 * The text must be UTF-8 (checked by the caller) and outlive the reader. Functions return 0 or 1,
 * or -1 for text that is not JSON or not what was asked for; json_scan_fail makes that an error
 * with the place. One reader, one thread. */
#ifndef TEXT_JSON_SCAN_H
#define TEXT_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

struct json_scan {
    const char *text, *p, *end;
};

void json_scan_init(struct json_scan *s, const char *text, size_t len);
/* The next character after white space, not consumed; 0 at the end. */
char json_scan_peek(struct json_scan *s);
/* Takes one punctuation character. */
int json_scan_take(struct json_scan *s, char c);
/* A string, unescaped, into *out (emptied first). */
int json_scan_string(struct json_scan *s, struct buf *out);
/* A whole number without fraction or exponent that fits. */
int json_scan_int(struct json_scan *s, int64_t *out);
/* Over one value of any kind; checks no more than that brackets and quotes close. */
int json_scan_skip(struct json_scan *s);
/* At the '{' of an object: forward to the value of the first member `key`. 1 found, 0 not. */
int json_scan_member(struct json_scan *s, const char *key);
/* After an element: 1 another follows (its comma is taken), 0 `close` was taken. */
int json_scan_next(struct json_scan *s, char close);
/* -1 with ERR_FORMAT: "WHAT: malformed JSON at byte N". */
int json_scan_fail(const struct json_scan *s, const char *what, struct err *e);
#endif
