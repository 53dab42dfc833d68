/* generate/stop.h - finds stop strings in a text that comes in pieces, and holds back what could
 * become one.
 *
 * Calling order: init, push for each piece until it returns true, flush at the end, release. The
 * pieces that come out, joined, are the text before the earliest stop string, whatever the cuts
 * between pieces were. Pieces must be whole UTF-8 characters; then what comes out is, too. One
 * thread at a time. */
#ifndef GENERATE_STOP_H
#define GENERATE_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

enum { STOP_STRINGS_MAX = 4, STOP_BYTES_MAX = 1024 }; /* a stop string's length */

struct stop_string {
    const char *text; /* borrowed; at least 1 byte */
    size_t len;
};

struct stop_search {
    const struct stop_string *strings; /* borrowed */
    int n;
    struct buf held; /* may be the beginning of a stop string */
    bool found;
};

void stop_init(struct stop_search *s, const struct stop_string *strings, int n);
/* Appends to *out what can be shown. true: a stop string is complete; nothing more will come out.
 */
bool stop_push(struct stop_search *s, const char *text, size_t len, struct buf *out);
void stop_flush(struct stop_search *s, struct buf *out); /* what was held after all */
void stop_release(struct stop_search *s);
#endif
