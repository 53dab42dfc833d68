/* Merging by array, by heap and by plain definition give the same pieces; caches and added tokens
 * at their edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/char_class.h"
#include "text/tokenizer.h"
#include "text/vocab.h"
#include "text/word_cache.h"

enum { LETTERS = 4, PIECES = 60, WORD_MAX = 300 };

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* A random vocabulary over a, b, c, d: each further piece joins two earlier ones. */
struct made {
    struct vocab vocab;
    struct bpe bpe;
    int32_t rank[PIECES][PIECES]; /* the definition: -1 none */
    int32_t joined[PIECES][PIECES];
};

static void make_vocabulary(struct made *m, uint64_t *x)
{
    struct err e = {0};
    char text[PIECES][WORD_MAX + 1];
    int32_t n = LETTERS, rank = 0;

    memset(m->rank, 0xff, sizeof m->rank);
    assert_int_equal(vocab_init(&m->vocab, PIECES - 1, &e), 0);
    assert_int_equal(bpe_init(&m->bpe, PIECES, &e), 0);
    for (int i = 0; i < LETTERS; i++) {
        text[i][0] = (char)('a' + i);
        text[i][1] = '\0';
        assert_int_equal(vocab_put_spelled(&m->vocab, i, text[i], 1, &e), 0);
    }
    while (n < PIECES) {
        uint32_t l = (uint32_t)(next_random(x) % (uint32_t)n),
                 r = (uint32_t)(next_random(x) % (uint32_t)n);
        size_t len = strlen(text[l]) + strlen(text[r]);

        if (m->rank[l][r] >= 0 || len > 12)
            continue;
        memcpy(text[n], text[l], strlen(text[l]));
        memcpy(text[n] + strlen(text[l]), text[r], strlen(text[r]) + 1);
        assert_int_equal(vocab_put_spelled(&m->vocab, n, text[n], len, &e), 0);
        bpe_add(&m->bpe, (int32_t)l, (int32_t)r, n);
        m->rank[l][r] = rank++;
        m->joined[l][r] = n++;
    }
    assert_int_equal(vocab_index(&m->vocab, &e), 0);
}

/* The definition: the lowest rank of all neighbours, leftmost first, until there is none. */
static size_t merge_plainly(const struct made *m, int32_t *ids, size_t n)
{
    for (;;) {
        int32_t best = INT32_MAX;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            int32_t rank = m->rank[ids[i]][ids[i + 1]];

            if (rank >= 0 && rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == INT32_MAX)
            return n;
        ids[at] = m->joined[ids[at]][ids[at + 1]];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void compare_word(const struct made *m, const char *word, size_t len, struct bpe_work *w)
{
    struct token_list got = {0};
    struct err e = {0};
    int32_t want[WORD_MAX];
    size_t n;

    for (size_t i = 0; i < len; i++)
        want[i] = word[i] - 'a';
    n = merge_plainly(m, want, len);
    assert_int_equal(bpe_word(&m->bpe, &m->vocab, word, len, w, &got, &e), 0);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.ids, want, n * sizeof *want);
    token_list_release(&got);
}

static void words_of_every_length_merge_like_the_definition(void **state)
{
    struct bpe_work w = {0};
    uint64_t x = 88172645463325252u;
    struct made m;

    (void)state;
    for (int round = 0; round < 20; round++) {
        make_vocabulary(&m, &x);
        for (size_t len = 1; len <= WORD_MAX; len += 1 + len / 20) {
            char word[WORD_MAX];

            for (size_t i = 0; i < len; i++)
                word[i] = (char)('a' + next_random(&x) % LETTERS);
            compare_word(&m, word, len, &w);
        }
        bpe_release(&m.bpe);
        vocab_release(&m.vocab);
    }
    bpe_work_release(&w);
}

static void bytes_without_a_piece_vanish_before_merging(void **state)
{
    struct err e = {0};
    struct vocab v;
    struct bpe b;
    struct bpe_work w = {0};
    struct token_list got = {0};
    char word[100];

    (void)state;
    assert_int_equal(vocab_init(&v, 2, &e), 0);
    assert_int_equal(vocab_put_spelled(&v, 0, "a", 1, &e), 0);
    assert_int_equal(vocab_put_spelled(&v, 1, "b", 1, &e), 0);
    assert_int_equal(vocab_put_spelled(&v, 2, "ab", 2, &e), 0);
    assert_int_equal(vocab_index(&v, &e), 0);
    assert_int_equal(bpe_init(&b, 1, &e), 0);
    bpe_add(&b, 0, 1, 2);
    assert_int_equal(bpe_word(&b, &v, "axb", 3, &w, &got, &e), 0);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.ids[0], 2);
    memset(word, 'x', sizeof word); /* a long word of nothing */
    assert_int_equal(bpe_word(&b, &v, word, sizeof word, &w, &got, &e), 0);
    assert_int_equal(got.n, 1);
    word[3] = 'a';
    word[90] = 'b';
    assert_int_equal(bpe_word(&b, &v, word, sizeof word, &w, &got, &e), 0);
    assert_int_equal(got.n, 2);
    token_list_release(&got);
    bpe_work_release(&w);
    bpe_release(&b);
    vocab_release(&v);
}

/* A million letters in one word: n log n, or this test would not end. */
static void a_word_of_a_million_bytes_is_merged(void **state)
{
    struct err e = {0};
    struct vocab v;
    struct bpe b;
    struct bpe_work w = {0};
    struct token_list got = {0};
    enum { N = 1 << 20 };
    char *word = malloc(N);

    (void)state;
    assert_non_null(word);
    memset(word, 'a', N);
    assert_int_equal(vocab_init(&v, 2, &e), 0);
    assert_int_equal(vocab_put_spelled(&v, 0, "a", 1, &e), 0);
    assert_int_equal(vocab_put_spelled(&v, 1, "aa", 2, &e), 0);
    assert_int_equal(vocab_put_spelled(&v, 2, "aaaa", 4, &e), 0);
    assert_int_equal(vocab_index(&v, &e), 0);
    assert_int_equal(bpe_init(&b, 2, &e), 0);
    bpe_add(&b, 0, 0, 1);
    bpe_add(&b, 1, 1, 2);
    assert_int_equal(bpe_word(&b, &v, word, N, &w, &got, &e), 0);
    assert_int_equal(got.n, N / 4);
    free(word);
    token_list_release(&got);
    bpe_work_release(&w);
    bpe_release(&b);
    vocab_release(&v);
}

static void a_cache_holds_words_up_to_its_limit_and_tells_them_apart(void **state)
{
    static const char text[] = "abcdefghijklmnopqrstuvwxyz";
    struct word_cache c;
    struct word_key key;
    bool hit;
    struct word_slot *s;

    (void)state;
    word_cache_init(&c, 1 << 20);
    assert_non_null(c.slots);
    for (size_t len = 2; len <= WORD_CACHE_BYTES; len++) {
        int32_t id = (int32_t)len;

        s = word_cache_slot(&c, text, len, &key, &hit);
        assert_non_null(s);
        assert_false(hit);
        word_cache_fill(s, &key, &id, 1);
        s = word_cache_slot(&c, text, len, &key, &hit);
        assert_true(hit && s->n == 1 && s->ids[0] == id);
        word_cache_slot(&c, text + 1, len, &key, &hit);
        assert_false(hit);
    }
    assert_null(word_cache_slot(&c, text, WORD_CACHE_BYTES + 1, &key, &hit));
    word_cache_release(&c);
}

static void put_token(struct added_set *s, const char *text, int32_t id, bool special)
{
    struct added_token t = {
        .text = (char *)(uintptr_t)text, .len = strlen(text), .id = id, .special = special};
    struct err e = {0};

    assert_int_equal(added_put(s, &t, &e), 0);
}

static void a_longer_special_token_gives_way_to_a_shorter_plain_one_when_read_as_text(void **state)
{
    struct added_set s = {0};
    struct char_classes cc;
    struct added_match m = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(char_classes_init(&cc, &e), 0);
    put_token(&s, "<a>", 1, true);
    put_token(&s, "<a", 2, false);
    put_token(&s, "\xc3\xa9", 3, false);
    added_seal(&s);
    assert_true(added_find(&s, &cc, "x<a>", 4, 0, false, &m));
    assert_true(m.id == 1 && m.start == 1 && m.end == 4);
    assert_true(added_find(&s, &cc, "x<a>", 4, 0, true, &m));
    assert_true(m.id == 2 && m.start == 1 && m.end == 3);
    assert_true(added_find(&s, &cc, "<a<a \xc3\xa9", 7, 4, false, &m));
    assert_true(m.id == 3 && m.start == 5 && m.end == 7);
    assert_false(added_find(&s, &cc, "<", 1, 0, false, &m));
    added_release(&s);
    char_classes_release(&cc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_every_length_merge_like_the_definition),
        cmocka_unit_test(bytes_without_a_piece_vanish_before_merging),
        cmocka_unit_test(a_word_of_a_million_bytes_is_merged),
        cmocka_unit_test(a_cache_holds_words_up_to_its_limit_and_tells_them_apart),
        cmocka_unit_test(a_longer_special_token_gives_way_to_a_shorter_plain_one_when_read_as_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
