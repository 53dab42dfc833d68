/* base/str.h - copy a string into a fixed field. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stddef.h>
#include <string.h>

/* At most size - 1 bytes and a NUL; a longer text is cut at a character of UTF-8. */
static inline void str_copy(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);

    if (from[n] != '\0')
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80)
            n--;
    memcpy(to, from, n);
    to[n] = '\0';
}
#endif
