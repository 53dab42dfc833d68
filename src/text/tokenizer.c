#include "text/tokenizer.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_text.h"
#include "text/utf8.h"
#include "text/word_cache.h"

/* ---- lists of ids ---- */

static int list_reserve(struct token_list *l, size_t more, struct err *e)
{
    size_t cap = l->cap ? l->cap : 16;
    int32_t *grown;

    if (l->cap - l->n >= more)
        return 0;
    while (cap - l->n < more)
        if (__builtin_mul_overflow(cap, (size_t)2, &cap))
            return err_nomem(e);
    grown = reallocarray(l->ids, cap, sizeof *grown);
    if (!grown)
        return err_nomem(e);
    l->ids = grown;
    l->cap = cap;
    return 0;
}

int token_list_push(struct token_list *l, int32_t id, struct err *e)
{
    if (list_reserve(l, 1, e) < 0)
        return -1;
    l->ids[l->n++] = id;
    return 0;
}

int token_list_append(struct token_list *l, const int32_t *ids, size_t n, struct err *e)
{
    if (n == 0)
        return 0;
    if (list_reserve(l, n, e) < 0)
        return -1;
    memcpy(l->ids + l->n, ids, n * sizeof *ids);
    l->n += n;
    return 0;
}

void token_list_reset(struct token_list *l)
{
    l->n = 0;
}

void token_list_release(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}

/* ---- open and close ---- */

static struct tokenizer *from_text(const char *json, size_t len, const json_t *config,
                                   struct err *e)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    struct tokenizer_text text = {0};
    int rc;

    if (!t) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&t->refs, 1);
    rc = tokenizer_text_parse(&text, json, len, e);
    if (rc == 0)
        rc = tokenizer_load(t, &text, config, e);
    tokenizer_text_release(&text);
    if (rc < 0) {
        err_wrap(e, "tokenizer.json");
        if (e->code == ERR_ARG) /* the file is wrong, not the caller */
            e->code = ERR_FORMAT;
        tokenizer_unref(t);
        return NULL;
    }
    return t;
}

struct tokenizer *tokenizer_open(int dir_fd, struct err *e)
{
    struct err missing = {0};
    struct tokenizer *t = NULL;
    json_t *config = json_parse_file(dir_fd, "tokenizer_config.json", TOKENIZER_FILE_MAX, &missing);
    struct buf json = {0};

    if (!config && missing.code != ERR_NOT_FOUND) {
        *e = missing;
        return NULL;
    }
    if (text_read_file(dir_fd, "tokenizer.json", TOKENIZER_FILE_MAX, &json, e) == 0)
        t = from_text(buf_str(&json), json.len, config, e);
    buf_release(&json);
    json_decref(config);
    malloc_trim(0); /* the file is several times what is kept of it */
    return t;
}

struct tokenizer *tokenizer_parse(const char *json, size_t json_len, const char *config,
                                  size_t config_len, struct err *e)
{
    json_t *conf = config ? json_parse(config, config_len, e) : NULL;
    struct tokenizer *t = NULL;

    if (conf || !config)
        t = from_text(json, json_len, conf, e);
    json_decref(conf);
    return t;
}

struct tokenizer *tokenizer_ref(struct tokenizer *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void tokenizer_unref(struct tokenizer *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    tokenizer_release(t);
    free(t);
}

/* ---- text to ids ---- */

struct encode {
    const struct tokenizer *t;
    struct token_list *out;
    unsigned flags;
    struct word_cache cache;
    struct pretoken_work pretoken;
    struct bpe_work bpe;
    struct buf normal[2]; /* a normaliser of several steps goes to and fro */
};

static int word_ids(struct encode *c, const char *word, size_t len, struct err *e)
{
    const struct tokenizer *t = c->t;

    if (t->ignore_merges) {
        int32_t id = vocab_find(&t->vocab, word, len);

        if (id >= 0 && (t->vocab.flags[id] & (PIECE_SPELLED | PIECE_SPECIAL)) == PIECE_SPELLED)
            return token_list_push(c->out, id, e);
    }
    return bpe_word(&t->bpe, &t->vocab, word, len, &c->bpe, c->out, e);
}

static int on_word(void *arg, const char *word, size_t len, struct err *e)
{
    struct encode *c = arg;
    struct word_key key;
    struct word_slot *slot;
    size_t before = c->out->n;
    bool hit;

    if (len == 1) { /* nothing to merge */
        int32_t id = c->t->vocab.byte_id[(unsigned char)*word];

        return id < 0 ? 0 : token_list_push(c->out, id, e);
    }
    slot = word_cache_slot(&c->cache, word, len, &key, &hit);
    if (hit)
        return token_list_append(c->out, slot->ids, (size_t)slot->n, e);
    if (word_ids(c, word, len, e) < 0)
        return -1;
    if (slot && c->out->n > before)
        word_cache_fill(slot, &key, c->out->ids + before, c->out->n - before);
    return 0;
}

typedef int part_fn(struct encode *c, const char *text, size_t len, struct err *e);

/* Splits at the set's tokens: their ids go out, what lies between them goes to rest(). */
static int split_added(struct encode *c, const struct added_set *set, const char *text, size_t len,
                       part_fn *rest, struct err *e)
{
    bool as_text = (c->flags & TOK_SPECIAL_AS_TEXT) != 0;
    struct added_match m;
    size_t at = 0;

    while (added_find(set, &c->t->classes, text, len, at, as_text, &m)) {
        if (m.start > at && rest(c, text + at, m.start - at, e) < 0)
            return -1;
        if (token_list_push(c->out, m.id, e) < 0)
            return -1;
        at = m.end;
    }
    return at < len ? rest(c, text + at, len - at, e) : 0;
}

static int encode_plain(struct encode *c, const char *text, size_t len, struct err *e)
{
    return pretoken_words(&c->t->pretoken, &c->t->classes, text, len, &c->pretoken, on_word, c, e);
}

static int encode_raw(struct encode *c, const char *text, size_t len, struct err *e)
{
    for (size_t i = 0; i < c->t->n_forms; i++) {
        struct buf *to = &c->normal[i & 1];

        if (normal_is_plain(c->t->forms[i], text, len))
            continue;
        buf_reset(to);
        if (normal_append(c->t->forms[i], text, len, to, e) < 0)
            return -1;
        text = buf_str(to);
        len = to->len;
    }
    return split_added(c, &c->t->normalized, text, len, encode_plain, e);
}

static int encode_all(struct encode *c, const char *text, size_t len, struct err *e)
{
    bool special = (c->flags & TOK_ADD_SPECIAL) != 0;
    const struct tokenizer *t = c->t;

    if (special && token_list_append(c->out, t->prefix.ids, t->prefix.n, e) < 0)
        return -1;
    if (split_added(c, &t->raw, text, len, encode_raw, e) < 0)
        return -1;
    return special ? token_list_append(c->out, t->suffix.ids, t->suffix.n, e) : 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     struct token_list *out, struct err *e)
{
    struct encode c = {.t = t, .out = out, .flags = flags};
    size_t before = out->n, good = utf8_check(text, len);
    int rc;

    if (good != len)
        return err_set(e, ERR_ARG, "the text is not UTF-8 at byte %zu", good);
    word_cache_init(&c.cache, len);
    rc = encode_all(&c, text, len, e);
    if (rc < 0)
        out->n = before;
    word_cache_release(&c.cache);
    pretoken_work_release(&c.pretoken);
    bpe_work_release(&c.bpe);
    buf_release(&c.normal[0]);
    buf_release(&c.normal[1]);
    return rc;
}

/* ---- ids to text ---- */

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                      struct buf *out)
{
    struct buf bytes = {0};

    for (size_t i = 0; i < n; i++) {
        const char *piece;
        size_t len;

        if ((flags & TOK_SKIP_SPECIAL) && tokenizer_is_special(t, ids[i]))
            continue;
        if (tokenizer_token_bytes(t, ids[i], &piece, &len))
            buf_add(&bytes, piece, len);
    }
    if (bytes.failed)
        out->failed = true;
    else
        utf8_append_lossy(out, buf_str(&bytes), bytes.len);
    buf_release(&bytes);
}

/* ---- what it knows ---- */

int32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->vocab.n;
}

bool tokenizer_token_bytes(const struct tokenizer *t, int32_t id, const char **bytes, size_t *len)
{
    if (!vocab_has(&t->vocab, id))
        return false;
    *bytes = vocab_bytes(&t->vocab, id);
    *len = t->vocab.pieces[id].len;
    return true;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    return vocab_find(&t->vocab, text, len);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return vocab_has(&t->vocab, id) && (t->vocab.flags[id] & PIECE_SPECIAL) != 0;
}

int32_t tokenizer_bos_id(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos_id(const struct tokenizer *t)
{
    return t->eos;
}

int32_t tokenizer_pad_id(const struct tokenizer *t)
{
    return t->pad;
}

bool tokenizer_adds_prefix(const struct tokenizer *t)
{
    return t->prefix.n > 0;
}

unsigned tokenizer_chat_flags(const struct tokenizer *t, const char *text, size_t len)
{
    const char *bos;
    size_t n;

    if (tokenizer_token_bytes(t, t->bos, &bos, &n) && len >= n && memcmp(text, bos, n) == 0)
        return 0;
    return TOK_ADD_SPECIAL;
}
