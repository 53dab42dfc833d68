/* Grammars bound to a vocabulary are found again, and given up in the order of their last use. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/json.h"
#include "generate/grammar.h"
#include "generate/token_trie.h"
#include "service/grammar_cache.h"
#include "text/tokenizer.h"

static struct tokenizer *open_model(const char *path)
{
    struct err e = {0};
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    struct tokenizer *t = tokenizer_open(fd, &e);

    close(fd);
    if (!t)
        fail_msg("%s", e.msg);
    return t;
}

/* A new grammar each time, of the same schema for the same number. */
static struct grammar_bound *bind_constant(struct grammar_cache *c, struct tokenizer *t, int number)
{
    struct err e = {0};
    json_t *schema = json_pack("{s:i}", "const", number);
    struct grammar *g = grammar_schema(schema, &e);
    struct grammar_bound *b = g ? grammar_cache_bind(c, g, t, tokenizer_vocab_size(t), &e) : NULL;

    if (!b)
        fail_msg("%s", e.msg);
    grammar_unref(g);
    json_decref(schema);
    return b;
}

static void what_was_bound_is_found_again(void **state)
{
    struct err e = {0};
    struct grammar_cache *c = grammar_cache_new(&e);
    struct tokenizer *llama = open_model("tests/vectors/models/tiny-llama");
    struct tokenizer *qwen = open_model("tests/vectors/models/tiny-qwen3");
    struct grammar_bound *first = bind_constant(c, llama, 1), *again = bind_constant(c, llama, 1);
    struct grammar_bound *other = bind_constant(c, llama, 2),
                         *elsewhere = bind_constant(c, qwen, 1);

    (void)state;
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, other);
    assert_ptr_not_equal(first, elsewhere);
    assert_ptr_equal(grammar_bound_trie(first), grammar_bound_trie(other));
    assert_ptr_not_equal(grammar_bound_trie(first), grammar_bound_trie(elsewhere));
    grammar_bound_unref(first);
    grammar_bound_unref(again);
    grammar_bound_unref(other);
    grammar_bound_unref(elsewhere);
    grammar_cache_free(c);
    tokenizer_unref(llama);
    tokenizer_unref(qwen);
}

static void one_that_is_given_up_lives_on_with_its_holders(void **state)
{
    struct err e = {0};
    struct grammar_cache *c = grammar_cache_new(&e);
    struct tokenizer *t = open_model("tests/vectors/models/tiny-llama");
    struct grammar_bound *held = bind_constant(c, t, 7), *again;
    struct grammar_run *run;

    (void)state;
    for (int i = 100; i < 200; i++)
        grammar_bound_unref(bind_constant(c, t, i));
    again = bind_constant(c, t, 7);
    assert_ptr_not_equal(held, again);
    run = grammar_run_new(held, &e);
    assert_non_null(run);
    assert_int_equal(grammar_run_accept(run, tokenizer_find(t, "7", 1), &e), 0);
    assert_true(grammar_run_is_over(run));
    grammar_run_free(run);
    grammar_bound_unref(held);
    grammar_bound_unref(again);
    grammar_cache_free(c);
    tokenizer_unref(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_bound_is_found_again),
        cmocka_unit_test(one_that_is_given_up_lives_on_with_its_holders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
