/* The image: the bytes of a canonical file, whatever form the source has. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/sha256.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

#define DIRS   "tests/vectors/cases/dirs/"
#define MODELS "tests/vectors/models/"

struct dir {
    int fd;
    struct model_dir md;
    struct err e;
};

static struct dir open_model(const char *path)
{
    struct dir d = {.fd = open(path, O_RDONLY | O_DIRECTORY)};
    enum model_dir_reason why;

    if (d.fd < 0 || model_dir_open(&d.md, d.fd, &why, &d.e) < 0)
        fail_msg("%s: %s", path, d.e.msg);
    return d;
}

static void close_model(struct dir *d)
{
    model_dir_close(&d->md);
    close(d->fd);
}

static void same_tensors(const struct weights *a, const struct weights *b)
{
    assert_true(weights_same_layout(a, &b->index));
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->base, b->base, a->bytes);
}

static void each_tensor_of_the_image_equals_the_file(const char *path)
{
    struct dir d = open_model(path);
    struct weights *w = weights_read(&d.md, NULL, 0, NULL, &d.e);

    assert_non_null(w);
    assert_int_equal((uintptr_t)w->base % 4096, 0);
    assert_int_equal(w->data_start % 4096, 0);
    for (size_t i = 0; i < w->n; i++) {
        const struct st_tensor *s = &d.md.all.tensors[i];
        const struct model_file *f = &d.md.files[s->file];
        unsigned char *bytes = malloc(s->bytes + 1);

        assert_non_null(bytes);
        assert_int_equal(pread(f->fd, bytes, s->bytes, (off_t)(f->data_start + s->offset)),
                         s->bytes);
        assert_memory_equal(bytes, weights_data(w, &w->tensors[i]), s->bytes);
        assert_string_equal(w->tensors[i].name, s->name);
        free(bytes);
    }
    weights_free(w);
    close_model(&d);
}

static void tensors_of_every_layout_reach_the_image(void **state)
{
    (void)state;
    each_tensor_of_the_image_equals_the_file(DIRS "tied_no_head");
    each_tensor_of_the_image_equals_the_file(DIRS "tied_head_equal");
    each_tensor_of_the_image_equals_the_file(DIRS "shards_ok");
    each_tensor_of_the_image_equals_the_file(DIRS "stray_consolidated");
    each_tensor_of_the_image_equals_the_file(MODELS "tiny-qwen3-sharded-f32");
    each_tensor_of_the_image_equals_the_file(MODELS "tiny-lfm2");
}

static void shards_give_the_same_image_as_one_file(void **state)
{
    struct dir one = open_model(DIRS "tied_no_head"), two = open_model(DIRS "shards_ok");
    struct weights *a = weights_read(&one.md, NULL, 0, NULL, &one.e);
    struct weights *b = weights_read(&two.md, NULL, 0, NULL, &two.e);

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    same_tensors(a, b);
    weights_free(a);
    weights_free(b);
    close_model(&one);
    close_model(&two);
}

static void file_sha256(int dir_fd, char hex[SHA256_HEX])
{
    int fd = openat(dir_fd, "model.safetensors", O_RDONLY);
    struct stat st;
    unsigned char *bytes;

    assert_int_equal(fstat(fd, &st), 0);
    bytes = malloc((size_t)st.st_size);
    assert_non_null(bytes);
    assert_int_equal(read(fd, bytes, (size_t)st.st_size), st.st_size);
    sha256_hex_of(bytes, (size_t)st.st_size, hex);
    free(bytes);
    close(fd);
}

static void the_hash_is_that_of_the_file_also_when_the_image_has_another_form(void **state)
{
    struct weights_read opt = {.hash = true};
    struct dir d = open_model(MODELS "tiny-llama");
    struct weights *w = weights_read(&d.md, NULL, 0, &opt, &d.e);
    char hex[SHA256_HEX];

    (void)state;
    assert_non_null(w);
    file_sha256(d.fd, hex);
    assert_string_equal(opt.sha256, hex);
    weights_free(w);
    close_model(&d);
}

/* Writes an image as a file in a new directory; returns the path. */
static char *save(const struct weights *w)
{
    char *dir = strdup("/tmp/cairn-test-XXXXXX"), path[64];
    int fd;

    assert_non_null(dir);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, w->base, w->bytes), w->bytes);
    close(fd);
    return dir;
}

static void remove_saved(char *dir)
{
    char path[64];

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
    free(dir);
}

static void an_image_written_to_disk_is_canonical_and_gives_itself_back(void **state)
{
    struct weights_read opt = {.hash = true};
    struct dir d = open_model(MODELS "tiny-qwen3"), again;
    struct weights *w = weights_read(&d.md, NULL, 0, NULL, &d.e), *back;
    char hex[SHA256_HEX], *saved;

    (void)state;
    assert_non_null(w);
    saved = save(w);
    again = open_model(saved);
    assert_true(again.md.all.canonical);
    back = weights_read(&again.md, NULL, 0, &opt, &again.e);
    assert_non_null(back);
    same_tensors(w, back);
    sha256_hex_of(w->base, w->bytes, hex);
    assert_string_equal(opt.sha256, hex);
    weights_free(w);
    weights_free(back);
    close_model(&d);
    close_model(&again);
    remove_saved(saved);
}

static void blocks_in_any_order_build_the_same_image(void **state)
{
    struct dir d = open_model(MODELS "tiny-llama");
    struct weights *w = weights_read(&d.md, NULL, 0, NULL, &d.e);
    struct weights *placed = weights_new(&d.md.all, NULL, 0, &d.e);
    size_t file = d.md.files[0].bytes, step = 1000;
    unsigned char block[1000];

    (void)state;
    assert_non_null(w);
    assert_non_null(placed);
    for (size_t i = (file + step - 1) / step; i-- > 0;) {
        ssize_t n = pread(d.md.files[0].fd, block, step, (off_t)(i * step));

        assert_true(n > 0);
        weights_place(placed, &d.md.all, i * step, block, (size_t)n);
    }
    same_tensors(w, placed);
    weights_free(w);
    weights_free(placed);
    close_model(&d);
}

static void a_file_cut_after_it_was_checked_gives_an_error_and_no_signal(void **state)
{
    struct dir d = open_model(MODELS "tiny-llama"), cut;
    struct weights *w = weights_read(&d.md, NULL, 0, NULL, &d.e);
    struct weights_read opt = {.hash = true};
    char *saved, path[64];

    (void)state;
    assert_non_null(w);
    saved = save(w);
    cut = open_model(saved);
    snprintf(path, sizeof path, "%s/model.safetensors", saved);
    assert_int_equal(truncate(path, (off_t)(w->bytes / 2)), 0);
    assert_null(weights_read(&cut.md, NULL, 0, NULL, &cut.e));
    assert_int_equal(cut.e.code, ERR_FORMAT);
    assert_null(weights_read(&cut.md, NULL, 0, &opt, &cut.e));
    assert_int_equal(cut.e.code, ERR_FORMAT);
    assert_string_equal(opt.sha256, "");
    weights_free(w);
    close_model(&d);
    close_model(&cut);
    remove_saved(saved);
}

static int stop_at_once(void *arg, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    ++*(int *)arg;
    return 1;
}

static void a_reader_that_is_told_to_stop_does(void **state)
{
    int calls = 0;
    struct weights_read opt = {.progress = stop_at_once, .arg = &calls, .hash = true};
    struct dir d = open_model(MODELS "tiny-llama");

    (void)state;
    assert_null(weights_read(&d.md, NULL, 0, &opt, &d.e));
    assert_int_equal(d.e.code, ERR_CANCELLED);
    opt.hash = false;
    assert_null(weights_read(&d.md, NULL, 0, &opt, &d.e));
    assert_int_equal(d.e.code, ERR_CANCELLED);
    assert_int_equal(calls, 2);
    close_model(&d);
}

static void lent_memory_is_used_and_left_alone(void **state)
{
    struct dir d = open_model(DIRS "tied_no_head");
    size_t need = weights_bytes(&d.md.all, &d.e);
    unsigned char *arena =
        mmap(NULL, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct weights *w;

    (void)state;
    assert_true(need > 0);
    assert_true(arena != MAP_FAILED);
    assert_null(weights_new(&d.md.all, arena, need - 1, &d.e));
    assert_int_equal(d.e.code, ERR_SPACE);
    w = weights_read(&d.md, arena, need, NULL, &d.e);
    assert_non_null(w);
    assert_ptr_equal(w->base, arena);
    assert_int_equal(w->bytes, need);
    weights_free(w);
    assert_int_equal(arena[8], '{');
    munmap(arena, need);
    close_model(&d);
}

static void a_tensor_that_is_not_there_is_named(void **state)
{
    struct dir d = open_model(DIRS "tied_no_head");
    struct weights *w = weights_read(&d.md, NULL, 0, NULL, &d.e);
    struct tensor t;

    (void)state;
    assert_int_equal(weights_view(w, "model.norm.weight", &t, &d.e), 0);
    assert_int_equal(t.ndim, 1);
    assert_int_equal(t.shape[0], 16);
    assert_int_equal(weights_view(w, "lm_head.weight", &t, &d.e), -1);
    assert_int_equal(d.e.code, ERR_NOT_FOUND);
    assert_non_null(strstr(d.e.msg, "lm_head.weight"));
    weights_free(w);
    close_model(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_every_layout_reach_the_image),
        cmocka_unit_test(shards_give_the_same_image_as_one_file),
        cmocka_unit_test(the_hash_is_that_of_the_file_also_when_the_image_has_another_form),
        cmocka_unit_test(an_image_written_to_disk_is_canonical_and_gives_itself_back),
        cmocka_unit_test(blocks_in_any_order_build_the_same_image),
        cmocka_unit_test(a_file_cut_after_it_was_checked_gives_an_error_and_no_signal),
        cmocka_unit_test(a_reader_that_is_told_to_stop_does),
        cmocka_unit_test(lent_memory_is_used_and_left_alone),
        cmocka_unit_test(a_tensor_that_is_not_there_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
