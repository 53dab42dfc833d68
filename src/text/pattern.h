/* text/pattern.h - compiles a pattern of tokenizer.json for PCRE2.
 *
 * These patterns are written for Oniguruma. Nearly all of them mean the same in PCRE2 with UTF and
 * UCP; what differs is rewritten: \s and \S become \p{White_Space} (PCRE2 counts U+180E as space),
 * \w becomes letters, marks, numbers and connectors, and ^ and $ work at each line. What cannot be
 * rewritten (\h, \X in a class,
 * ...) is refused by name. */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H

#include <stdbool.h>

struct err;

enum { PATTERN_MAX = 64 << 10 }; /* bytes of a pattern */

/* An owned pcre2_code (as void *, so that only two files need pcre2.h), JIT-compiled. `literal`:
 * the text stands for itself. NULL with ERR_FORMAT: too long, refused, or not a pattern. */
void *pattern_compile(const char *pattern, bool literal, struct err *e);
#endif
