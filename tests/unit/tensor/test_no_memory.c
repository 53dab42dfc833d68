/* Every allocation of the readers fails once: each time one clean error, nothing leaked, nothing
 * left behind. The program is linked with malloc and its siblings wrapped (Makefile). */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "no_memory.h"
#include "tensor/gguf.h"
#include "tensor/gguf_import.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

typedef int attempt_fn(struct err *e);

/* Lets the first, the second, ... allocation fail until the attempt gets through; returns how many
 * there were. */
static long walk(attempt_fn *attempt)
{
    for (long n = 0;; n++) {
        struct err e = {0};
        int rc;

        until_failure = n;
        rc = attempt(&e);
        if (until_failure >= 0 || rc == 0) { /* it needed fewer, or did without one */
            bool reached = until_failure < 0;

            until_failure = -1;
            assert_int_equal(rc, 0);
            if (!reached)
                return n;
            continue;
        }
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_NOMEM);
        assert_true(n < 100000);
    }
}

static int read_index(struct err *e)
{
    int fd = open("tests/vectors/cases/st/ok_metadata_many.safetensors", O_RDONLY);
    struct st_index ix = {0};
    int rc = st_index_read(&ix, fd, e);

    st_index_release(&ix);
    close(fd);
    return rc;
}

static int read_shards(struct err *e)
{
    int fd = open("tests/vectors/cases/dirs/shards_ok", O_RDONLY | O_DIRECTORY);
    struct model_dir md = {0};
    struct weights_read opt = {.hash = true};
    enum model_dir_reason why;
    struct weights *w = NULL;
    int rc = model_dir_open(&md, fd, &why, e);

    if (rc == 0) {
        w = weights_read(&md, NULL, 0, &opt, e);
        rc = w ? 0 : -1;
    }
    weights_free(w);
    model_dir_close(&md);
    close(fd);
    return rc;
}

static int open_gguf(struct err *e)
{
    int fd = open("tests/fuzz/corpus/gguf/qwen3_q5_0", O_RDONLY);
    struct gguf *g = gguf_open(fd, e);
    struct gguf_str *texts = NULL;
    size_t n = 0;
    int rc = g ? gguf_get_strings(g, "tokenizer.ggml.tokens", &texts, &n, e) : -1;

    free(texts);
    gguf_close(g);
    close(fd);
    return rc;
}

static void reading_a_header_survives_every_failed_allocation(void **state)
{
    (void)state;
    assert_true(walk(read_index) > 3);
}

static void reading_shards_survives_every_failed_allocation(void **state)
{
    (void)state;
    assert_true(walk(read_shards) > 10);
}

static void opening_a_gguf_file_survives_every_failed_allocation(void **state)
{
    (void)state;
    assert_true(walk(open_gguf) > 3);
}

static int import_gguf(struct err *e)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    char dir[] = "/tmp/cairn-test-XXXXXX";
    int fd = open("tests/fuzz/corpus/gguf/qwen3_q5_0", O_RDONLY), to, rc;
    struct gguf_import job = {0};

    assert_non_null(mkdtemp(dir));
    to = open(dir, O_RDONLY | O_DIRECTORY);
    rc = gguf_import(&job, fd, to, e);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(unlinkat(to, names[i], 0), rc); /* all of them, or none */
    close(fd);
    close(to);
    assert_int_equal(rmdir(dir), 0); /* and nothing else */
    return rc;
}

static void an_import_leaves_all_or_nothing_at_every_failed_allocation(void **state)
{
    (void)state;
    assert_true(walk(import_gguf) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_a_header_survives_every_failed_allocation),
        cmocka_unit_test(reading_shards_survives_every_failed_allocation),
        cmocka_unit_test(opening_a_gguf_file_survives_every_failed_allocation),
        cmocka_unit_test(an_import_leaves_all_or_nothing_at_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
