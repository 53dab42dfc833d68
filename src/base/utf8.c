#include "base/utf8.h"

#include <string.h>

size_t utf8_sequence(const unsigned char *p, const unsigned char *end)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t n;

    if (*p < 0x80)
        return 1;
    if (*p < 0xc2 || *p > 0xf4)
        return 0;
    n = *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
    if ((size_t)(end - p) < n)
        return 0;
    if (*p == 0xe0)
        low = 0xa0;
    else if (*p == 0xed)
        high = 0x9f;
    else if (*p == 0xf0)
        low = 0x90;
    else if (*p == 0xf4)
        high = 0x8f;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if (p[i] < 0x80 || p[i] > 0xbf)
            return 0;
    return n;
}

bool utf8_valid(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;

    while (p < end) {
        size_t k = utf8_sequence(p, end);

        if (k == 0)
            return false;
        p += k;
    }
    return true;
}

void utf8_repair(char *s)
{
    unsigned char *p = (unsigned char *)s, *end = p + strlen(s);

    while (p < end) {
        size_t k = utf8_sequence(p, end);

        if (k == 0)
            *p = '?';
        p += k ? k : 1;
    }
}

size_t utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}
