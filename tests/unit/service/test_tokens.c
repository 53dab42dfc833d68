/* Tokens: what is accepted, who is found, and that no message holds a token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "service/tokens.h"

#define A "aaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbb"

static void a_token_is_found_with_its_role_and_identity(void **state)
{
    struct err e = {0};
    struct tokens *t = tokens_parse(" trainer:forge:" A " , operator:ops.1:" B, &e);

    (void)state;
    assert_non_null(t);
    assert_false(tokens_empty(t));
    assert_string_equal(tokens_find(t, "Bearer " A)->identity, "forge");
    assert_int_equal(tokens_find(t, "Bearer " A)->role, ROLE_TRAINER);
    assert_string_equal(tokens_find(t, "bearer  " B)->identity, "ops.1");
    assert_int_equal(tokens_find(t, "Bearer " B)->role, ROLE_OPERATOR);
    tokens_free(t);
}

static void anything_else_is_nobody(void **state)
{
    static const char *const headers[] = {NULL,
                                          "",
                                          A,
                                          "Basic " A,
                                          "Bearer",
                                          "Bearer ",
                                          "Bearer " A "a",
                                          "Bearer aaaaaaaaaaaaaaa",
                                          "Bearer " A " "};
    struct err e = {0};
    struct tokens *t = tokens_parse("trainer:forge:" A, &e);

    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        assert_null(tokens_find(t, headers[i]));
    tokens_free(t);
}

static void a_key_has_an_identity_and_no_role(void **state)
{
    struct err e = {0};
    struct tokens *t = tokens_parse_keys("team:sk-a:b,ops.1:sk-two", &e);

    (void)state;
    assert_non_null(t);
    assert_string_equal(tokens_find_key(t, "sk-a:b")->identity, "team");
    assert_string_equal(tokens_find_key(t, "sk-two")->identity, "ops.1");
    assert_string_equal(tokens_find(t, "Bearer sk-two")->identity, "ops.1");
    assert_null(tokens_find_key(t, "sk-a"));
    assert_null(tokens_find_key(t, ""));
    assert_null(tokens_find_key(t, NULL));
    tokens_free(t);
}

static void a_bad_key_is_refused_by_its_number(void **state)
{
    static const char *const bad[] = {"sk-lonely", "team:abc", ":sk-key", "te am:sk-key",
                                      "team:a b c"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        char list[64];

        snprintf(list, sizeof list, "ok:good-key,%s", bad[i]);
        assert_null(tokens_parse_keys(list, &e));
        assert_int_equal(e.code, ERR_ARG);
        assert_non_null(strstr(e.msg, "entry 2"));
    }
}

static void an_empty_list_has_no_tokens(void **state)
{
    struct err e = {0};
    struct tokens *t = tokens_parse(NULL, &e);

    (void)state;
    assert_true(tokens_empty(t));
    assert_null(tokens_find(t, "Bearer "));
    tokens_free(t);
}

static void a_bad_entry_is_named_by_number_and_never_shown(void **state)
{
    static const struct {
        const char *list, *says;
    } cases[] = {
        {"trainer:forge", "entry 1"},
        {"trainer:forge:" A ",admin:x:" B, "entry 2: the role"},
        {"trainer::" A, "the identity"},
        {"trainer:a b:" A, "the identity"},
        {"trainer:forge:short-secret", "16 to 256"},
        {"trainer:forge:" A ",operator:ops:" A, "entry 2: this token is given twice"},
        {"trainer:forge:" A ",,operator:ops:" B, "entry 2"},
        {"Trainer:forge:" A, "the role"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};

        assert_null(tokens_parse(cases[i].list, &e));
        assert_int_equal(e.code, ERR_ARG);
        assert_non_null(strstr(e.msg, cases[i].says));
        assert_null(strstr(e.msg, A));
        assert_null(strstr(e.msg, "short-secret"));
    }
}

static void a_file_holds_one_entry_a_line_and_comments(void **state)
{
    static const char lines[] = "# who may write\n\n  trainer:forge:" A "\noperator:ops:" B "\n";
    char path[] = "/tmp/cairn-tokens-XXXXXX";
    struct err e = {0};
    struct tokens *t;
    int fd = mkstemp(path);

    (void)state;
    assert_int_equal(write(fd, lines, sizeof lines - 1), sizeof lines - 1);
    t = tokens_read(path, &e);
    assert_non_null(t);
    assert_string_equal(tokens_find(t, "Bearer " A)->identity, "forge");
    assert_string_equal(tokens_find(t, "Bearer " B)->identity, "ops");
    tokens_free(t);
    close(fd);
    unlink(path);
    assert_null(tokens_read(path, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_found_with_its_role_and_identity),
        cmocka_unit_test(anything_else_is_nobody),
        cmocka_unit_test(a_key_has_an_identity_and_no_role),
        cmocka_unit_test(a_bad_key_is_refused_by_its_number),
        cmocka_unit_test(an_empty_list_has_no_tokens),
        cmocka_unit_test(a_bad_entry_is_named_by_number_and_never_shown),
        cmocka_unit_test(a_file_holds_one_entry_a_line_and_comments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
