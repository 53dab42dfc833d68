#include "text/vocab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/hash.h"
#include "text/utf8.h"

/* The byte-level alphabet: printable Latin-1 stands for itself, the 68 other bytes for U+0100 and
 * up, in order. Returns the byte of a code point, or -1. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff))
        return (int)cp;
    if (cp < 0x100 || cp >= 0x144)
        return -1;
    cp -= 0x100;
    if (cp <= 0x20) /* 00 .. 20 */
        return (int)cp;
    if (cp <= 0x20 + 34) /* 7f .. a0 */
        return (int)(0x7f + cp - 0x21);
    return 0xad;
}

int vocab_init(struct vocab *v, int64_t max_id, struct err *e)
{
    *v = (struct vocab){.fused_unk = -1};
    if (max_id < 0 || max_id > VOCAB_MAX_ID)
        return err_set(e, ERR_FORMAT, "the highest token id is %" PRId64 ", of at most %d", max_id,
                       VOCAB_MAX_ID);
    v->n = (int32_t)max_id + 1;
    v->pieces = calloc((size_t)v->n, sizeof *v->pieces);
    v->flags = calloc((size_t)v->n, 1);
    if (!v->pieces || !v->flags) {
        vocab_release(v);
        return err_nomem(e);
    }
    return 0;
}

static int check_id(const struct vocab *v, int64_t id, struct err *e)
{
    if (id < 0 || id >= v->n)
        return err_set(e, ERR_FORMAT, "token id %" PRId64 " is out of range", id);
    return 0;
}

static int put_bytes(struct vocab *v, int64_t id, size_t start, unsigned flags, struct err *e)
{
    if (v->bytes.failed)
        return err_nomem(e);
    if (v->bytes.len > UINT32_MAX)
        return err_set(e, ERR_FORMAT, "the vocabulary holds more than 4 GiB of text");
    v->pieces[id] = (struct piece){(uint32_t)start, (uint32_t)(v->bytes.len - start)};
    v->flags[id] = (uint8_t)(flags | PIECE_PRESENT);
    return 0;
}

int vocab_put_spelled(struct vocab *v, int64_t id, const char *text, size_t len, struct err *e)
{
    size_t start = v->bytes.len;
    unsigned n, flags = PIECE_SPELLED;

    if (check_id(v, id, e) < 0)
        return -1;
    if (v->flags[id])
        return err_set(e, ERR_FORMAT, "model.vocab gives the id %" PRId64 " to two pieces", id);
    for (size_t at = 0; at < len; at += n) {
        int byte = byte_of(utf8_decode((const unsigned char *)text + at, &n));

        if (byte < 0) { /* not in the alphabet: the piece stands for its own text */
            v->bytes.len = start;
            buf_add(&v->bytes, text, len);
            flags = 0;
            break;
        }
        buf_add_char(&v->bytes, (char)byte);
    }
    return put_bytes(v, id, start, flags, e);
}

static bool same_bytes(const struct vocab *v, int32_t id, const char *bytes, size_t len)
{
    return v->pieces[id].len == len && (len == 0 || memcmp(vocab_bytes(v, id), bytes, len) == 0);
}

int vocab_put_added(struct vocab *v, int64_t id, const char *text, size_t len, bool special,
                    struct err *e)
{
    size_t start = v->bytes.len;
    unsigned flags = 0;

    if (check_id(v, id, e) < 0)
        return -1;
    if (special)
        flags |= PIECE_SPECIAL;
    if (v->flags[id] && same_bytes(v, (int32_t)id, text, len))
        flags |= v->flags[id] & PIECE_SPELLED;
    buf_add(&v->bytes, text, len);
    return put_bytes(v, id, start, flags, e);
}

static int32_t *slot_of(const struct vocab *v, const char *bytes, size_t len)
{
    size_t at = hash_bytes(bytes, len) & v->mask;

    for (;; at = (at + 1) & v->mask) {
        int32_t id = v->slots[at];

        if (id < 0 || same_bytes(v, id, bytes, len))
            return &v->slots[at];
    }
}

/* Enters the pieces whose spelled flag is `flag`. A piece that is there already stays. */
static void index_pieces(struct vocab *v, unsigned flag)
{
    for (int32_t id = 0; id < v->n; id++) {
        int32_t *slot;

        if (!v->flags[id] || (v->flags[id] & PIECE_SPELLED) != flag)
            continue;
        slot = slot_of(v, vocab_bytes(v, id), v->pieces[id].len);
        if (*slot < 0)
            *slot = id;
    }
}

int vocab_index(struct vocab *v, struct err *e)
{
    size_t n = 16;

    while (n < (size_t)v->n * 2)
        n *= 2;
    v->slots = malloc(n * sizeof *v->slots);
    if (!v->slots)
        return err_nomem(e);
    memset(v->slots, 0xff, n * sizeof *v->slots);
    v->mask = n - 1;
    index_pieces(v, PIECE_SPELLED);
    index_pieces(v, 0);
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        int32_t id = vocab_find(v, &c, 1);

        v->byte_id[b] = id >= 0 && (v->flags[id] & PIECE_SPELLED) ? id : -1;
    }
    return 0;
}

void vocab_set_unknown(struct vocab *v, int32_t id, bool fuse)
{
    for (int b = 0; b < 256; b++)
        if (v->byte_id[b] < 0)
            v->byte_id[b] = id;
    v->fused_unk = fuse ? id : -1;
}

int32_t vocab_find(const struct vocab *v, const char *bytes, size_t len)
{
    return *slot_of(v, bytes, len);
}

void vocab_release(struct vocab *v)
{
    free(v->pieces);
    free(v->flags);
    free(v->slots);
    buf_release(&v->bytes);
    *v = (struct vocab){0};
}
