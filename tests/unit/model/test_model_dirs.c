/* Every row of model_dirs.tsv: may this directory be loaded as a checkpoint, and if not, why. */
#include "fixture.h"

#include "../tensor/tsv.h"

#define CASES "tests/vectors/cases/"

static int open_dir(struct model_dir *md, struct model_config *c, const char *dir, bool f32_ok,
                    const char **reason, struct err *e)
{
    struct model_dir_rules rules = {.f32_ok = f32_ok};
    char path[256];
    int fd, rc;

    snprintf(path, sizeof path, CASES "%s", dir);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        fail_msg("%s is missing", path);
    rc = model_open_dir(fd, &rules, md, c, reason, e);
    close(fd);
    return rc;
}

static void check_row(char *cell[TSV_CELLS], void *arg)
{
    struct model_dir md = {0};
    struct model_config c;
    struct err e = {0};
    const char *reason = "(none)";
    int rc = open_dir(&md, &c, cell[0], false, &reason, &e);

    (void)arg;
    if (rc == 0)
        model_dir_close(&md);
    if (strcmp(cell[1], "load") == 0) {
        if (rc != 0)
            fail_msg("%s was refused: %s: %s", cell[0], reason, e.msg);
        return;
    }
    if (rc == 0)
        fail_msg("%s was accepted (%s)", cell[0], cell[3]);
    if (strcmp(reason, cell[1] + strlen("refuse:")) != 0)
        fail_msg("%s: %s, expected %s: %s", cell[0], reason, cell[1], e.msg);
    assert_true(strlen(e.msg) > 10);
}

static void every_directory_of_the_table_gets_its_verdict(void **state)
{
    (void)state;
    assert_int_equal(tsv_each(CASES "model_dirs.tsv", check_row, NULL), 41);
}

static void refuse(const char *dir, const char *word)
{
    struct model_dir md = {0};
    struct model_config c;
    struct err e = {0};
    const char *reason = "";

    assert_int_equal(open_dir(&md, &c, dir, false, &reason, &e), -1);
    if (!strstr(e.msg, word))
        fail_msg("%s: \"%s\" does not name %s", dir, e.msg, word);
}

static void refusals_name_what_is_wrong(void **state)
{
    (void)state;
    refuse("dirs/layer_tensor_missing", "model.layers.0.self_attn.k_proj.weight");
    refuse("dirs/o_proj_transposed_kv", "model.layers.0.self_attn.k_proj.weight");
    refuse("dirs/embedding_rows_padded", "model.embed_tokens.weight");
    refuse("dirs/untied_head_missing", "lm_head.weight");
    refuse("dirs/rope_unknown_scaling", "rope");
}

static void a_base_model_may_be_f32(void **state)
{
    struct model_dir md = {0};
    struct model_config c;
    struct err e = {0};
    const char *reason = "";

    (void)state;
    must(open_dir(&md, &c, "dirs/all_f32", true, &reason, &e), &e);
    model_dir_close(&md);
}

/* Logits of a few fixed tokens; the caller frees. */
static float *logits_of(const char *dir, struct model_config *config)
{
    static const int32_t ids[] = {5, 250, 17, 99, 3};
    struct fixture fx;
    char path[256];
    float *hidden, *full;
    struct logits_row row = {.target = -1};

    snprintf(path, sizeof path, CASES "%s", dir);
    fixture_load(&fx, path);
    fixture_start(&fx, kernels_by_name("ref"), 1, 4 << 20);
    hidden = run_prompt(&fx, ids, 5);
    full = malloc((size_t)fx.config.vocab * sizeof *full);
    row.full = full;
    logits_run(fx.logits, fx.model, hidden + 4 * fx.config.hidden, 1, &row);
    *config = fx.config;
    free(hidden);
    fixture_close(&fx);
    return full;
}

static void compare(const char *a, const char *b, bool equal)
{
    struct model_config ca, cb;
    float *x = logits_of(a, &ca), *y = logits_of(b, &cb);
    bool same = memcmp(x, y, (size_t)ca.vocab * sizeof *x) == 0;

    assert_int_equal(ca.vocab, cb.vocab);
    if (same != equal)
        fail_msg("%s and %s give %s logits", a, b, same ? "equal" : "different");
    free(x);
    free(y);
}

static void both_spellings_of_theta_give_equal_logits(void **state)
{
    struct model_config c;

    (void)state;
    compare("dirs/rope_only_new_key", "dirs/rope_only_old_key", true);
    free(logits_of("dirs/rope_only_new_key", &c));
    assert_true(c.rope.theta == 50000);
}

static void a_tied_head_is_the_embedding_and_an_untied_one_is_not(void **state)
{
    (void)state;
    compare("dirs/tied_no_head", "dirs/tied_head_equal", true);
    compare("dirs/tied_no_head", "dirs/untied_head", false);
}

static void shards_and_strays_do_not_change_the_values(void **state)
{
    (void)state;
    compare("dirs/shards_ok", "dirs/stray_consolidated", true);
    compare("dirs/shards_ok", "dirs/index_wrong_total", true);
}

static void end_tokens_of_both_files_count(void **state)
{
    struct model_config c;

    (void)state;
    free(logits_of("dirs/eos_list_in_generation_config", &c));
    assert_true(c.n_eos >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_directory_of_the_table_gets_its_verdict),
        cmocka_unit_test(refusals_name_what_is_wrong),
        cmocka_unit_test(a_base_model_may_be_f32),
        cmocka_unit_test(both_spellings_of_theta_give_equal_logits),
        cmocka_unit_test(a_tied_head_is_the_embedding_and_an_untied_one_is_not),
        cmocka_unit_test(shards_and_strays_do_not_change_the_values),
        cmocka_unit_test(end_tokens_of_both_files_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
