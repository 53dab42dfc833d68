/* A snapshot holds the bytes of its instant, wherever a writer comes in between. */
#include "engine/snapshot.h"
#include "engine_test.h"

#include <unistd.h>

enum { BLOCK = 50000 };

struct made {
    struct image *image;
    struct snapshot *snapshot;
};

static void begin(struct engine *en, void *arg)
{
    struct made *m = arg;
    struct err e = {0};

    m->snapshot = snapshot_begin(en, m->image, &e);
    assert_non_null(m->snapshot);
}

static void overwrite(struct engine *en, void *arg)
{
    struct image *im = arg;
    struct err e = {0};

    assert_int_equal(snapshot_detach_all(en, im, &e), 0);
    memset(im->weights->base + im->weights->data_start, 0x5a,
           im->weights->bytes - im->weights->data_start);
}

static void read_range(struct snapshot *s, unsigned char *to, size_t from, size_t until)
{
    struct err e = {0};

    for (size_t at = from; at < until; at += BLOCK) {
        size_t n = until - at < BLOCK ? until - at : BLOCK;

        assert_int_equal(snapshot_read(s, to + at, at, n, &e), 0);
    }
}

/* Reads `first` bytes, lets a writer change everything, reads the rest. */
static void check_writer_at(struct engine *en, size_t first)
{
    struct err e = {0};
    struct made m = {.image = load_tiny(en, MODELS "tiny-llama")};
    size_t bytes = m.image->weights->bytes;
    unsigned char *before = malloc(bytes), *read = malloc(bytes);

    assert_true(before && read);
    memcpy(before, m.image->weights->base, bytes);
    engine_call(en, begin, &m);
    assert_int_equal(snapshot_bytes(m.snapshot), bytes);
    read_range(m.snapshot, read, 0, first);
    engine_call(en, overwrite, m.image);
    engine_call(en, overwrite, m.image); /* a second writer finds nothing left to copy */
    read_range(m.snapshot, read, first, bytes);
    assert_memory_equal(read, before, bytes);
    assert_int_equal(snapshot_read(m.snapshot, read, bytes, 1, &e), -1);
    snapshot_end(m.snapshot);
    image_unref(m.image);
    free(before);
    free(read);
}

static void the_bytes_are_those_of_the_instant_wherever_a_writer_comes(void **state)
{
    struct engine *en = start_engine(2, 1, 1, 0);
    struct image *im = load_tiny(en, MODELS "tiny-llama");
    size_t bytes = im->weights->bytes;

    (void)state;
    image_unref(im);
    for (size_t first = 0; first < bytes; first += BLOCK)
        check_writer_at(en, first);
    check_writer_at(en, bytes - 1);
    check_writer_at(en, bytes);
    engine_stop(en);
}

static void a_snapshot_outlives_the_residence_of_its_image(void **state)
{
    struct engine *en = start_with_model("tiny-llama", 1, 1);
    struct made m = {.image = engine_peek_image(en)};
    size_t bytes = m.image->weights->bytes;
    unsigned char *before = malloc(bytes), *read = malloc(bytes);

    (void)state;
    assert_true(before && read);
    memcpy(before, m.image->weights->base, bytes);
    engine_call(en, begin, &m);
    image_unref(m.image);
    make_resident(en, load_tiny(en, MODELS "tiny-qwen2"), "other", 2);
    read_range(m.snapshot, read, 0, bytes);
    assert_memory_equal(read, before, bytes);
    snapshot_end(m.snapshot);
    free(before);
    free(read);
    engine_stop(en);
}

struct reader {
    struct snapshot *snapshot;
    unsigned char *to;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    struct err e = {0};

    for (size_t at = 0, n = snapshot_bytes(r->snapshot); at < n; at += 1000)
        assert_int_equal(
            snapshot_read(r->snapshot, r->to + at, at, n - at < 1000 ? n - at : 1000, &e), 0);
    return NULL;
}

static void a_reader_and_a_writer_may_meet_at_any_moment(void **state)
{
    struct engine *en = start_engine(2, 1, 1, 0);

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct made m = {.image = load_tiny(en, MODELS "tiny-llama")};
        size_t bytes = m.image->weights->bytes;
        struct reader r = {.to = malloc(bytes)};
        unsigned char *before = malloc(bytes);
        struct timespec pause = {.tv_nsec = i * 5000};
        pthread_t t;

        assert_true(before && r.to);
        memcpy(before, m.image->weights->base, bytes);
        engine_call(en, begin, &m);
        r.snapshot = m.snapshot;
        assert_int_equal(pthread_create(&t, NULL, read_all, &r), 0);
        nanosleep(&pause, NULL);
        engine_call(en, overwrite, m.image);
        pthread_join(t, NULL);
        assert_memory_equal(r.to, before, bytes);
        snapshot_end(m.snapshot);
        image_unref(m.image);
        free(before);
        free(r.to);
    }
    engine_stop(en);
}

static struct image *share_tiny(struct engine *en)
{
    struct image *im = load_tiny(en, MODELS "tiny-llama"), *shared;
    struct err e = {0};
    char name[64];

    snprintf(name, sizeof name, "/cairn-snapshot-%d", (int)getpid());
    shared = image_copy_shared(im, IMAGE_POSIX_SHM, name, &e);
    if (!shared)
        fail_msg("%s", e.msg);
    image_unref(im);
    return shared;
}

static void detach_now(struct engine *en, void *arg)
{
    struct err e = {0};

    assert_int_equal(snapshot_detach_all(en, arg, &e), 0);
}

static void what_a_client_has_cut_is_an_error_and_not_zeros(void **state)
{
    struct engine *en = start_engine(2, 1, 1, 0);
    struct made m = {.image = share_tiny(en)};
    size_t bytes = m.image->weights->bytes;
    unsigned char *read = malloc(bytes);
    struct err e = {0};

    (void)state;
    assert_non_null(read);
    engine_call(en, begin, &m);
    read_range(m.snapshot, read, 0, BLOCK);
    assert_int_equal(ftruncate(m.image->shared_fd, 0), 0);
    assert_int_equal(snapshot_read(m.snapshot, read, BLOCK, BLOCK, &e), -1);
    assert_int_equal(e.code, ERR_IO);
    engine_call(en, detach_now, m.image); /* a copy of it has the same holes */
    assert_int_equal(snapshot_read(m.snapshot, read, 2 * BLOCK, BLOCK, &e), -1);
    snapshot_end(m.snapshot);
    image_unref(m.image);
    free(read);
    engine_stop(en);
}

static void a_copy_made_before_the_cut_is_whole(void **state)
{
    struct engine *en = start_engine(2, 1, 1, 0);
    struct made m = {.image = share_tiny(en)};
    size_t bytes = m.image->weights->bytes;
    unsigned char *before = malloc(bytes), *read = malloc(bytes);

    (void)state;
    assert_true(before && read);
    memcpy(before, m.image->weights->base, bytes);
    engine_call(en, begin, &m);
    engine_call(en, detach_now, m.image);
    assert_int_equal(ftruncate(m.image->shared_fd, 0), 0);
    read_range(m.snapshot, read, 0, bytes);
    assert_memory_equal(read, before, bytes);
    snapshot_end(m.snapshot);
    image_unref(m.image);
    free(before);
    free(read);
    engine_stop(en);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_are_those_of_the_instant_wherever_a_writer_comes),
        cmocka_unit_test(a_snapshot_outlives_the_residence_of_its_image),
        cmocka_unit_test(a_reader_and_a_writer_may_meet_at_any_moment),
        cmocka_unit_test(what_a_client_has_cut_is_an_error_and_not_zeros),
        cmocka_unit_test(a_copy_made_before_the_cut_is_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
