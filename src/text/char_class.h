/* text/char_class.h - letter, number, space or other, for every code point.
 *
 * The table is filled by asking PCRE2 for \p{L}, \p{N} and \p{White_Space} once, so that the
 * hand-written scanners and the patterns that PCRE2 runs can never disagree about a character.
 * Immutable after init. */
#ifndef TEXT_CHAR_CLASS_H
#define TEXT_CHAR_CLASS_H

#include <stdint.h>

#include "text/utf8.h"

struct err;

enum char_class { CC_OTHER, CC_LETTER, CC_NUMBER, CC_SPACE };

struct char_classes {
    uint8_t ascii[128];
    uint16_t page[0x110000 >> 8]; /* index into pages, by the upper bits of a code point */
    uint8_t (*pages)[256];        /* owned; equal pages are kept once */
    unsigned n_pages;
};

int char_classes_init(struct char_classes *cc, struct err *e);
void char_classes_release(struct char_classes *cc);

static inline enum char_class char_class_of(const struct char_classes *cc, uint32_t cp)
{
    return cp < 0x110000 ? (enum char_class)cc->pages[cc->page[cp >> 8]][cp & 255] : CC_OTHER;
}

/* Class of the well-formed character at p; *len gets its bytes. */
static inline enum char_class char_class_at(const struct char_classes *cc, const unsigned char *p,
                                            unsigned *len)
{
    if (*p < 0x80) {
        *len = 1;
        return (enum char_class)cc->ascii[*p];
    }
    return char_class_of(cc, utf8_decode(p, len));
}
#endif
