/* text/normalize.h - Unicode normal forms of a text, quickly where nothing changes.
 *
 * The work is utf8proc's. Text in ranges that every composed form leaves alone (ASCII and Latin
 * letters, CJK ideographs, Hangul syllables, ...) is copied; only the rest, from the character
 * before it on, is normalised. No state, any thread. */
#ifndef TEXT_NORMALIZE_H
#define TEXT_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;

enum normal_form { NORMAL_NONE, NORMAL_NFC, NORMAL_NFD, NORMAL_NFKC, NORMAL_NFKD };

/* True: the text is in its form already, for a quick reason. False: perhaps not. */
bool normal_is_plain(enum normal_form form, const char *text, size_t len);
/* Appends the normal form of well-formed text to *out. */
int normal_append(enum normal_form form, const char *text, size_t len, struct buf *out,
                  struct err *e);
#endif
