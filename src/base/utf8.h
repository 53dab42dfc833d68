/* base/utf8.h - UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above
 * U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed sequence at p (p < end), or 0. */
size_t utf8_sequence(const unsigned char *p, const unsigned char *end);
bool utf8_valid(const char *s, size_t n);
/* Every byte of the NUL-terminated text that is part of no well-formed sequence becomes '?'. */
void utf8_repair(char *s);
/* Writes one to four bytes; c is a Unicode scalar value. */
size_t utf8_encode(uint32_t c, char out[4]);
#endif
