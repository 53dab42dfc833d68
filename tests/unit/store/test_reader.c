/* The verified read: what it hands out, and how a changed file is noticed. */
#include "store/scratch.h"

#include <sys/mman.h>

#include "store/reader.h"

enum { PAGE = 4096 };

static unsigned char *put_bytes(const struct scratch *s, size_t n)
{
    unsigned char *bytes = malloc(n + 1);
    struct err e = {0};

    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 2246822519U >> 9);
    assert_int_equal(fs_create_file(s->fd, "model.safetensors", bytes, n, 0644, &e), 0);
    return bytes;
}

static struct ckpt_reader *open_reader(const struct scratch *s)
{
    struct ckpt_reader *r = NULL;
    struct err e = {0};

    assert_int_equal(ckpt_reader_open(s->fd, "model.safetensors", &r, &e), READER_OK);
    return r;
}

/* Direct I/O is only taken for a file that is not in the page cache. */
static void drop_cache(const struct scratch *s)
{
    int fd = openat(s->fd, "model.safetensors", O_RDONLY | O_CLOEXEC);

    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

struct blocks {
    const unsigned char *bytes;
    size_t next;
    size_t stop_at; /* 0: never */
};

static int take_block(void *arg, const void *bytes, size_t offset, size_t n, struct err *e)
{
    struct blocks *b = arg;

    assert_int_equal(offset, b->next);
    assert_true(n > 0 && n <= READER_BLOCK);
    assert_int_equal(memcmp(bytes, b->bytes + offset, n), 0);
    b->next += n;
    if (b->stop_at && b->next >= b->stop_at)
        return err_set(e, ERR_CANCELLED, "the client left");
    return 0;
}

static void every_byte_is_handed_out_once_and_hashed(void **state)
{
    struct scratch *s = *state;
    static const size_t sizes[] = {0,
                                   1,
                                   PAGE,
                                   READER_BLOCK - 1,
                                   READER_BLOCK,
                                   READER_BLOCK + 1,
                                   7 * (size_t)READER_BLOCK + 333};

    for (size_t i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i / 2];
        unsigned char *bytes = put_bytes(s, n);
        struct blocks b = {.bytes = bytes};
        char sha[SHA256_HEX], own[SHA256_HEX];
        struct ckpt_reader *r;
        struct err e = {0};

        if (i % 2)
            drop_cache(s);
        r = open_reader(s);
        assert_int_equal(ckpt_reader_facts(r)->size, n);
        assert_int_equal(ckpt_reader_hash(r, NULL, take_block, &b, sha, &e), 0);
        assert_int_equal(b.next, n);
        sha256_hex_of(bytes, n, own);
        assert_string_equal(sha, own);
        ckpt_reader_close(r);
        unlinkat(s->fd, "model.safetensors", 0);
        free(bytes);
    }
}

static void the_bytes_arrive_in_the_place_that_was_given(void **state)
{
    struct scratch *s = *state;
    size_t n = 3 * (size_t)READER_BLOCK + 777;
    unsigned char *bytes = put_bytes(s, n);
    unsigned char *to =
        mmap(NULL, n + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    for (size_t shift = 0; shift < 2; shift++) { /* also a place that is not aligned */
        char sha[SHA256_HEX];
        struct ckpt_reader *r;
        struct err e = {0};

        memset(to, 0xaa, n + PAGE);
        drop_cache(s);
        r = open_reader(s);
        assert_int_equal(ckpt_reader_hash(r, to + shift, NULL, NULL, sha, &e), 0);
        assert_int_equal(memcmp(to + shift, bytes, n), 0);
        assert_int_equal(to[shift + n], 0xaa);
        ckpt_reader_close(r);
    }
    munmap(to, n + PAGE);
    free(bytes);
}

static void the_one_who_takes_the_blocks_may_stop(void **state)
{
    struct scratch *s = *state;
    unsigned char *bytes = put_bytes(s, 20 * (size_t)READER_BLOCK);
    struct blocks b = {.bytes = bytes, .stop_at = 2 * (size_t)READER_BLOCK};
    struct ckpt_reader *r = open_reader(s);
    char sha[SHA256_HEX];
    struct err e = {0};

    assert_int_equal(ckpt_reader_hash(r, NULL, take_block, &b, sha, &e), -1);
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_int_equal(b.next, b.stop_at);
    ckpt_reader_close(r);
    free(bytes);
}

static void a_file_cut_after_it_was_opened_is_an_error(void **state)
{
    struct scratch *s = *state;
    size_t n = 5 * (size_t)READER_BLOCK;
    unsigned char *bytes = put_bytes(s, n);
    struct ckpt_reader *r = open_reader(s);
    char sha[SHA256_HEX];
    struct err e = {0};
    int fd = openat(s->fd, "model.safetensors", O_WRONLY | O_CLOEXEC);

    assert_int_equal(ftruncate(fd, (off_t)n / 2 + 100), 0);
    close(fd);
    assert_int_equal(ckpt_reader_hash(r, NULL, NULL, NULL, sha, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(ckpt_reader_changed(r), "size");
    ckpt_reader_close(r);
    free(bytes);
}

static void a_file_that_stays_is_unchanged_and_each_change_is_noticed(void **state)
{
    struct scratch *s = *state;
    unsigned char *bytes = put_bytes(s, 10);
    struct ckpt_reader *r = open_reader(s);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    int fd;

    assert_null(ckpt_reader_changed(r));
    futimens(ckpt_reader_fd(r), old);
    assert_string_equal(ckpt_reader_changed(r), "mtime");
    ckpt_reader_close(r);

    r = open_reader(s);
    usleep(20000); /* a coarse clock stamps the change */
    assert_int_equal(fchmodat(s->fd, "model.safetensors", 0600, 0), 0);
    assert_string_equal(ckpt_reader_changed(r), "ctime");
    ckpt_reader_close(r);

    r = open_reader(s);
    fd = openat(s->fd, "other", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, bytes, 10), 10);
    close(fd);
    renameat(s->fd, "other", s->fd, "model.safetensors");
    assert_non_null(ckpt_reader_changed(r)); /* another file under the name */
    ckpt_reader_close(r);

    r = open_reader(s);
    unlinkat(s->fd, "model.safetensors", 0);
    assert_non_null(ckpt_reader_changed(r));
    ckpt_reader_close(r);
    free(bytes);
}

static enum reader_fault fault(const struct scratch *s)
{
    struct ckpt_reader *r;
    struct err e = {0};
    enum reader_fault f = ckpt_reader_open(s->fd, "model.safetensors", &r, &e);

    assert_null(r);
    unlinkat(s->fd, "model.safetensors", 0);
    return f;
}

static void what_is_no_regular_file_is_refused_without_waiting(void **state)
{
    struct scratch *s = *state;

    assert_int_equal(fault(s), READER_MISSING);
    assert_int_equal(mkfifoat(s->fd, "model.safetensors", 0600), 0);
    assert_int_equal(fault(s), READER_NOT_REGULAR);
    put_file(s, "target", "x");
    put_link(s, "model.safetensors", "target");
    assert_int_equal(fault(s), READER_NOT_REGULAR);
    put_link(s, "model.safetensors", "nowhere");
    assert_int_equal(fault(s), READER_NOT_REGULAR);
    put_dir(s, "model.safetensors");
    assert_int_equal(fault(s), READER_NOT_REGULAR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(every_byte_is_handed_out_once_and_hashed),
        SCRATCH_TEST(the_bytes_arrive_in_the_place_that_was_given),
        SCRATCH_TEST(the_one_who_takes_the_blocks_may_stop),
        SCRATCH_TEST(a_file_cut_after_it_was_opened_is_an_error),
        SCRATCH_TEST(a_file_that_stays_is_unchanged_and_each_change_is_noticed),
        SCRATCH_TEST(what_is_no_regular_file_is_refused_without_waiting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
