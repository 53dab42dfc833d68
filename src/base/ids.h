/* base/ids.h - ids: a prefix and 24 random hex digits ("file-0123456789abcdef01234567"). */
#ifndef BASE_IDS_H
#define BASE_IDS_H

#include <stdbool.h>
#include <stddef.h>

enum { ID_DIGITS = 24 };

void new_id(const char *prefix, char *out, size_t size); /* size: room for all of it */
bool is_id(const char *prefix, const char *text);
#endif
