/* text/tokenizer_text.h - the text of tokenizer.json in three parts: the vocabulary, the merges,
 * the rest.
 *
 * The two big members are cut out unread (text/piece_table.h reads them), and the rest becomes a
 * JSON tree in which an empty object and an empty list stand for them. */
#ifndef TEXT_TOKENIZER_TEXT_H
#define TEXT_TOKENIZER_TEXT_H

#include <jansson.h>
#include <stddef.h>

struct buf;
struct err;

struct tokenizer_text {
    const char *vocab, *merges; /* borrowed from the text; NULL: there is no such member */
    size_t vocab_len, merges_len;
    json_t *rest; /* owned */
};

/* -1 with ERR_FORMAT: not UTF-8, or not JSON. `text` must outlive *out. */
int tokenizer_text_parse(struct tokenizer_text *out, const char *text, size_t len, struct err *e);
void tokenizer_text_release(struct tokenizer_text *t);

/* A whole regular file appended to *out; links are followed, a FIFO does not block. -1 with
 * ERR_NOT_FOUND, ERR_FORMAT (not regular, or over max_bytes), ERR_IO, ERR_NOMEM. */
int text_read_file(int dir_fd, const char *name, size_t max_bytes, struct buf *out, struct err *e);
#endif
