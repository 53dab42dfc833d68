#include "base/uuid.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/err.h"

int uuid_new(char out[UUID_TEXT], struct err *e)
{
    unsigned char b[16];

    if (getrandom(b, sizeof b, 0) != sizeof b)
        return err_io(e, "draw a random id");
    b[6] = (unsigned char)(0x40 | (b[6] & 0x0f));
    b[8] = (unsigned char)(0x80 | (b[8] & 0x3f));
    snprintf(out, UUID_TEXT, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
    return 0;
}

bool uuid_valid(const char *s)
{
    for (int i = 0; i < UUID_TEXT - 1; i++) {
        bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;

        if (hyphen ? s[i] != '-' : !s[i] || !strchr("0123456789abcdef", s[i]))
            return false;
    }
    return s[UUID_TEXT - 1] == '\0';
}
