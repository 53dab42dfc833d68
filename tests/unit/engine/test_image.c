/* Loading, copying and sharing images. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/companions.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine_test.h"
#include "tensor/model_dir.h"

static struct image_bank *new_bank(void)
{
    struct err e = {0};
    struct image_bank *b = image_bank_new(&e);

    assert_non_null(b);
    return b;
}

static struct image *load(struct image_bank *b, const char *path)
{
    struct err e = {0};
    struct image *im = image_load_dir(b, path, NULL, &e);

    if (!im)
        fail_msg("%s: %s", e.msg, e.detail);
    return im;
}

static void done_with(struct image *im, struct image_bank *b)
{
    image_unref(im);
    assert_int_equal(image_bank_alive(b), 0);
    image_bank_unref(b);
}

static int step_progress(void *arg, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    ++*(int *)arg;
    return 0;
}

static int refuse_progress(void *arg, uint64_t done, uint64_t total)
{
    (void)arg;
    (void)done;
    (void)total;
    return 1;
}

static void a_load_hashes_the_bytes_that_it_keeps(void **state)
{
    struct image_bank *b = new_bank();
    int steps = 0;
    struct image_load opt = {
        .progress = step_progress, .arg = &steps, .hash = true, .f32_ok = true};
    struct err e = {0};
    struct image *im = image_load_dir(b, MODELS "tiny-llama", &opt, &e);
    char hex[SHA256_HEX];
    int fd = open(MODELS "tiny-llama/model.safetensors", O_RDONLY | O_CLOEXEC);
    static unsigned char bytes[8 << 20];
    ssize_t n = read(fd, bytes, sizeof bytes);

    (void)state;
    assert_non_null(im);
    assert_true(n > 0 && n < (ssize_t)sizeof bytes);
    sha256_hex_of(bytes, (size_t)n, hex);
    assert_string_equal(opt.sha256, hex);
    assert_true(steps > 0);
    assert_non_null(im->files->tokenizer);
    assert_int_equal(im->weights->data_start % 4096, 0);
    assert_ptr_equal(im->weights->base, im->block);
    close(fd);
    done_with(im, b);
}

static void a_cancelled_load_leaves_nothing(void **state)
{
    struct image_bank *b = new_bank();
    struct image_load opt = {.progress = refuse_progress, .f32_ok = true};
    struct err e = {0};

    (void)state;
    assert_null(image_load_dir(b, MODELS "tiny-llama", &opt, &e));
    assert_int_equal(e.code, ERR_CANCELLED);
    done_with(NULL, b);
}

static void a_refused_directory_says_why(void **state)
{
    struct image_bank *b = new_bank();
    struct image_load opt = {.f32_ok = true};
    struct err e = {0};

    (void)state;
    assert_null(image_load_dir(b, MODELS "no-such-model", &opt, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_null(image_load_dir(b, "tests/unit", &opt, &e));
    assert_non_null(opt.reason);
    done_with(NULL, b);
}

static void companions_are_read_and_config_comes_with_them(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    const struct companions *c = im->files->companions;
    struct companion f;

    (void)state;
    assert_true(companions_find(c, "config.json", &f) && f.bytes > 100);
    assert_true(companions_find(c, "tokenizer.json", &f));
    assert_true(companions_find(c, "generation_config.json", &f));
    assert_false(companions_find(c, "model.safetensors", &f));
    for (int i = 1; i < companions_count(c); i++)
        assert_true(strcmp(companions_at(c, i - 1).name, companions_at(c, i).name) < 0);
    done_with(im, b);
}

static void put_file(int dir, const char *name, const char *text)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void code_is_a_companion_only_when_asked_for(void **state)
{
    char dir[] = "/tmp/cairn-companions-XXXXXX";
    struct err e = {0};
    struct companion f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    put_file(fd, "modeling_x.py", "pass\n");
    put_file(fd, "notes.txt", "no\n");
    struct companions *plain = companions_read(fd, false, &e);
    struct companions *code = companions_read(fd, true, &e);

    assert_true(plain && code);
    assert_int_equal(companions_count(plain),
                     1); /* the generation_config.json that every model has */
    assert_true(companions_find(plain, "generation_config.json", &f));
    assert_string_equal(f.data, "{}\n");
    assert_true(companions_find(code, "modeling_x.py", &f));
    assert_string_equal(f.data, "pass\n");
    companions_free(plain);
    companions_free(code);
    unlinkat(fd, "modeling_x.py", 0);
    unlinkat(fd, "notes.txt", 0);
    close(fd);
    rmdir(dir);
}

static void copies_have_the_same_bytes_other_memory_and_another_epoch(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    struct err e = {0};
    struct image *copies[2] = {image_copy_private(im, &e),
                               image_copy_shared(im, IMAGE_MEMFD, NULL, &e)};

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_non_null(copies[i]);
        assert_memory_equal(copies[i]->weights->base, im->weights->base, im->weights->bytes);
        assert_ptr_not_equal(copies[i]->weights->base, im->weights->base);
        assert_true(copies[i]->epoch > im->epoch);
        assert_ptr_equal(copies[i]->files, im->files);
        image_unref(copies[i]);
    }
    done_with(im, b);
}

static void nobody_can_change_the_size_of_a_sealed_arena(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    struct err e = {0};
    struct image *shared = image_copy_shared(im, IMAGE_MEMFD, NULL, &e);
    struct stat st;

    (void)state;
    assert_non_null(shared);
    assert_int_equal(fstat(shared->shared_fd, &st), 0);
    assert_true(st.st_size >= (off_t)im->weights->bytes);
    assert_int_equal(ftruncate(shared->shared_fd, 0), -1);
    assert_int_equal(ftruncate(shared->shared_fd, st.st_size + 4096), -1);
    assert_int_equal(fcntl(shared->shared_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    image_unref(shared);
    done_with(im, b);
}

/* A second process opens the arena by path, writes one byte, and tries to cut it. */
static void write_from_child(const char *path, size_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char *m;

    if (fd < 0)
        _exit(2);
    m = mmap(NULL, at + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED)
        _exit(3);
    m[at] = 0x77;
    _exit(ftruncate(fd, 0) == 0 ? 4 : 0);
}

static void another_process_maps_the_arena_and_its_writes_are_seen(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    struct err e = {0};
    struct image *shared = image_copy_shared(im, IMAGE_MEMFD, NULL, &e);
    size_t at = im->weights->bytes - 1;
    char path[64];
    int status;

    (void)state;
    assert_non_null(shared);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), shared->shared_fd);
    shared->weights->base[at] = 0;
    pid_t child = fork();

    if (child == 0)
        write_from_child(path, at);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(shared->weights->base[at], 0x77);
    image_unref(shared);
    done_with(im, b);
}

static void a_posix_arena_that_is_cut_short_reads_zeros_and_is_known_damaged(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    struct err e = {0};
    char name[64];

    (void)state;
    snprintf(name, sizeof name, "/cairn-test-%d", (int)getpid());
    struct image *shared = image_copy_shared(im, IMAGE_POSIX_SHM, name, &e);

    if (!shared)
        fail_msg("%s: %s", e.msg, e.detail);
    assert_null(image_copy_shared(im, IMAGE_POSIX_SHM, name, &e)); /* the name is taken */
    assert_false(image_damaged(shared));
    assert_int_equal(ftruncate(shared->shared_fd, 0), 0);
    volatile unsigned char *last = shared->weights->base + shared->weights->bytes - 1;

    assert_int_equal(*last, 0);
    assert_true(image_damaged(shared));
    image_unref(shared);
    assert_int_equal(shm_open(name, O_RDONLY, 0), -1); /* the name is gone with the image */
    done_with(im, b);
}

/* A mapping of nothing, which no arena guards. */
static void touch_lost_page(void)
{
    int fd = memfd_create("lost", MFD_CLOEXEC);
    volatile unsigned char *m = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

    _exit(m == MAP_FAILED ? 2 : m[0] + 3);
}

static void a_lost_page_outside_of_arenas_ends_the_process_as_ever(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    struct err e = {0};
    char name[64];
    int status;

    (void)state;
    snprintf(name, sizeof name, "/cairn-test2-%d", (int)getpid());
    struct image *guarded = image_copy_shared(im, IMAGE_POSIX_SHM, name, &e);

    assert_non_null(guarded);
    pid_t child = fork();

    if (child == 0) {
        struct rlimit none = {0};

        setrlimit(RLIMIT_CORE, &none);
        touch_lost_page();
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    image_unref(guarded);
    done_with(im, b);
}

static void staged_weights_are_those_of_the_file(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama");
    struct image_staging st;
    struct image_load opt = {.hash = true};
    enum model_dir_reason why;
    struct model_dir md = {0};
    struct err e = {0};
    int fd = open(MODELS "tiny-llama", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)state;
    assert_int_equal(model_dir_open(&md, fd, &why, &e), 0);
    assert_int_equal(image_stage(&st, b, &md, &opt, &e), 0);
    assert_true(weights_same_layout(im->weights, &st.weights->index));
    assert_memory_equal(st.weights->base, im->weights->base, im->weights->bytes);
    assert_int_equal(strlen(opt.sha256), 64);
    image_staging_release(&st);
    model_dir_close(&md);
    close(fd);
    done_with(im, b);
}

static void an_image_is_found_by_its_file_while_it_lives_and_is_not_written(void **state)
{
    struct image_bank *b = new_bank();
    struct image *im = load(b, MODELS "tiny-llama"), *same = load(b, MODELS "tiny-llama");
    struct image *other = load(b, MODELS "tiny-llama-f16");
    const char *sha = "466f3f0ab240ab49db6c4257e24d8c10d1529f2bf7bc386062479460f22e7690";

    (void)state;
    assert_null(image_bank_find(b, sha, im->files, NULL));
    image_bank_know(b, im, sha);
    image_bank_know(b, im, sha); /* twice is once */
    assert_ptr_equal(image_bank_find(b, sha, im->files, NULL), im);
    image_unref(im); /* the one that find gave */
    assert_null(image_bank_find(b, sha, im->files, im));
    assert_ptr_equal(image_bank_find(b, sha, same->files, NULL),
                     im); /* read anew, the same bytes */
    image_unref(im);
    assert_null(image_bank_find(b, sha, other->files, NULL));
    assert_null(image_bank_find(b, "no such file", im->files, NULL));
    image_bank_forget(b, im);
    assert_null(image_bank_find(b, sha, im->files, NULL));
    image_bank_know(b, im, sha);
    image_bank_know(b, other, sha);

    struct image_files *files = image_files_ref(im->files);

    image_unref(im);
    assert_null(image_bank_find(b, sha, files, NULL));
    assert_ptr_equal(image_bank_find(b, sha, other->files, NULL), other);
    image_unref(other);
    image_files_unref(files);
    image_unref(same);
    done_with(other, b);
}

static void the_spare_serves_what_is_about_its_size_and_nothing_else(void **state)
{
    struct image_bank *b = new_bank();
    size_t big, small, again;
    struct err e = {0};
    unsigned char *block = image_bank_take(b, (size_t)20 << 20, &big, &e);

    (void)state;
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % 4096, 0);
    image_bank_give(b, block, big); /* not kept before it is asked for */
    assert_int_equal(image_bank_spare_bytes(b), 0);
    image_bank_keep_spare(b);
    block = image_bank_take(b, (size_t)20 << 20, &big, &e);
    image_bank_give(b, block, big);
    assert_int_equal(image_bank_spare_bytes(b), big);
    assert_ptr_equal(image_bank_take(b, ((size_t)20 << 20) - 5000, &again, &e), block);
    assert_int_equal(again, big);
    image_bank_give(b, block, again);
    assert_ptr_equal(image_bank_take_resident(b, 4096, &again), block); /* for a moment */
    assert_int_equal(again, big);
    assert_null(image_bank_take_resident(b, 4096, &again));
    image_bank_give(b, block, big);
    assert_null(image_bank_take_resident(b, big + 1, &again));
    assert_int_equal(image_bank_spare_bytes(b), big);
    unsigned char *other = image_bank_take(b, 4096, &small, &e); /* it would waste 20 MB */

    assert_true(small < (1 << 20));
    assert_int_equal(image_bank_spare_bytes(b), 0);
    image_bank_give(b, other, small);
    image_bank_drop_spare(b);
    assert_int_equal(image_bank_spare_bytes(b), 0);
    assert_null(image_bank_take(b, SIZE_MAX - 100, &small, &e));
    assert_int_equal(e.code, ERR_NOMEM);
    image_bank_unref(b);
}

static int once_then_no_more(void *arg, uint64_t done, uint64_t total)
{
    int *calls = arg;

    assert_int_equal(done, 0);
    assert_int_equal(total, (uint64_t)64 << 20);
    return ++*calls == 2;
}

static void making_memory_is_cut_short_when_it_is_not_wanted_any_more(void **state)
{
    struct image_bank *b = new_bank();
    size_t bytes = (size_t)64 << 20, got = 0;
    struct err e = {0};
    int calls = 0;

    (void)state;
    assert_null(image_bank_take_for(b, bytes, &got, once_then_no_more, &calls, &e));
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_int_equal(calls, 2);
    unsigned char *block = image_bank_take_for(b, bytes, &got, NULL, NULL, &e);

    assert_non_null(block);
    assert_int_equal(block[bytes - 1], 0);
    image_bank_give(b, block, got);
    image_bank_unref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_hashes_the_bytes_that_it_keeps),
        cmocka_unit_test(a_cancelled_load_leaves_nothing),
        cmocka_unit_test(a_refused_directory_says_why),
        cmocka_unit_test(companions_are_read_and_config_comes_with_them),
        cmocka_unit_test(code_is_a_companion_only_when_asked_for),
        cmocka_unit_test(copies_have_the_same_bytes_other_memory_and_another_epoch),
        cmocka_unit_test(nobody_can_change_the_size_of_a_sealed_arena),
        cmocka_unit_test(another_process_maps_the_arena_and_its_writes_are_seen),
        cmocka_unit_test(a_posix_arena_that_is_cut_short_reads_zeros_and_is_known_damaged),
        cmocka_unit_test(a_lost_page_outside_of_arenas_ends_the_process_as_ever),
        cmocka_unit_test(staged_weights_are_those_of_the_file),
        cmocka_unit_test(an_image_is_found_by_its_file_while_it_lives_and_is_not_written),
        cmocka_unit_test(the_spare_serves_what_is_about_its_size_and_nothing_else),
        cmocka_unit_test(making_memory_is_cut_short_when_it_is_not_wanted_any_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
