/* Foreign bytes as tokenizer.json, and foreign text through the tokenizers of the tiny models.
 *
 * Byte 0 odd: the rest is a tokenizer.json, a NUL, and a text that it encodes when it opens. Even:
 * the rest is a text for one of the tiny models (chosen by byte 0). What must hold: stream deltas
 * joined are the decoded text, no special id comes from text that is read as plain, and (where
 * every byte has a piece and nothing is normalised) decoding gives the text back. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/decode_stream.h"
#include "text/tokenizer.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static const struct {
    const char *dir;
    bool lossless;
} models[] = {
    {"tests/vectors/models/tiny-llama", false}, /* lacks 21 bytes */
    {"tests/vectors/models/tiny-llama-untied-rope3", true},
    {"tests/vectors/models/tiny-qwen3", false}, /* NFC */
    {"tests/vectors/models/tiny-lfm2", true},
};

enum { N_MODELS = sizeof models / sizeof *models };

/* unk_token is special in most files, and the one special id that plain text may become. */
static bool stands_for_unknown(const struct tokenizer *t, int32_t id)
{
    for (int b = 0; b < 256; b++)
        if (t->vocab.byte_id[b] == id)
            return true;
    return false;
}

static void check_text(const struct tokenizer *t, const char *text, size_t len, bool lossless)
{
    struct token_list ids = {0};
    struct buf whole = {0}, joined = {0};
    struct decode_stream s;
    struct err e = {0};

    if (tokenizer_encode(t, text, len, TOK_SPECIAL_AS_TEXT, &ids, &e) < 0) {
        CHECK(ids.n == 0 && (e.code == ERR_ARG || e.code == ERR_FORMAT));
        goto done;
    }
    decode_stream_init(&s, t, 0);
    for (size_t i = 0; i < ids.n; i++) {
        CHECK(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_vocab_size(t));
        CHECK(!tokenizer_is_special(t, ids.ids[i]) || stands_for_unknown(t, ids.ids[i]));
        decode_stream_push(&s, ids.ids[i], &joined);
    }
    decode_stream_flush(&s, &joined);
    tokenizer_decode(t, ids.ids, ids.n, 0, &whole);
    CHECK(whole.len == joined.len && memcmp(buf_str(&whole), buf_str(&joined), whole.len) == 0);
    CHECK(utf8_check(buf_str(&whole), whole.len) == whole.len);
    if (lossless)
        CHECK(whole.len == len && memcmp(buf_str(&whole), text, len) == 0);
    token_list_reset(&ids);
    CHECK(tokenizer_encode(t, text, len, TOK_ADD_SPECIAL, &ids, &e) == 0);

done:
    token_list_release(&ids);
    buf_release(&whole);
    buf_release(&joined);
}

static void as_file(const char *data, size_t size)
{
    const char *nul = memchr(data, 0, size);
    size_t json_len = nul ? (size_t)(nul - data) : size;
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(data, json_len, NULL, 0, &e);

    if (t && nul)
        check_text(t, nul + 1, size - json_len - 1, false);
    tokenizer_unref(t);
}

static void as_text(const char *data, size_t size, unsigned which)
{
    static struct tokenizer *open_ones[N_MODELS]; /* once for all inputs */
    struct buf text = {0};
    struct err e = {0};

    if (!open_ones[which]) {
        int fd = open(models[which].dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        open_ones[which] = tokenizer_open(fd, &e);
        CHECK(open_ones[which]);
        close(fd);
    }
    utf8_append_lossy(&text, data, size);
    check_text(open_ones[which], buf_str(&text), text.len, models[which].lossless);
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1)
        as_file((const char *)data + 1, size - 1);
    else
        as_text((const char *)data + 1, size - 1, (data[0] >> 1) % N_MODELS);
    return 0;
}
