#include "generate/token_trie.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/tokenizer.h"

/* One token on its way into the trie. */
struct entry {
    const unsigned char *bytes; /* borrowed from the tokenizer, or of `special` */
    uint32_t len;
    int32_t id;
};

struct build {
    struct entry *entries;
    size_t n;
    unsigned char *special; /* the special tokens, each behind its mark */
};

static bool is_spelled(const struct token_trie *t, int32_t id, const char **bytes, size_t *len)
{
    return id >= 0 && id < t->vocab && tokenizer_token_bytes(t->tokenizer, id, bytes, len) &&
           *len > 0 && *len < TRIE_DEPTH_MAX && !memchr(*bytes, TRIE_SPECIAL, *len);
}

size_t token_trie_spell(const struct token_trie *t, int32_t id, unsigned char *out)
{
    const char *bytes;
    size_t len, at = 0;

    if (!is_spelled(t, id, &bytes, &len))
        return 0;
    if (tokenizer_is_special(t->tokenizer, id))
        out[at++] = TRIE_SPECIAL;
    memcpy(out + at, bytes, len);
    return at + len;
}

/* ---- the sorted list ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);

    if (order != 0)
        return order;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static size_t special_bytes(const struct token_trie *t, int32_t n)
{
    size_t total = 0, len;
    const char *bytes;

    for (int32_t id = 0; id < n; id++)
        if (is_spelled(t, id, &bytes, &len) && tokenizer_is_special(t->tokenizer, id))
            total += len + 1;
    return total;
}

static int list_tokens(const struct token_trie *t, struct build *b, struct err *e)
{
    int32_t n = tokenizer_vocab_size(t->tokenizer);
    unsigned char *special;

    n = n < t->vocab ? n : t->vocab;
    b->entries = malloc(((size_t)n + 1) * sizeof *b->entries);
    b->special = special = malloc(special_bytes(t, n) + 1);
    if (!b->entries || !special)
        return err_nomem(e);
    for (int32_t id = 0; id < n; id++) {
        struct entry *to = &b->entries[b->n];
        const char *bytes;
        size_t len;

        if (!is_spelled(t, id, &bytes, &len))
            continue;
        *to = (struct entry){(const unsigned char *)bytes, (uint32_t)len, id};
        if (tokenizer_is_special(t->tokenizer, id)) {
            to->bytes = special;
            to->len = (uint32_t)token_trie_spell(t, id, special);
            special += to->len;
        }
        b->n++;
    }
    qsort(b->entries, b->n, sizeof *b->entries, by_bytes);
    return 0;
}

/* What is printable in ASCII, a new line, and what continues a character must have its token. */
static int check_bytes(const struct build *b, struct err *e)
{
    bool known[256] = {false};

    for (size_t i = 0; i < b->n; i++)
        if (b->entries[i].len == 1)
            known[b->entries[i].bytes[0]] = true;
    for (int c = ' '; c < 0xc0; c++)
        if (!known[c] && c != 0x7f)
            return err_set(e, ERR_FORMAT, "the vocabulary has no token for the byte 0x%02x alone",
                           (unsigned)c);
    return 0;
}

/* ---- nodes ---- */

static uint32_t shared_prefix(const struct entry *a, const struct entry *b)
{
    uint32_t n = 0, most = a->len < b->len ? a->len : b->len;

    while (n < most && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

static uint32_t prefix_before(const struct build *b, size_t i)
{
    return i > 0 ? shared_prefix(&b->entries[i - 1], &b->entries[i]) : 0;
}

static size_t count_nodes(const struct build *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n; i++)
        n += b->entries[i].len - prefix_before(b, i);
    return n;
}

/* Pre-order comes by itself: the list is sorted, and each token adds what its neighbour lacks. */
static void fill_nodes(struct token_trie *t, const struct build *b)
{
    uint32_t open[TRIE_DEPTH_MAX + 1]; /* the node at each depth of the last token */
    uint32_t depth = 0;

    for (size_t i = 0; i < b->n; i++) {
        const struct entry *token = &b->entries[i];
        uint32_t shared = prefix_before(b, i);

        while (depth > shared)
            t->nodes[open[depth--]].skip = t->n_nodes;
        while (depth < token->len) {
            open[depth + 1] = t->n_nodes;
            t->nodes[t->n_nodes++] = (struct trie_node){
                .token = t->n_ids, .byte = token->bytes[depth], .depth = (uint8_t)(depth + 1)};
            depth++;
        }
        t->ids[t->n_ids++] = token->id;
    }
    while (depth > 0)
        t->nodes[open[depth--]].skip = t->n_nodes;
    t->nodes[t->n_nodes] = (struct trie_node){.skip = t->n_nodes, .token = t->n_ids};
}

static int build(struct token_trie *t, struct build *b, struct err *e)
{
    if (list_tokens(t, b, e) < 0 || check_bytes(b, e) < 0)
        return -1;
    t->nodes = malloc((count_nodes(b) + 1) * sizeof *t->nodes);
    t->ids = malloc((b->n + 1) * sizeof *t->ids);
    if (!t->nodes || !t->ids)
        return err_nomem(e);
    fill_nodes(t, b);
    return 0;
}

struct token_trie *token_trie_new(struct tokenizer *tokenizer, int vocab, struct err *e)
{
    struct token_trie *t = calloc(1, sizeof *t);
    struct build b = {0};
    int rc;

    if (!t) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&t->refs, 1);
    t->tokenizer = tokenizer_ref(tokenizer);
    t->vocab = vocab;
    rc = build(t, &b, e);
    free(b.entries);
    free(b.special);
    if (rc < 0) {
        token_trie_unref(t);
        return NULL;
    }
    return t;
}

struct token_trie *token_trie_ref(struct token_trie *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void token_trie_unref(struct token_trie *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    tokenizer_unref(t->tokenizer);
    free(t->nodes);
    free(t->ids);
    free(t);
}
