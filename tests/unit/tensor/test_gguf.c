/* GGUF: block values against vectors of another implementation, and files that lie. */
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

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "tensor/gguf.h"

#define VECTORS "tests/vectors/gguf/"

static size_t unhex(const char *hex, unsigned char *out)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned v;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (unsigned char)v;
    }
    return n;
}

static void check_format(const json_t *row)
{
    uint32_t type = (uint32_t)json_integer_value(json_object_get(row, "type"));
    unsigned char blocks[2048];
    float expected[1024], got[1024];
    int elements, bytes;
    size_t n = unhex(json_string_value(json_object_get(row, "blocks")), blocks);

    unhex(json_string_value(json_object_get(row, "f32")), (unsigned char *)expected);
    assert_string_equal(gguf_type_name(type), json_string_value(json_object_get(row, "name")));
    assert_int_equal(gguf_type_block(type, &elements, &bytes), 0);
    n = n / (size_t)bytes * (size_t)elements;
    assert_int_equal(gguf_dequantise(type, blocks, (int64_t)n, got), 0);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &expected[i], sizeof(float)) != 0)
            fail_msg("%s: element %zu is %.9g, not %.9g", gguf_type_name(type), i, (double)got[i],
                     (double)expected[i]);
}

static void block_values_equal_the_vectors_bit_for_bit(void **state)
{
    struct err e = {0};
    json_t *rows = json_parse_file(AT_FDCWD, VECTORS "blocks.json", 1 << 20, &e), *row;
    size_t i;

    (void)state;
    assert_non_null(rows);
    assert_int_equal(json_array_size(rows), 10);
    json_array_foreach (rows, i, row) {
        check_format(row);
    }
    json_decref(rows);
}

static void a_type_that_is_known_by_size_only_is_not_dequantised(void **state)
{
    float out[256];
    char block[300] = {0};

    (void)state;
    assert_string_equal(gguf_type_name(10), "Q2_K");
    assert_int_equal(gguf_dequantise(10, block, 256, out), -1);
    assert_null(gguf_type_name(4));
    assert_null(gguf_type_name(1000));
}

/* ---- files written by the test ---- */

static void put(struct buf *b, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        buf_add_char(b, (char)(i < 8 ? v >> 8 * i : 0));
}

static void put_str(struct buf *b, const char *s)
{
    put(b, strlen(s), 8);
    buf_add_str(b, s);
}

static void put_header(struct buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    buf_add_str(b, "GGUF");
    put(b, version, 4);
    put(b, tensors, 8);
    put(b, keys, 8);
}

static void put_tensor(struct buf *b, const char *name, uint64_t columns, uint32_t type,
                       uint64_t offset)
{
    put_str(b, name);
    put(b, 1, 4);
    put(b, columns, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static int memory_file(const struct buf *b)
{
    int fd = memfd_create("gguf", MFD_CLOEXEC);

    assert_int_equal(write(fd, b->data, b->len), b->len);
    return fd;
}

static struct gguf *open_bytes(const struct buf *b, int *fd, struct err *e)
{
    *fd = memory_file(b);
    return gguf_open(*fd, e);
}

static void refused(struct buf *b, const char *word)
{
    struct err e = {0};
    int fd;
    struct gguf *g = open_bytes(b, &fd, &e);

    assert_null(g);
    assert_int_equal(e.code, ERR_FORMAT);
    if (!strstr(e.msg, word))
        fail_msg("\"%s\" does not say %s", e.msg, word);
    close(fd);
    buf_release(b);
}

static void values_of_every_type_are_read(void **state)
{
    struct buf b = {0};
    struct err e = {0};
    struct gguf_str s = {0}, *list = NULL;
    int64_t v = 0, *numbers = NULL;
    double real = 0;
    bool truth = false;
    size_t n = 0;
    struct gguf *g;
    int fd;

    (void)state;
    put_header(&b, 3, 0, 7);
    put_str(&b, "small"), put(&b, GGUF_I8, 4), put(&b, 0xfe, 1);
    put_str(&b, "large"), put(&b, GGUF_U64, 4), put(&b, UINT64_MAX, 8);
    put_str(&b, "truth"), put(&b, GGUF_BOOL, 4), put(&b, 1, 1);
    put_str(&b, "real"), put(&b, GGUF_F32, 4), put(&b, 0x3fc00000, 4);
    put_str(&b, "text"), put(&b, GGUF_STRING, 4), put_str(&b, "hello");
    put_str(&b, "texts"), put(&b, GGUF_ARRAY, 4), put(&b, GGUF_STRING, 4), put(&b, 2, 8);
    put_str(&b, "a"), put_str(&b, "");
    put_str(&b, "numbers"), put(&b, GGUF_ARRAY, 4), put(&b, GGUF_I16, 4), put(&b, 2, 8);
    put(&b, 0xffff, 2), put(&b, 7, 2);
    g = open_bytes(&b, &fd, &e);
    if (!g)
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_get_int(g, "small", &v, &e), 0);
    assert_int_equal(v, -2);
    assert_int_equal(gguf_get_int(g, "large", &v, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_int_equal(gguf_get_bool(g, "truth", &truth, &e), 0);
    assert_true(truth);
    assert_int_equal(gguf_get_float(g, "real", &real, &e), 0);
    assert_true(real == 1.5);
    assert_int_equal(gguf_get_str(g, "text", &s, &e), 0);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.s, "hello", 5);
    assert_int_equal(gguf_get_strings(g, "texts", &list, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_int_equal(list[1].len, 0);
    free(list);
    assert_int_equal(gguf_get_ints(g, "numbers", &numbers, &n, &e), 0);
    assert_int_equal(numbers[0], -1);
    assert_int_equal(numbers[1], 7);
    free(numbers);
    assert_int_equal(gguf_get_str(g, "absent", &s, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_int_equal(gguf_get_int(g, "text", &v, &e), -1);
    assert_non_null(strstr(e.msg, "\"text\" is string"));
    gguf_close(g);
    close(fd);
    buf_release(&b);
}

static void false_counts_and_lengths_are_refused(void **state)
{
    struct buf b = {0};

    (void)state;
    put_header(&b, 3, 0, UINT64_MAX);
    refused(&b, "metadata keys");
    put_header(&b, 3, UINT64_MAX, 0);
    refused(&b, "tensors");
    put_header(&b, 3, 0, 1);
    put(&b, UINT64_MAX - 7, 8);
    refused(&b, "metadata key");
    put_header(&b, 3, 0, 1);
    put_str(&b, "list"), put(&b, GGUF_ARRAY, 4), put(&b, GGUF_F64, 4),
        put(&b, UINT64_MAX / 8 + 2, 8);
    refused(&b, "list");
    put_header(&b, 3, 0, 1);
    put_str(&b, "list"), put(&b, GGUF_ARRAY, 4), put(&b, GGUF_ARRAY, 4), put(&b, 1, 8);
    refused(&b, "array inside an array");
    put_header(&b, 3, 0, 1);
    put_str(&b, "odd"), put(&b, 77, 4), put(&b, 0, 8);
    refused(&b, "unknown");
    put_header(&b, 3, 0, 1);
    put_str(&b, "truth"), put(&b, GGUF_BOOL, 4), put(&b, 2, 1);
    refused(&b, "truth");
}

static void a_version_that_is_not_read_is_named(void **state)
{
    struct buf b = {0};

    (void)state;
    put_header(&b, 1, 0, 0);
    refused(&b, "version 1");
    put_header(&b, 4, 0, 0);
    refused(&b, "version 4");
    put_header(&b, 0x03000000, 0, 0);
    refused(&b, "big-endian");
    buf_add_str(&b, "GGUX");
    put(&b, 0, 40);
    refused(&b, "not a GGUF file");
    buf_add_str(&b, "GGUF");
    refused(&b, "not a GGUF file");
}

static void tensors_that_do_not_fit_the_file_are_refused(void **state)
{
    struct buf b = {0};

    (void)state;
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "w", 1 << 20, 0, 0);
    refused(&b, "past the end");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "w", 8, 0, UINT64_MAX - 31);
    refused(&b, "past the end");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "w", 8, 0, 4);
    refused(&b, "multiple of 32");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "w", 33, 8, 0);
    refused(&b, "Q8_0 blocks");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "w", UINT64_MAX, 0, 0);
    refused(&b, "2^63");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "w", 8, 999, 0);
    refused(&b, "999");
    put_header(&b, 3, 1, 0);
    put_str(&b, "w"), put(&b, 5, 4), put(&b, 0, 64);
    refused(&b, "dimensions");
}

static void a_name_or_key_that_occurs_twice_is_refused(void **state)
{
    struct buf b = {0};

    (void)state;
    put_header(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++)
        put_str(&b, "k"), put(&b, GGUF_U8, 4), put(&b, 0, 1);
    refused(&b, "duplicate metadata key \"k\"");
    put_header(&b, 3, 2, 0);
    for (int i = 0; i < 2; i++)
        put_tensor(&b, "w", 0, 0, 0);
    refused(&b, "duplicate tensor \"w\"");
}

static void tensors_that_overlap_are_refused(void **state)
{
    struct buf b = {0};

    (void)state;
    put_header(&b, 2, 2, 0);
    put_tensor(&b, "a", 16, 0, 0);
    put_tensor(&b, "b", 16, 0, 32);
    put(&b, 0, 8), put(&b, 0, 256);
    refused(&b, "overlaps");
}

static void an_alignment_of_the_file_is_used(void **state)
{
    struct buf b = {0};
    struct err e = {0};
    float v[4];
    struct gguf *g;
    int fd;

    (void)state;
    put_header(&b, 3, 1, 1);
    put_str(&b, "general.alignment"), put(&b, GGUF_U32, 4), put(&b, 64, 4);
    put_tensor(&b, "w", 4, 1, 0);
    while (b.len % 64)
        buf_add_char(&b, 0);
    put(&b, 0x4000c0003c00b800, 8); /* -0.5, 1, -2, 2 */
    g = open_bytes(&b, &fd, &e);
    if (!g)
        fail_msg("%s", e.msg);
    assert_int_equal(gguf_read_f32(g, gguf_find(g, "w"), 0, 4, v, &e), 0);
    assert_true(v[0] == -0.5f && v[1] == 1.0f && v[2] == -2.0f && v[3] == 2.0f);
    assert_int_equal(gguf_read_f32(g, gguf_find(g, "w"), 1, 4, v, &e), -1);
    gguf_close(g);
    close(fd);
    buf_release(&b);
}

/* Every prefix of a real file: an error, never a read outside of it. */
static void every_cut_of_a_file_is_refused(void **state)
{
    int from = open(VECTORS "tiny-qwen2.gguf", O_RDONLY), fd = memfd_create("cut", MFD_CLOEXEC);
    static char bytes[198784];
    size_t steps[] = {1, 997};

    (void)state;
    assert_int_equal(read(from, bytes, sizeof bytes), sizeof bytes);
    for (size_t n = 0; n < sizeof bytes; n += steps[n > 2000]) {
        struct err e = {0};

        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, bytes, n, 0), n);
        assert_null(gguf_open(fd, &e));
        assert_int_equal(e.code, ERR_FORMAT);
    }
    close(from);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_values_equal_the_vectors_bit_for_bit),
        cmocka_unit_test(a_type_that_is_known_by_size_only_is_not_dequantised),
        cmocka_unit_test(values_of_every_type_are_read),
        cmocka_unit_test(false_counts_and_lengths_are_refused),
        cmocka_unit_test(a_version_that_is_not_read_is_named),
        cmocka_unit_test(tensors_that_do_not_fit_the_file_are_refused),
        cmocka_unit_test(a_name_or_key_that_occurs_twice_is_refused),
        cmocka_unit_test(tensors_that_overlap_are_refused),
        cmocka_unit_test(an_alignment_of_the_file_is_used),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
