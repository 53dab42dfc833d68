/* text/vocab.h - the pieces of a tokenizer: id to bytes, bytes to id, byte to id.
 *
 * Calling order: vocab_init with the highest id, vocab_put for each piece, vocab_index once; then
 * only the readers. Pieces of model.vocab come in the byte-level alphabet (one printable character
 * stands for each byte) and are kept as the bytes they stand for. Immutable after vocab_index. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct err;

enum { VOCAB_MAX_ID = (1 << 22) - 1 };

enum {
    PIECE_PRESENT = 1,
    PIECE_SPELLED = 2, /* of model.vocab, in the byte-level alphabet: words are made of these */
    PIECE_SPECIAL = 4,
};

struct piece {
    uint32_t start; /* of its bytes in vocab.bytes */
    uint32_t len;
};

struct vocab {
    int32_t n;            /* highest id + 1 */
    struct piece *pieces; /* [n], owned */
    uint8_t *flags;       /* [n], owned; 0: the id has no piece */
    struct buf bytes;
    int32_t byte_id[256]; /* the spelled piece that is this one byte, the unknown one, or -1 */
    int32_t fused_unk;    /* the unknown piece when a run of it counts once, else -1 */
    int32_t *slots;       /* hash of bytes to id, spelled pieces first, -1 empty; owned */
    size_t mask;
};

int vocab_init(struct vocab *v, int64_t max_id, struct err *e);
/* A piece of model.vocab, spelled in the byte-level alphabet. A spelling that is not keeps its own
 * UTF-8: it can be decoded, and no text leads to it. */
int vocab_put_spelled(struct vocab *v, int64_t id, const char *text, size_t len, struct err *e);
/* An added token: its content as it is. Where model.vocab has the same id for the same bytes, it
 * stays a spelled piece too; for other bytes the added token takes the id over. */
int vocab_put_added(struct vocab *v, int64_t id, const char *text, size_t len, bool special,
                    struct err *e);
int vocab_index(struct vocab *v, struct err *e);
/* Bytes without a piece become `id` (after vocab_index); with `fuse` a run of them is one. */
void vocab_set_unknown(struct vocab *v, int32_t id, bool fuse);
void vocab_release(struct vocab *v);

int32_t vocab_find(const struct vocab *v, const char *bytes, size_t len); /* -1: no such piece */

static inline bool vocab_has(const struct vocab *v, int64_t id)
{
    return id >= 0 && id < v->n && v->flags[id] != 0;
}

static inline const char *vocab_bytes(const struct vocab *v, int32_t id)
{
    return buf_str(&v->bytes) + v->pieces[id].start;
}
#endif
