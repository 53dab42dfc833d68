#include "base/ids.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void new_id(const char *prefix, char *out, size_t size)
{
    unsigned char random[ID_DIGITS / 2] = {0};
    size_t at = strlen(prefix);

    while (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        ;
    snprintf(out, size, "%s", prefix);
    for (size_t i = 0; i < sizeof random && at + 2 < size; i++, at += 2)
        snprintf(out + at, 3, "%02x", random[i]);
}

bool is_id(const char *prefix, const char *text)
{
    size_t n = strlen(prefix);

    return strncmp(text, prefix, n) == 0 && strlen(text) == n + ID_DIGITS &&
           strspn(text + n, "0123456789abcdef") == ID_DIGITS;
}
