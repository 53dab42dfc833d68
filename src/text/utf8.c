#include "text/utf8.h"

#include <string.h>

#include "base/buf.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Length by the first byte, 0 when no character begins so; *lo, *hi bound the second byte. */
static unsigned first_byte(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
    *hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
    if (b < 0x80)
        return 1;
    if (b < 0xc2 || b > 0xf4)
        return 0;
    return b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

int utf8_step(const unsigned char *p, size_t n)
{
    unsigned char lo, hi;
    unsigned need = first_byte(p[0], &lo, &hi);

    if (need == 0)
        return -1;
    for (unsigned i = 1; i < need; i++) {
        if (i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -(int)i;
        lo = 0x80;
        hi = 0xbf;
    }
    return (int)need;
}

size_t utf8_check(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;

    while (i < n) {
        uint64_t eight;
        int step;

        if (n - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        step = utf8_step(p + i, n - i);
        if (step <= 0)
            return i;
        i += (size_t)step;
    }
    return n;
}

unsigned utf8_put(char to[4], uint32_t cp)
{
    if (cp < 0x80) {
        to[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        to[0] = (char)(0xc0 | cp >> 6);
        to[1] = (char)(0x80 | (cp & 63));
        return 2;
    }
    if (cp < 0x10000) {
        to[0] = (char)(0xe0 | cp >> 12);
        to[1] = (char)(0x80 | (cp >> 6 & 63));
        to[2] = (char)(0x80 | (cp & 63));
        return 3;
    }
    to[0] = (char)(0xf0 | cp >> 18);
    to[1] = (char)(0x80 | (cp >> 12 & 63));
    to[2] = (char)(0x80 | (cp >> 6 & 63));
    to[3] = (char)(0x80 | (cp & 63));
    return 4;
}

void utf8_append_lossy(struct buf *out, const char *bytes, size_t n)
{
    size_t from = 0;

    while (from < n) {
        size_t good = utf8_check(bytes + from, n - from);
        int step;

        buf_add(out, bytes + from, good);
        from += good;
        if (from == n)
            return;
        step = utf8_step((const unsigned char *)bytes + from, n - from);
        buf_add(out, replacement, sizeof replacement - 1);
        from += step < 0 ? (size_t)-step : n - from;
    }
}
