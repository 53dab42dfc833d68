#include "text/char_class.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { CODE_POINTS = 0x110000, PAGES = CODE_POINTS >> 8 };

/* Each run of one class is one match; its group says which. */
static const char class_pattern[] = "(\\p{L}+)|(\\p{N}+)|(\\p{White_Space}+)";

static bool is_surrogate(uint32_t cp)
{
    return cp >= 0xd800 && cp < 0xe000;
}

/* Marks the code points of one page whose text is text[0..len). */
static int classify_page(pcre2_code *re, pcre2_match_data *md, const char *text, size_t len,
                         uint8_t *page)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at = 0;

    memset(page, CC_OTHER, 256);
    while (at < len) {
        int rc = pcre2_match(re, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, md, NULL);
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);

        if (rc == PCRE2_ERROR_NOMATCH)
            return 0;
        if (rc < 2)
            return -1;
        for (unsigned n; at < ov[1]; at += n) {
            uint32_t cp = utf8_decode(p + at, &n);

            if (at >= ov[0])
                page[cp & 255] = (uint8_t)(rc - 1);
        }
    }
    return 0;
}

/* Adds the page unless it is there already; the index, or -1 without memory. */
static int keep_page(struct char_classes *cc, const uint8_t *page)
{
    uint8_t(*grown)[256];

    for (unsigned i = cc->n_pages; i-- > 0;)
        if (memcmp(cc->pages[i], page, 256) == 0)
            return (int)i;
    grown = realloc(cc->pages, (cc->n_pages + 1) * sizeof *grown);
    if (!grown)
        return -1;
    cc->pages = grown;
    memcpy(cc->pages[cc->n_pages], page, 256);
    return (int)cc->n_pages++;
}

/* Planes 4 to 13 hold no characters yet, 15 and 16 are for private use: all CC_OTHER. Not asking
 * about them saves two thirds of the time; tests/unit/text/test_scan.c asks about every one. */
static bool is_empty_plane(uint32_t plane)
{
    return (plane >= 4 && plane <= 13) || plane >= 15;
}

static int fill_pages(struct char_classes *cc, pcre2_code *re, pcre2_match_data *md, struct err *e)
{
    char text[256 * 4];
    uint8_t page[256];

    for (uint32_t i = 0; i < PAGES; i++) {
        size_t len = 0;
        int at;

        for (uint32_t cp = i << 8; cp < (i + 1) << 8 && !is_empty_plane(i >> 8); cp++)
            if (!is_surrogate(cp))
                len += utf8_put(text + len, cp);
        if (is_empty_plane(i >> 8))
            memset(page, CC_OTHER, sizeof page);
        else if (classify_page(re, md, text, len, page) < 0)
            return err_set(e, ERR_FORMAT, "PCRE2 cannot classify the characters from U+%04X",
                           i << 8);
        at = keep_page(cc, page);
        if (at < 0)
            return err_nomem(e);
        cc->page[i] = (uint16_t)at;
    }
    memcpy(cc->ascii, cc->pages[cc->page[0]], sizeof cc->ascii);
    return 0;
}

int char_classes_init(struct char_classes *cc, struct err *e)
{
    int code, rc = -1;
    PCRE2_SIZE where;
    pcre2_match_data *md = NULL;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)class_pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);

    *cc = (struct char_classes){0};
    if (!re)
        return err_set(e, ERR_FORMAT, "PCRE2 lacks Unicode properties (error %d)", code);
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without JIT it is only slower */
    md = pcre2_match_data_create_from_pattern(re, NULL);
    if (!md)
        err_nomem(e);
    else
        rc = fill_pages(cc, re, md, e);
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    if (rc < 0)
        char_classes_release(cc);
    return rc;
}

void char_classes_release(struct char_classes *cc)
{
    free(cc->pages);
    *cc = (struct char_classes){0};
}
