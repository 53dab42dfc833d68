/* base/uuid.h - random UUIDs (RFC 9562, version 4) in their canonical text: lower case, hyphens. */
#ifndef BASE_UUID_H
#define BASE_UUID_H

#include <stdbool.h>

struct err;

enum { UUID_TEXT = 37 }; /* with the NUL */

int uuid_new(char out[UUID_TEXT], struct err *e); /* ERR_IO: the system gave no random bytes */
bool uuid_valid(const char *s);                   /* canonical, of any version */
#endif
