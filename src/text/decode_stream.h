/* text/decode_stream.h - text of a token stream, whole characters only.
 *
 * A token may end inside a character. Its bytes are held until a later token completes the
 * character, or shows that it never will be (then one U+FFFD stands for the broken part). The
 * deltas joined, flush included, are exactly what tokenizer_decode gives for all ids at once.
 *
 * Calling order: init, push for each id, flush once at the end (or init again). No release: the
 * struct holds no memory. One stream, one thread at a time. The tokenizer is borrowed while the
 * stream is used. */
#ifndef TEXT_DECODE_STREAM_H
#define TEXT_DECODE_STREAM_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct tokenizer;

struct decode_stream {
    const struct tokenizer *tokenizer;
    unsigned flags;        /* TOK_SKIP_SPECIAL or 0 */
    unsigned char held[4]; /* the beginning of a character */
    size_t n_held;         /* 0 .. 3 */
};

void decode_stream_init(struct decode_stream *s, const struct tokenizer *t, unsigned flags);
/* Appends what can be shown now to *out: nothing, or valid UTF-8. */
void decode_stream_push(struct decode_stream *s, int32_t id, struct buf *out);
/* Appends U+FFFD when bytes are held; none are held afterwards. */
void decode_stream_flush(struct decode_stream *s, struct buf *out);
#endif
