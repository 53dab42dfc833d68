/* The scanners by hand and PCRE2 must cut every text alike, and so must the character classes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/char_class.h"
#include "text/normalize.h"
#include "text/pretoken.h"
#include "text/utf8.h"

#include "base/buf.h"

static const char llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { CUTS_MAX = 4096 };

struct cuts {
    size_t len[CUTS_MAX];
    size_t n;
};

static int note_cut(void *arg, const char *text, size_t len, struct err *e)
{
    struct cuts *c = arg;

    (void)text;
    (void)e;
    assert_true(c->n < CUTS_MAX && len > 0);
    c->len[c->n++] = len;
    return 0;
}

/* Every kind of character that the patterns tell apart, and every letter of the contractions. */
static const char *const atoms[] = {
    " ",
    " ",
    "  ",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\v",
    "\xc2\xa0",
    "\xe3\x80\x80",
    "\xe2\x80\xa8",
    "\xc2\x85",
    "\xe1\xa0\x8e",
    "a",
    "b",
    "s",
    "S",
    "t",
    "re",
    "RE",
    "ve",
    "vE",
    "m",
    "ll",
    "L",
    "d",
    "D",
    "r",
    "v",
    "l",
    "'",
    "'",
    "'s",
    "'S",
    "'ll",
    "'\xc5\xbf",
    "\xc5\xbf",
    "\xe2\x84\xaa",
    "1",
    "2",
    "12",
    "1234",
    "\xc2\xb2",
    "\xc2\xbd",
    "\xe2\x85\xa7",
    "\xe0\xa5\xa9",
    ".",
    ",",
    "!",
    "<|",
    "_",
    "-",
    "\xc3\xa9",
    "e\xcc\x81",
    "\xcc\x81",
    "\xe4\xb8\xad",
    "\xed\x95\x9c",
    "\xf0\x9f\x98\x80",
    "\xf0\x9d\x9f\x98",
    "\xf0\x90\x90\x80",
    "\x01",
    "\x7f",
    "\xe2\x80\x8b",
    "\xef\xbb\xbf",
    "\xd9\xa3",
};

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static size_t random_text(uint64_t *x, char *out, size_t n_atoms)
{
    size_t len = 0;

    for (size_t i = 0; i < n_atoms; i++) {
        const char *a = atoms[next_random(x) % (sizeof atoms / sizeof *atoms)];

        memcpy(out + len, a, strlen(a));
        len += strlen(a);
    }
    return len;
}

static void compare(const struct pretoken *hand, const struct pretoken *regex,
                    const struct char_classes *cc, const char *text, size_t len)
{
    struct pretoken_work w = {0};
    struct err e = {0};
    static const size_t max_shown = 60;
    struct cuts a = {.n = 0}, b = {.n = 0};

    assert_int_equal(pretoken_words(hand, cc, text, len, &w, note_cut, &a, &e), 0);
    assert_int_equal(pretoken_words(regex, cc, text, len, &w, note_cut, &b, &e), 0);
    if (a.n != b.n || memcmp(a.len, b.len, a.n * sizeof *a.len) != 0)
        fail_msg("cut differently: \"%.*s\"", (int)(len < max_shown ? len : max_shown), text);
    pretoken_work_release(&w);
}

static void check_pattern(const char *pattern)
{
    struct pretoken hand = {0}, regex = {0};
    struct char_classes cc;
    struct err e = {0};
    char text[64 * 8];
    uint64_t x = 88172645463325252u;

    assert_non_null(scan_for_pattern(pattern));
    assert_int_equal(char_classes_init(&cc, &e), 0);
    assert_int_equal(pretoken_add_pattern(&hand, pattern, 1, &e), 0);
    assert_int_equal(pretoken_add_pattern(&regex, pattern, 0, &e), 0);
    for (int i = 0; i < 60000; i++)
        compare(&hand, &regex, &cc, text, random_text(&x, text, 1 + next_random(&x) % 24));
    pretoken_release(&hand);
    pretoken_release(&regex);
    char_classes_release(&cc);
}

static void the_gpt2_scanner_cuts_like_its_pattern(void **state)
{
    (void)state;
    check_pattern(scan_gpt2_pattern);
}

static void the_llama3_scanner_cuts_like_its_pattern(void **state)
{
    (void)state;
    check_pattern(llama3);
}

static void the_qwen2_scanner_cuts_like_its_pattern(void **state)
{
    (void)state;
    check_pattern(qwen2);
}

struct found {
    const struct char_classes *cc;
    enum char_class want;
    size_t n, expected;
};

static int note_found(void *arg, const char *text, size_t len, struct err *e)
{
    struct found *f = arg;
    unsigned n;

    (void)e;
    assert_int_equal(char_class_at(f->cc, (const unsigned char *)text, &n), f->want);
    assert_int_equal(n, len);
    f->n++;
    return 0;
}

static void white_space_is_the_unicode_property(void **state)
{
    static const uint32_t spaces[] = {0x09,   0x0a,   0x0b,   0x0c,   0x0d,   0x20,   0x85,
                                      0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                      0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028,
                                      0x2029, 0x202f, 0x205f, 0x3000};
    struct char_classes cc;
    struct err e = {0};
    size_t n = 0;

    (void)state;
    assert_int_equal(char_classes_init(&cc, &e), 0);
    for (uint32_t cp = 0; cp < 0x110000; cp++)
        if (char_class_of(&cc, cp) == CC_SPACE) {
            assert_true(n < sizeof spaces / sizeof *spaces);
            assert_int_equal(cp, spaces[n++]);
        }
    assert_int_equal(n, sizeof spaces / sizeof *spaces);
    assert_int_equal(char_class_of(&cc, 0x4e2d), CC_LETTER);
    assert_int_equal(char_class_of(&cc, 0xbd), CC_NUMBER);
    assert_int_equal(char_class_of(&cc, 0x1f600), CC_OTHER);
    char_classes_release(&cc);
}

/* The table against the pattern that fills it, one character at a time and over all planes. */
static void the_class_of_every_character_is_that_of_pcre2(void **state)
{
    static const char *const patterns[] = {
        [CC_LETTER] = "\\p{L}", [CC_NUMBER] = "\\p{N}", [CC_SPACE] = "\\s"};
    struct char_classes cc;
    struct err e = {0};
    char *text = malloc(0x110000 * 4);

    (void)state;
    assert_non_null(text);
    assert_int_equal(char_classes_init(&cc, &e), 0);
    for (enum char_class want = CC_LETTER; want <= CC_SPACE; want++) {
        struct pretoken p = {0};
        struct pretoken_work w = {0};
        struct found f = {.cc = &cc, .want = want};
        size_t len = 0;

        for (uint32_t cp = 0; cp < 0x110000; cp++)
            if (cp < 0xd800 || cp >= 0xe000)
                len += utf8_put(text + len, cp);
        assert_int_equal(pretoken_add_pattern(&p, patterns[want], 0, &e), 0);
        p.steps[0].keep_gaps = 0; /* only the matches */
        assert_int_equal(pretoken_words(&p, &cc, text, len, &w, note_found, &f, &e), 0);
        for (uint32_t cp = 0; cp < 0x110000; cp++)
            f.expected += char_class_of(&cc, cp) == want;
        assert_int_equal(f.n, f.expected);
        pretoken_work_release(&w);
        pretoken_release(&p);
    }
    free(text);
    char_classes_release(&cc);
}

/* ---- splits that no scanner knows ---- */

static void assert_cuts(const char *pattern, const char *text, const size_t *want, size_t n)
{
    struct pretoken p = {0};
    struct pretoken_work w = {0};
    struct char_classes cc;
    struct cuts got = {.n = 0};
    struct err e = {0};

    assert_int_equal(char_classes_init(&cc, &e), 0);
    if (pretoken_add_pattern(&p, pattern, 1, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(pretoken_words(&p, &cc, text, strlen(text), &w, note_cut, &got, &e), 0);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.len, want, n * sizeof *want);
    pretoken_work_release(&w);
    pretoken_release(&p);
    char_classes_release(&cc);
}

static void any_other_pattern_runs_in_pcre2(void **state)
{
    (void)state;
    assert_cuts("[0-9]", "ab12c", (const size_t[]){2, 1, 1, 1}, 4);
    assert_cuts("\\s+|[[:punct:]]", "ab  c!", (const size_t[]){2, 2, 1, 1}, 4);
    assert_cuts("\\w+", "\xc3\xa9_1-", (const size_t[]){4, 1}, 2);
    assert_cuts("x*", "axb", (const size_t[]){1, 1, 1}, 3); /* empty matches cut too */
}

static void patterns_that_mean_something_else_are_refused(void **state)
{
    static const char *const patterns[] = {"\\h+", "[a&&b]", "[a[b]]", "[\\W]", "(", "\\y"};
    struct pretoken p = {0};

    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct err e = {0};

        assert_int_equal(pretoken_add_pattern(&p, patterns[i], 1, &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
    }
    pretoken_release(&p);
}

/* ---- normal forms ---- */

static void assert_normal(const char *text, const char *want)
{
    struct buf out = {0};
    struct err e = {0};

    assert_int_equal(normal_append(NORMAL_NFC, text, strlen(text), &out, &e), 0);
    assert_string_equal(buf_str(&out), want);
    buf_release(&out);
}

static void nfc_composes_across_the_quick_ranges(void **state)
{
    (void)state;
    assert_normal("plain", "plain");
    assert_normal("xe\xcc\x81y", "x\xc3\xa9y");
    assert_normal("\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81"); /* syllable + trailing jamo */
    assert_normal("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* three jamo */
    assert_normal("\xe3\x81\x8b\xe3\x82\x99", "\xe3\x81\x8c");             /* ka + voiced mark */
    assert_normal("\xe2\x84\xab!", "\xc3\x85!");                           /* angstrom sign */
    assert_normal("\xd0\x95\xcc\x80z", "\xd0\x80z");                       /* Cyrillic ie + grave */
    assert_normal("a\xcc\xa7\xcc\x81", "\xc3\xa1\xcc\xa7"); /* marks in canonical order */
}

/* Every character, alone and between neighbours that compose: the quick ranges change nothing. */
static void nfc_of_every_character_equals_the_whole_text_at_once(void **state)
{
    struct buf one = {0}, piecewise = {0}, at_once = {0};
    struct err e = {0};

    (void)state;
    for (uint32_t cp = 1; cp < 0x20000; cp++) {
        char c[4];
        size_t n;

        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        n = utf8_put(c, cp);
        buf_reset(&one);
        buf_add_str(&one, "\xe1\x84\x80"); /* leading jamo: composes with a vowel */
        buf_add(&one, c, n);
        buf_add_str(&one, "\xcc\x81"
                          "a");
        buf_add(&one, c, n);
        buf_reset(&piecewise);
        buf_reset(&at_once);
        assert_int_equal(normal_append(NORMAL_NFC, buf_str(&one), one.len, &piecewise, &e), 0);
        /* NFD first leaves nothing for the quick ranges to skip */
        assert_int_equal(normal_append(NORMAL_NFD, buf_str(&one), one.len, &at_once, &e), 0);
        buf_reset(&one);
        assert_int_equal(normal_append(NORMAL_NFC, buf_str(&at_once), at_once.len, &one, &e), 0);
        if (one.len != piecewise.len || memcmp(one.data, piecewise.data, one.len) != 0)
            fail_msg("U+%04X: \"%s\" and \"%s\"", cp, buf_str(&piecewise), buf_str(&one));
    }
    buf_release(&one);
    buf_release(&piecewise);
    buf_release(&at_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gpt2_scanner_cuts_like_its_pattern),
        cmocka_unit_test(the_llama3_scanner_cuts_like_its_pattern),
        cmocka_unit_test(the_qwen2_scanner_cuts_like_its_pattern),
        cmocka_unit_test(white_space_is_the_unicode_property),
        cmocka_unit_test(the_class_of_every_character_is_that_of_pcre2),
        cmocka_unit_test(any_other_pattern_runs_in_pcre2),
        cmocka_unit_test(patterns_that_mean_something_else_are_refused),
        cmocka_unit_test(nfc_composes_across_the_quick_ranges),
        cmocka_unit_test(nfc_of_every_character_equals_the_whole_text_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
