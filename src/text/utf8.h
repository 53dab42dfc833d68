/* text/utf8.h - UTF-8 in steps: what is whole, what is broken, what ends too early.
 *
 * Well-formed is as in Unicode 15, table 3-7 (no surrogates, no overlong forms, at most U+10FFFF);
 * a broken part is maximal as in section 3.9, "U+FFFD Substitution of Maximal Subparts". No state,
 * any thread. */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

struct buf;

/* One step over n >= 1 bytes. > 0: length of the whole character at p; 0: all n bytes are the
 * beginning of a character that ends too early; < 0: minus the length of the maximal broken part.
 */
int utf8_step(const unsigned char *p, size_t n);

/* n when all of it is UTF-8, else the offset of the first broken part. */
size_t utf8_check(const char *text, size_t n);

/* Appends the bytes, U+FFFD for each maximal broken part (one too early an end included). */
void utf8_append_lossy(struct buf *out, const char *bytes, size_t n);

/* The bytes of a code point (no surrogate, at most U+10FFFF) into to; their number. */
unsigned utf8_put(char to[4], uint32_t cp);

/* Code point at p, which is well-formed; *len gets its bytes. */
static inline uint32_t utf8_decode(const unsigned char *p, unsigned *len)
{
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *len = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

/* Start of the character that ends before p; from < p, text well-formed. */
static inline const unsigned char *utf8_before(const unsigned char *from, const unsigned char *p)
{
    do
        p--;
    while (p > from && (*p & 0xc0) == 0x80);
    return p;
}
#endif
