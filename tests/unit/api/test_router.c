#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/router.h"

static void nothing(struct api_call *call)
{
    (void)call;
}

static const struct api_route table[] = {
    {"GET", "/api/models", nothing, BODY_NONE, {0}},
    {"POST", "/api/models", nothing, BODY_SMALL, {0}},
    {"GET", "/api/models/all", nothing, BODY_NONE, {0}},
    {"GET", "/api/models/{id}", nothing, BODY_NONE, {0}},
    {"DELETE", "/api/models/{id}", nothing, BODY_NONE, {0}},
    {"POST", "/api/models/{id}/load", nothing, BODY_SMALL, {0}},
    {"GET", "/v1/models/{rest...}", nothing, BODY_NONE, {0}},
    {"POST", "/v1/completions", nothing, BODY_LARGE, {0}},
};
enum { ROWS = sizeof table / sizeof *table };

static struct api_match match(const char *method, const char *path)
{
    struct api_match m;

    api_match_route(table, ROWS, method, path, &m);
    return m;
}

static void a_literal_row_wins_over_a_pattern(void **state)
{
    (void)state;
    assert_ptr_equal(match("GET", "/api/models/all").route, &table[2]);
    assert_ptr_equal(match("GET", "/api/models/7").route, &table[3]);
}

static void an_id_is_a_positive_decimal_number(void **state)
{
    static const char *const bad[] = {"0",  "-1", "01", "1x", "+1", "1.0", "1234567890123456789",
                                      "%31"};

    (void)state;
    assert_int_equal(match("GET", "/api/models/123456789012345678").id, 123456789012345678);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[64];
        snprintf(path, sizeof path, "/api/models/%s", bad[i]);
        assert_int_equal(match("GET", path).id, -1);
        assert_non_null(match("GET", path).route);
    }
}

static void a_pattern_in_the_middle_takes_one_segment(void **state)
{
    (void)state;
    assert_ptr_equal(match("POST", "/api/models/5/load").route, &table[5]);
    assert_null(match("POST", "/api/models/5/6/load").route);
    assert_int_equal(match("POST", "/api/models//load").id, -1);
}

static void the_rest_is_decoded_once_and_may_hold_slashes(void **state)
{
    struct api_match m = match("GET", "/v1/models/org/name%3Arun%2Fx%2525");

    (void)state;
    assert_string_equal(m.rest, "org/name:run/x%25");
    free(m.rest);
    m = match("GET", "/v1/models/a%00b");
    assert_string_equal(m.rest, "");
    free(m.rest);
    assert_null(match("GET", "/v1/models/").route);
}

static void a_wrong_method_names_those_that_are_right(void **state)
{
    (void)state;
    assert_string_equal(match("PUT", "/api/models").allow, "GET, POST");
    assert_string_equal(match("PATCH", "/api/models/7").allow, "GET, DELETE");
    assert_string_equal(match("GET", "/nope").allow, "");
    assert_string_equal(match("POST", "/api/models/preview").allow, "");
}

static void head_goes_where_get_goes(void **state)
{
    (void)state;
    assert_ptr_equal(match("HEAD", "/api/models").route, &table[0]);
    assert_null(match("HEAD", "/v1/completions").route);
}

static void paths_that_only_look_alike_do_not_match(void **state)
{
    static const char *const bad[] = {"/api/model",
                                      "/api/models/",
                                      "//api/models",
                                      "/api//models",
                                      "/API/models",
                                      "/api/models/1/",
                                      "/v1/completions/",
                                      "/v1/completionsx",
                                      "*",
                                      "",
                                      "/"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct api_match m = match("POST", bad[i]);
        assert_null(m.route);
    }
}

static void the_products_table_has_no_two_rows_for_one_request(void **state)
{
    size_t n;
    const struct api_route *routes = api_routes(&n);

    (void)state;
    assert_true(n >= 4);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            assert_false(strcmp(routes[i].method, routes[k].method) == 0 &&
                         strcmp(routes[i].pattern, routes[k].pattern) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_literal_row_wins_over_a_pattern),
        cmocka_unit_test(an_id_is_a_positive_decimal_number),
        cmocka_unit_test(a_pattern_in_the_middle_takes_one_segment),
        cmocka_unit_test(the_rest_is_decoded_once_and_may_hold_slashes),
        cmocka_unit_test(a_wrong_method_names_those_that_are_right),
        cmocka_unit_test(head_goes_where_get_goes),
        cmocka_unit_test(paths_that_only_look_alike_do_not_match),
        cmocka_unit_test(the_products_table_has_no_two_rows_for_one_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
