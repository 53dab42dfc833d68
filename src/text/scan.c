#include "text/scan.h"

#include <stdbool.h>
#include <string.h>

#include "text/char_class.h"

const char scan_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

scan_fn *scan_for_pattern(const char *pattern)
{
    static const struct {
        const char *pattern;
        scan_fn *scan;
    } known[] = {
        {scan_gpt2_pattern, scan_gpt2},
        {llama3_pattern, scan_llama3},
        {qwen2_pattern, scan_qwen2},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern, known[i].pattern) == 0)
            return known[i].scan;
    return NULL;
}

/* End of the run of one class that begins at p. */
static const unsigned char *run_end(const struct char_classes *cc, const unsigned char *p,
                                    const unsigned char *end, enum char_class want)
{
    unsigned n;

    while (p < end && char_class_at(cc, p, &n) == want)
        p += n;
    return p;
}

static bool is_newline(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* \s+(?!\S)|\s+ for the run of white space [p, stop): all of it at the end of the text, else all
 * but its last character, which goes with the next word; a single one stands alone. */
static size_t space_word(const unsigned char *p, const unsigned char *stop,
                         const unsigned char *end)
{
    const unsigned char *last;

    if (stop == end)
        return (size_t)(stop - p);
    last = utf8_before(p, stop);
    return (size_t)((last > p ? last : stop) - p);
}

/* 's|'t|'re|'ve|'m|'ll|'d after the apostrophe at p: bytes of all of it, or 0. */
static size_t contraction(const unsigned char *p, const unsigned char *end)
{
    if (end - p < 2)
        return 0;
    switch (p[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return 2;
    case 'r':
    case 'v':
        return end - p > 2 && p[2] == 'e' ? 3 : 0;
    case 'l':
        return end - p > 2 && p[2] == 'l' ? 3 : 0;
    default:
        return 0;
    }
}

/* The same without regard to case. U+017F (c5 bf) folds to s. */
static size_t contraction_any_case(const unsigned char *p, const unsigned char *end)
{
    unsigned char folded[3] = {'\'', 0, 0};
    size_t n = (size_t)(end - p);

    if (n >= 3 && p[1] == 0xc5 && p[2] == 0xbf)
        return 3;
    for (size_t i = 1; i < 3 && i < n; i++)
        folded[i] = p[i] >= 'A' && p[i] <= 'Z' ? (unsigned char)(p[i] | 0x20) : p[i];
    return contraction(folded, folded + (n < 3 ? n : 3));
}

size_t scan_gpt2(const struct char_classes *cc, const unsigned char *p, const unsigned char *end)
{
    const unsigned char *word = p;
    enum char_class c;
    unsigned n;
    size_t short_form;

    if (*p == '\'' && (short_form = contraction(p, end)) > 0)
        return short_form;
    if (*p == ' ' && end - p > 1)
        word++; /* " ?": the space belongs to the word behind it, if there is one */
    c = char_class_at(cc, word, &n);
    if (c != CC_SPACE)
        return (size_t)(run_end(cc, word + n, end, c) - p);
    return space_word(p, run_end(cc, p, end, CC_SPACE), end);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at white space. */
static size_t space_or_lines(const struct char_classes *cc, const unsigned char *p,
                             const unsigned char *end)
{
    const unsigned char *stop = run_end(cc, p, end, CC_SPACE), *line = stop;

    while (line > p && !is_newline(line[-1]))
        line--;
    return line > p ? (size_t)(line - p) : space_word(p, stop, end);
}

static size_t number_word(const struct char_classes *cc, const unsigned char *p,
                          const unsigned char *end, unsigned max_digits)
{
    const unsigned char *at = p;
    unsigned n;

    for (unsigned i = 0; i < max_digits && at < end && char_class_at(cc, at, &n) == CC_NUMBER; i++)
        at += n;
    return (size_t)(at - p);
}

static size_t scan_lines(const struct char_classes *cc, const unsigned char *p,
                         const unsigned char *end, unsigned max_digits)
{
    const unsigned char *at;
    enum char_class c, next = CC_OTHER;
    unsigned n, m;
    size_t short_form;

    if (*p == '\'' && (short_form = contraction_any_case(p, end)) > 0)
        return short_form;
    c = char_class_at(cc, p, &n);
    if (c == CC_LETTER)
        return (size_t)(run_end(cc, p + n, end, CC_LETTER) - p);
    if (c == CC_NUMBER)
        return number_word(cc, p, end, max_digits);
    at = p + n;
    if (at < end)
        next = char_class_at(cc, at, &m);
    if (at < end && next == CC_LETTER && !is_newline(*p))
        return (size_t)(run_end(cc, at + m, end, CC_LETTER) - p);
    if (c == CC_SPACE && !(*p == ' ' && at < end && next == CC_OTHER))
        return space_or_lines(cc, p, end);
    at = run_end(cc, at, end, CC_OTHER);
    while (at < end && is_newline(*at))
        at++;
    return (size_t)(at - p);
}

size_t scan_llama3(const struct char_classes *cc, const unsigned char *p, const unsigned char *end)
{
    return scan_lines(cc, p, end, 3);
}

size_t scan_qwen2(const struct char_classes *cc, const unsigned char *p, const unsigned char *end)
{
    return scan_lines(cc, p, end, 1);
}
