/* generate/regex.h - regular expressions (ECMA-262, as JSON Schema uses them) as automata over
 * characters (inside the room).
 *
 * Understood: characters, `.`, classes with ranges and \d \w \s \D \W \S, escapes \t \n \v \f \r \0
 * \xHH \uHHHH \u{H} \cX and escaped punctuation, groups of every kind that only groups, `|`, `*`
 * `+`
 * `?` `{m}` `{m,}` `{m,n}` and their lazy forms, `^` and `$`. Refused by name: back references,
 * looking around, \b and \B, \p. Order: regex_compile, read, regex_release (also after a failure).
 */
#ifndef GENERATE_REGEX_H
#define GENERATE_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum { REGEX_STATES_MAX = 6000, LAST_CHAR = 0x10ffff };

struct char_range {
    uint32_t lo, hi;
};

enum regex_step {
    STEP_CHARS, /* a character of ranges[first .. first + n) */
    STEP_SPLIT, /* both ways, without a character */
    STEP_BEGIN, /* only at the beginning of the text */
    STEP_END,   /* only at its end */
    STEP_MATCH,
};

struct regex_state {
    enum regex_step step;
    int to, other; /* other: STEP_SPLIT */
    int first, n;  /* STEP_CHARS */
};

struct regex {
    struct regex_state *states;
    int n_states, cap_states;
    struct char_range *ranges;
    int n_ranges, cap_ranges;
    int start;
};

/* 0; or -1 with ERR_ARG (what is wrong, or not understood) or ERR_NOMEM. `text` is UTF-8. */
int regex_compile(struct regex *re, const char *text, size_t len, struct err *e);
void regex_release(struct regex *re);
#endif
