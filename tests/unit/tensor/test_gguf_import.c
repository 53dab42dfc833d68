/* An import gives back the model that a GGUF file was made from, or leaves nothing behind. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "tensor/gguf_import.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

#define GGUF   "tests/vectors/gguf/"
#define MODELS "tests/vectors/models/"

struct target {
    char path[32];
    int fd;
};

static struct target new_target(void)
{
    struct target t = {.path = "/tmp/cairn-test-XXXXXX"};

    assert_non_null(mkdtemp(t.path));
    t.fd = open(t.path, O_RDONLY | O_DIRECTORY);
    return t;
}

static void drop(struct target *t)
{
    struct err e = {0};
    int tmp = open("/tmp", O_RDONLY | O_DIRECTORY);

    close(t->fd);
    if (fs_remove_tree(tmp, t->path + strlen("/tmp/"), &e) < 0)
        fail_msg("%s", e.msg);
    close(tmp);
}

static int entries(const struct target *t)
{
    DIR *d = opendir(t->path);
    int n = -2; /* "." and ".." */

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static struct weights *read_dir(int dir_fd)
{
    struct model_dir md = {0};
    enum model_dir_reason why;
    struct err e = {0};
    struct weights *w;

    if (model_dir_open(&md, dir_fd, &why, &e) < 0 ||
        model_dir_check_config(&md, dir_fd, 0, &why, &e) < 0)
        fail_msg("%s", e.msg);
    w = weights_read(&md, NULL, 0, NULL, &e);
    assert_non_null(w);
    model_dir_close(&md);
    return w;
}

static int import_file(const char *path, const struct target *t, struct gguf_import *job,
                       struct err *e)
{
    int fd = open(path, O_RDONLY), rc;

    assert_true(fd >= 0);
    rc = gguf_import(job, fd, t->fd, e);
    close(fd);
    return rc;
}

static void gives_its_weights_back(const char *model)
{
    struct target t = new_target();
    struct gguf_import job = {0};
    struct err e = {0};
    struct weights *a, *b;
    char path[128], hex[SHA256_HEX];
    int fd;

    snprintf(path, sizeof path, GGUF "%s.gguf", model);
    if (import_file(path, &t, &job, &e) < 0)
        fail_msg("%s: %s", model, e.msg);
    snprintf(path, sizeof path, MODELS "%s", model);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    a = read_dir(fd);
    b = read_dir(t.fd);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->base, b->base, a->bytes);
    sha256_hex_of(b->base, b->bytes, hex);
    assert_string_equal(job.sha256, hex);
    assert_int_equal(entries(&t), 5);
    weights_free(a);
    weights_free(b);
    close(fd);
    drop(&t);
}

static void every_architecture_gives_its_weights_back(void **state)
{
    (void)state;
    gives_its_weights_back("tiny-llama");
    gives_its_weights_back("tiny-llama-untied-rope3");
    gives_its_weights_back("tiny-qwen2");
    gives_its_weights_back("tiny-qwen3");
    gives_its_weights_back("tiny-lfm2");
}

static json_t *read_json(int dir_fd, const char *name)
{
    struct err e = {0};
    json_t *v = json_parse_file(dir_fd, name, 1 << 20, &e);

    if (!v)
        fail_msg("%s", e.msg);
    return v;
}

static bool same_number(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b);
}

/* Keys that decide what a model computes are those of the model that the file was made from. */
static void config_agrees(const char *model)
{
    static const char *const keys[] = {
        "model_type",  "hidden_size",         "num_hidden_layers",      "num_attention_heads",
        "head_dim",    "num_key_value_heads", "rms_norm_eps",           "norm_eps",
        "rope_theta",  "vocab_size",          "conv_L_cache",           "full_attn_idxs",
        "torch_dtype", "architectures",       "max_position_embeddings"};
    struct target t = new_target();
    struct gguf_import job = {0};
    struct err e = {0};
    char path[128];
    json_t *ours, *theirs;
    int fd;

    snprintf(path, sizeof path, GGUF "%s.gguf", model);
    assert_int_equal(import_file(path, &t, &job, &e), 0);
    snprintf(path, sizeof path, MODELS "%s", model);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    ours = read_json(t.fd, "config.json");
    theirs = read_json(fd, "config.json");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *a = json_object_get(ours, keys[i]), *b = json_object_get(theirs, keys[i]);

        if (b && !json_equal(a, b) && !same_number(a, b))
            fail_msg("%s: \"%s\" differs", model, keys[i]);
    }
    json_decref(ours);
    json_decref(theirs);
    close(fd);
    drop(&t);
}

static void config_json_agrees_with_the_model_behind_the_file(void **state)
{
    (void)state;
    config_agrees("tiny-llama");
    config_agrees("tiny-llama-untied-rope3");
    config_agrees("tiny-qwen2");
    config_agrees("tiny-qwen3");
    config_agrees("tiny-lfm2");
}

static void llama3_scaling_is_recognised_by_its_divisors(void **state)
{
    struct target t = new_target();
    struct gguf_import job = {0};
    struct err e = {0};
    json_t *config, *scaling;

    (void)state;
    assert_int_equal(import_file(GGUF "tiny-llama-untied-rope3.gguf", &t, &job, &e), 0);
    config = read_json(t.fd, "config.json");
    scaling = json_object_get(config, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(scaling, "rope_type")), "llama3");
    assert_true(json_number_value(json_object_get(scaling, "factor")) == 8.0);
    json_decref(config);
    drop(&t);
}

static bool equal_but(const char *model, const char *part, const json_t *a, const json_t *b)
{
    (void)model;
    return json_equal(json_object_get(a, part), json_object_get(b, part));
}

/* Word splitting and added tokens are those of the original; a vocabulary may also list added
 * tokens. */
static void tokenizer_agrees(const char *model)
{
    struct target t = new_target();
    struct gguf_import job = {0};
    struct err e = {0};
    char path[128];
    json_t *ours, *theirs;
    int fd;

    snprintf(path, sizeof path, GGUF "%s.gguf", model);
    assert_int_equal(import_file(path, &t, &job, &e), 0);
    snprintf(path, sizeof path, MODELS "%s", model);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    ours = read_json(t.fd, "tokenizer.json");
    theirs = read_json(fd, "tokenizer.json");
    assert_true(equal_but(model, "pre_tokenizer", ours, theirs));
    assert_true(equal_but(model, "normalizer", ours, theirs));
    assert_true(equal_but(model, "added_tokens", ours, theirs));
    assert_true(equal_but(model, "ignore_merges", json_object_get(ours, "model"),
                          json_object_get(theirs, "model")));
    assert_int_equal(json_array_size(json_object_get(json_object_get(ours, "model"), "merges")),
                     json_array_size(json_object_get(json_object_get(theirs, "model"), "merges")));
    json_decref(ours);
    json_decref(theirs);
    close(fd);
    drop(&t);
}

static void tokenizer_json_agrees_with_the_model_behind_the_file(void **state)
{
    (void)state;
    tokenizer_agrees("tiny-llama");
    tokenizer_agrees("tiny-llama-untied-rope3");
    tokenizer_agrees("tiny-qwen2");
    tokenizer_agrees("tiny-qwen3");
    tokenizer_agrees("tiny-lfm2");
}

/* A copy of a file in memory with one text changed to another of the same length. */
static int altered(const char *path, const char *from, const char *to)
{
    int in = open(path, O_RDONLY), fd = memfd_create("gguf", MFD_CLOEXEC);
    static char bytes[1 << 20];
    ssize_t n = read(in, bytes, sizeof bytes);
    char *at = memmem(bytes, (size_t)n, from, strlen(from));

    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    assert_int_equal(write(fd, bytes, (size_t)n), n);
    close(in);
    return fd;
}

static void refused(const char *from, const char *to, const char *word)
{
    struct target t = new_target();
    struct gguf_import job = {0};
    struct err e = {0};
    int fd = altered(GGUF "tiny-qwen2.gguf", from, to);

    assert_int_equal(gguf_import(&job, fd, t.fd, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    if (!strstr(e.msg, word))
        fail_msg("\"%s\" does not name %s", e.msg, word);
    assert_int_equal(entries(&t), 0);
    close(fd);
    drop(&t);
}

static void what_is_not_supported_is_refused_by_name_and_leaves_nothing(void **state)
{
    (void)state;
    refused("qwen2\x14", "gemma\x14", "gemma");
    refused("gpt2", "bert", "bert");
    refused("blk.1.attn_q.bias", "blk.1.attn_q.bia_", "attn_q.bia");
    refused("token_embd.weight", "token_embd.weigh_", "token_embd");
}

static void a_name_that_is_taken_is_a_conflict_and_nothing_changes(void **state)
{
    struct target t = new_target();
    struct gguf_import job = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(fs_create_file(t.fd, "config.json", "{}", 2, 0600, &e), 0);
    assert_int_equal(import_file(GGUF "tiny-llama.gguf", &t, &job, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(entries(&t), 1);
    drop(&t);
}

static int stop(void *arg, uint64_t done, uint64_t total)
{
    (void)arg;
    return done > total / 2;
}

static void an_import_that_is_stopped_half_way_leaves_nothing(void **state)
{
    struct target t = new_target();
    struct gguf_import job = {.progress = stop};
    struct err e = {0};

    (void)state;
    assert_int_equal(import_file(GGUF "tiny-llama.gguf", &t, &job, &e), -1);
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_int_equal(entries(&t), 0);
    drop(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_gives_its_weights_back),
        cmocka_unit_test(config_json_agrees_with_the_model_behind_the_file),
        cmocka_unit_test(llama3_scaling_is_recognised_by_its_divisors),
        cmocka_unit_test(tokenizer_json_agrees_with_the_model_behind_the_file),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name_and_leaves_nothing),
        cmocka_unit_test(a_name_that_is_taken_is_a_conflict_and_nothing_changes),
        cmocka_unit_test(an_import_that_is_stopped_half_way_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
