/* Every row of model_dirs.tsv that files and config.json's first keys decide. */
#include "tsv.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "tensor/model_dir.h"

#define CASES "tests/vectors/cases/"

static int open_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);

    if (fd < 0)
        fail_msg("%s is missing", path);
    return fd;
}

/* Reasons that need the shapes and keys of a family: the model room's rows. */
static bool model_room(const char *outcome, const char *dir)
{
    return strcmp(outcome, "refuse:shape") == 0 || strcmp(outcome, "refuse:unsupported") == 0 ||
           strcmp(dir, "dirs/layer_tensor_missing") == 0 ||
           strcmp(dir, "dirs/untied_head_missing") == 0;
}

static enum model_dir_reason check(const char *path, unsigned flags, struct err *e)
{
    struct model_dir md = {0};
    enum model_dir_reason why;
    int fd = open_dir(path);
    int rc = model_dir_open(&md, fd, &why, e);

    if (rc == 0)
        rc = model_dir_check_config(&md, fd, flags, &why, e);
    assert_int_equal(rc, why == MD_OK ? 0 : -1);
    model_dir_close(&md);
    close(fd);
    return why;
}

static void check_row(char *cell[TSV_CELLS], void *arg)
{
    const char *expected = strncmp(cell[1], "refuse:", 7) == 0 ? cell[1] + 7 : "ok";
    struct err e = {0};
    char path[256];
    enum model_dir_reason why;

    (void)arg;
    if (model_room(cell[1], cell[0]))
        expected = "ok";
    snprintf(path, sizeof path, CASES "%s", cell[0]);
    why = check(path, 0, &e);
    if (strcmp(model_dir_reason_word(why), expected) != 0)
        fail_msg("%s: %s, not %s (%s)", cell[0], model_dir_reason_word(why), expected, e.msg);
    if (why != MD_OK)
        assert_true(strlen(e.msg) > 10);
}

static void every_directory_of_the_table_gets_its_reason(void **state)
{
    (void)state;
    assert_int_equal(tsv_each(CASES "model_dirs.tsv", check_row, NULL), 41);
}

static void message_names(const char *dir, const char *word)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof path, CASES "dirs/%s", dir);
    assert_int_not_equal(check(path, 0, &e), MD_OK);
    if (!strstr(e.msg, word))
        fail_msg("%s: \"%s\" does not name %s", dir, e.msg, word);
}

static void the_message_names_the_file_or_the_tensor(void **state)
{
    (void)state;
    message_names("shard_missing", "model-00002-of-00002.safetensors");
    message_names("shard_cut", "model-00002-of-00002.safetensors");
    message_names("tensor_in_two_shards", "model.embed_tokens.weight");
    message_names("index_leads_out", "..");
    message_names("f16_dtype_absent", "float16");
    message_names("all_f32", "F32");
    message_names("one_norm_in_f32", "F32 x 1");
}

static void a_base_model_in_f32_passes_when_asked_for(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(check(CASES "dirs/all_f32", 0, &e), MD_DTYPE);
    assert_int_equal(check(CASES "dirs/all_f32", MD_F32_OK, &e), MD_OK);
}

static void a_pipe_in_place_of_the_weights_never_blocks(void **state)
{
    char dir[] = "/tmp/cairn-test-XXXXXX", fifo[64];
    struct err e = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(fifo, sizeof fifo, "%s/model.safetensors", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(check(dir, 0, &e), MD_HEADER);
    unlink(fifo);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_directory_of_the_table_gets_its_reason),
        cmocka_unit_test(the_message_names_the_file_or_the_tensor),
        cmocka_unit_test(a_base_model_in_f32_passes_when_asked_for),
        cmocka_unit_test(a_pipe_in_place_of_the_weights_never_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
