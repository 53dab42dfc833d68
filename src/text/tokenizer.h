/* text/tokenizer.h - byte-level BPE: text to token ids and back, as tokenizer.json says.
 *
 * Purpose: one tokenizer is what a model directory holds in tokenizer.json (pieces, merges, added
 * tokens, the pattern that cuts text into words) and in tokenizer_config.json (which token begins
 * and ends a text). What is understood, and what is refused by name: docs/formats/tokenizer.md.
 *
 * Calling order: tokenizer_open, then any of the others, then tokenizer_unref.
 * Threads: after open the object never changes; every function with a `const struct tokenizer *`
 * may run in any number of threads at once (scratch memory belongs to the call). The count is
 * atomic. Ownership: the object is counted (_ref, _unref); strings and bytes it gives are borrowed
 * from it. Units: an id is an int32_t in [0, tokenizer_vocab_size); lengths are bytes; text is
 * UTF-8 and may hold NUL.
 *
 * Errors: ERR_NOT_FOUND no tokenizer.json; ERR_FORMAT it is damaged, or asks for a part that is not
 * supported (the message names the part); ERR_ARG text is not UTF-8 (the message gives the byte);
 * ERR_NOMEM. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct buf;
struct tokenizer;

enum { TOKENIZER_FILE_MAX = 128 << 20 }; /* bytes of a tokenizer.json that is read at all */

/* A growing list of ids. A zeroed struct is empty. */
struct token_list {
    int32_t *ids; /* owned; NULL while empty */
    size_t n;
    size_t cap;
};

int token_list_push(struct token_list *l, int32_t id, struct err *e);
int token_list_append(struct token_list *l, const int32_t *ids, size_t n, struct err *e);
void token_list_reset(struct token_list *l); /* keeps the memory */
void token_list_release(struct token_list *l);

/* Opens tokenizer.json of the directory, and tokenizer_config.json where there is one. Owned. */
struct tokenizer *tokenizer_open(int dir_fd, struct err *e);
/* The same from memory; `config` is the text of tokenizer_config.json, or NULL. Nothing is kept of
 * either. */
struct tokenizer *tokenizer_parse(const char *json, size_t json_len, const char *config,
                                  size_t config_len, struct err *e);
struct tokenizer *tokenizer_ref(struct tokenizer *t);
void tokenizer_unref(struct tokenizer *t); /* NULL is allowed */

enum tokenizer_flag {
    TOK_ADD_SPECIAL = 1,     /* encode: put BOS (and what else the post-processor says) around */
    TOK_SPECIAL_AS_TEXT = 2, /* encode: special tokens written in the text are plain text */
    TOK_SKIP_SPECIAL = 4,    /* decode: leave special tokens out */
};

/* Appends the ids of text[0..len) to *out. On failure *out is as before. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     struct token_list *out, struct err *e);

/* Appends the text of the ids to *out: the bytes of all tokens joined, each maximal part that is
 * not UTF-8 replaced by one U+FFFD. An id without a token adds nothing. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                      struct buf *out);

/* Highest id + 1, added tokens included. The model's own vocabulary may be larger: those ids have
 * no token. */
int32_t tokenizer_vocab_size(const struct tokenizer *t);
/* The true bytes of one token (they may be part of a character). False: the id has no token. */
bool tokenizer_token_bytes(const struct tokenizer *t, int32_t id, const char **bytes, size_t *len);
/* The id of the token whose bytes (an added token's content) are text[0..len), or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); /* BOS, EOS, <|im_start|>, ... */

/* -1 where tokenizer_config.json names none, or a token that does not exist. The model's
 * generation_config.json may list further ends. */
int32_t tokenizer_bos_id(const struct tokenizer *t);
int32_t tokenizer_eos_id(const struct tokenizer *t);
int32_t tokenizer_pad_id(const struct tokenizer *t);
/* True when TOK_ADD_SPECIAL puts something in front of a text. */
bool tokenizer_adds_prefix(const struct tokenizer *t);
/* Flags for a rendered chat prompt: TOK_ADD_SPECIAL, unless the text begins with the BOS token,
 * which a template prints by itself. */
unsigned tokenizer_chat_flags(const struct tokenizer *t, const char *text, size_t len);
#endif
