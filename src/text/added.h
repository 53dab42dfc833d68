/* text/added.h - finds added tokens ("<|im_end|>" and the like) in a text: leftmost, then longest.
 *
 * Two sets, as in tokenizer.json: `normalized` false is looked for in the raw text, true in the
 * text after the normaliser. Calling order: added_put for each, added_seal once, then added_find.
 * Immutable after added_seal. */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct char_classes;

struct added_token {
    char *text; /* owned */
    size_t len; /* >= 1 */
    int32_t id;
    bool special;
    bool lstrip, rstrip; /* takes the white space before or after it along */
    bool single_word;    /* only where no word character touches it */
};

struct added_set {
    struct added_token *tokens; /* owned, sorted by text after added_seal */
    size_t n;
    bool starts[256];    /* bytes that a token begins with */
    int only_start;      /* the one such byte, or -1 */
    uint32_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
};

struct added_match {
    size_t start, end; /* with the white space taken along */
    int32_t id;
};

/* `t` is copied, text too. */
int added_put(struct added_set *s, const struct added_token *t, struct err *e);
void added_seal(struct added_set *s);
void added_release(struct added_set *s);

/* The first match in text[from..len): true and *m, or false. With special_as_text only tokens that
 * are not special count. White space before `from` is never taken. */
bool added_find(const struct added_set *s, const struct char_classes *cc, const char *text,
                size_t len, size_t from, bool special_as_text, struct added_match *m);
#endif
