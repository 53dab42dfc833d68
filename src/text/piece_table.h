/* text/piece_table.h - while a tokenizer.json is read: the id of each piece by its spelling.
 *
 * Filled by piece_table_read from the text of model.vocab; merges_read looks pieces up in it.
 * Thrown away when the file is read. Not shared. */
#ifndef TEXT_PIECE_TABLE_H
#define TEXT_PIECE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct bpe;
struct err;

struct piece_entry {
    uint64_t start; /* of the spelling in table.text */
    uint32_t len;
    int32_t id;
};

struct piece_table {
    struct buf text;
    struct piece_entry *entries; /* owned, in the order of the file */
    size_t n, cap;
    uint32_t *slots; /* owned: index of an entry + 1; 0 empty; at most half full */
    size_t mask;
    int32_t max_id;
};

/* `json` is the object model.vocab. -1 with ERR_FORMAT: not JSON, a spelling twice, an id that is
 * no whole number in [0, VOCAB_MAX_ID]. Then, too, it must be released. */
int piece_table_read(struct piece_table *t, const char *json, size_t len, struct err *e);
void piece_table_release(struct piece_table *t);
int32_t piece_table_find(const struct piece_table *t, const char *text, size_t len); /* -1: none */

/* Fills *b from the list model.merges: "a b" or ["a", "b"]. */
int merges_read(struct bpe *b, const struct piece_table *t, const char *json, size_t len,
                struct err *e);
#endif
