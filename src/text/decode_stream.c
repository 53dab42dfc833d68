#include "text/decode_stream.h"

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

void decode_stream_init(struct decode_stream *s, const struct tokenizer *t, unsigned flags)
{
    *s = (struct decode_stream){.tokenizer = t, .flags = flags};
}

/* ed a0..bf begins a surrogate: broken already, but its third byte is shown with it. */
static bool is_half_surrogate(const struct decode_stream *s)
{
    return s->n_held == 2 && s->held[0] == 0xed && s->held[1] >= 0xa0 && s->held[1] <= 0xbf;
}

/* The held bytes and the next one: a whole character, a broken part, or still a beginning. */
static void push_byte(struct decode_stream *s, unsigned char byte, struct buf *out)
{
    int step;

    s->held[s->n_held++] = byte;
    if (is_half_surrogate(s))
        return;
    while (s->n_held > 0 && (step = utf8_step(s->held, s->n_held)) != 0) {
        size_t used = (size_t)(step > 0 ? step : -step);

        utf8_append_lossy(out, (const char *)s->held, used);
        s->n_held -= used;
        memmove(s->held, s->held + used, s->n_held);
    }
}

void decode_stream_push(struct decode_stream *s, int32_t id, struct buf *out)
{
    const char *bytes;
    size_t len;

    if ((s->flags & TOK_SKIP_SPECIAL) && tokenizer_is_special(s->tokenizer, id))
        return;
    if (!tokenizer_token_bytes(s->tokenizer, id, &bytes, &len))
        return;
    for (size_t i = 0; i < len; i++)
        push_byte(s, (unsigned char)bytes[i], out);
}

void decode_stream_flush(struct decode_stream *s, struct buf *out)
{
    utf8_append_lossy(out, (const char *)s->held, s->n_held);
    s->n_held = 0;
}
