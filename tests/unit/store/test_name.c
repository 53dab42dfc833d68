/* Checkpoint names and directory names. */
#include "store/scratch.h"

#include "base/buf.h"
#include "store/name.h"

static bool parses(const char *text, struct ckpt_name *n)
{
    return ckpt_name_parse(text, strlen(text), n);
}

static void a_name_is_read_from_the_right(void **state)
{
    struct ckpt_name n;

    (void)state;
    assert_true(parses("LiquidAI/LFM2-1.2B:house-sql:step-500", &n));
    assert_int_equal(n.base_len, strlen("LiquidAI/LFM2-1.2B"));
    assert_string_equal(n.run_id, "house-sql");
    assert_int_equal(n.step, 500);
    assert_true(parses("a:b:c:run:step-0", &n));
    assert_int_equal(n.base_len, strlen("a:b:c"));
    assert_string_equal(n.run_id, "run");
    assert_int_equal(n.step, 0);
}

static void what_is_no_name_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "step-1",
        "run:step-1",
        ":run:step-1",
        "base::step-1",
        "base:run:step-",
        "base:run:step-01",
        "base:run:step-1x",
        "base:run:step--1",
        "base:run:step-9007199254740992",
        "base:run:step-99999999999999999999",
        "base:run:Step-1",
        "base:..:step-1",
        "base:a/b:step-1",
        "base:run:step-1:",
    };
    struct ckpt_name n;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parses(bad[i], &n))
            fail_msg("accepted: %s", bad[i]);
    assert_false(ckpt_name_parse("base:run\0x:step-1", 17, &n));
    assert_true(parses("base:run:step-9007199254740991", &n));
    assert_int_equal(n.step, CKPT_STEP_MAX);
}

static void a_written_name_reads_back(void **state)
{
    struct buf b = {0};
    struct ckpt_name n;

    (void)state;
    ckpt_name_write(&b, "org/m", "r1", 999999);
    assert_string_equal(buf_str(&b), "org/m:r1:step-999999");
    assert_true(ckpt_name_parse(b.data, b.len, &n));
    assert_int_equal(n.step, 999999);
    buf_release(&b);
}

static void directories_pad_to_six_digits_and_grow_past_them(void **state)
{
    static const struct {
        int64_t step;
        const char *dir;
    } rows[] = {
        {0, "step-000000"},        {50, "step-000050"},
        {900, "step-000900"},      {999999, "step-999999"},
        {1000000, "step-1000000"}, {CKPT_STEP_MAX, "step-9007199254740991"},
    };
    char dir[CKPT_STEP_DIR];
    int64_t step;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ckpt_step_dir(dir, rows[i].step);
        assert_string_equal(dir, rows[i].dir);
        assert_true(ckpt_step_dir_parse(dir, &step));
        assert_int_equal(step, rows[i].step);
    }
}

static void other_spellings_of_a_directory_are_refused(void **state)
{
    static const char *const bad[] = {
        "step-",
        "step-1",
        "step-00001",
        "step-0000500",
        "step-0000000",
        "step-00000x",
        "step-+00001",
        "Step-000001",
        "latest",
        "step-000001 ",
        "step-01000000",
        "step-9007199254740992",
        "",
    };
    int64_t step;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (ckpt_step_dir_parse(bad[i], &step))
            fail_msg("accepted: %s", bad[i]);
}

static void a_saved_run_id_keeps_to_the_pattern(void **state)
{
    char longest[130];

    (void)state;
    memset(longest, 'r', sizeof longest);
    assert_true(ckpt_run_id_may_save(longest, 128));
    assert_false(ckpt_run_id_may_save(longest, 129));
    assert_true(ckpt_run_id_may_save("a", 1));
    assert_true(ckpt_run_id_may_save("9._-", 4));
    assert_false(ckpt_run_id_may_save("", 0));
    assert_false(ckpt_run_id_may_save(".tmp-x", 6));
    assert_false(ckpt_run_id_may_save("-x", 2));
    assert_false(ckpt_run_id_may_save("../r1", 5));
    assert_false(ckpt_run_id_may_save("a b", 3));
    assert_false(ckpt_run_id_may_save("a\0b", 3));
    assert_false(ckpt_run_id_may_save("\xc3\xa4", 2));
    assert_false(ckpt_run_id_may_save("a\n", 2));
}

static void a_loaded_run_id_need_only_be_a_path_segment(void **state)
{
    char longest[256];

    (void)state;
    memset(longest, 'r', sizeof longest);
    assert_true(ckpt_run_id_may_load(longest, 255));
    assert_false(ckpt_run_id_may_load(longest, 256));
    assert_true(ckpt_run_id_may_load("with space", 10));
    assert_true(ckpt_run_id_may_load("...", 3));
    assert_false(ckpt_run_id_may_load("", 0));
    assert_false(ckpt_run_id_may_load(".", 1));
    assert_false(ckpt_run_id_may_load("..", 2));
    assert_false(ckpt_run_id_may_load("a/b", 3));
    assert_false(ckpt_run_id_may_load("a:b", 3));
    assert_false(ckpt_run_id_may_load("a\0b", 3));
}

static void length_is_counted_in_characters(void **state)
{
    (void)state;
    assert_int_equal(ckpt_name_chars(""), 0);
    assert_int_equal(ckpt_name_chars("abc"), 3);
    assert_int_equal(ckpt_name_chars("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_read_from_the_right),
        cmocka_unit_test(what_is_no_name_is_refused),
        cmocka_unit_test(a_written_name_reads_back),
        cmocka_unit_test(directories_pad_to_six_digits_and_grow_past_them),
        cmocka_unit_test(other_spellings_of_a_directory_are_refused),
        cmocka_unit_test(a_saved_run_id_keeps_to_the_pattern),
        cmocka_unit_test(a_loaded_run_id_need_only_be_a_path_segment),
        cmocka_unit_test(length_is_counted_in_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
