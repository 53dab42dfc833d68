/* Every row of cases.tsv and tensors.tsv, and the canonical form. */
#include "tsv.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/sha256.h"
#include "tensor/safetensors.h"
#include "tensor/tensor.h"

#define CASES "tests/vectors/cases/"

static int open_case(const char *file)
{
    char path[256];
    int fd;

    snprintf(path, sizeof path, CASES "%s", file);
    fd = open(path, O_RDONLY);
    if (fd < 0)
        fail_msg("%s is missing", path);
    return fd;
}

static void check_verdict(char *cell[TSV_CELLS], void *arg)
{
    struct st_index ix = {0};
    struct err e = {0};
    int fd = open_case(cell[0]);
    int rc = st_index_read(&ix, fd, &e);

    (void)arg;
    if (strcmp(cell[1], "accept") == 0 && rc != 0)
        fail_msg("%s was refused: %s", cell[0], e.msg);
    if (strcmp(cell[1], "refuse") == 0) {
        if (rc == 0)
            fail_msg("%s was accepted (%s)", cell[0], cell[3]);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_true(strlen(e.msg) > 10);
    }
    st_index_release(&ix);
    close(fd);
}

static void every_file_of_the_table_gets_its_verdict(void **state)
{
    (void)state;
    assert_int_equal(tsv_each(CASES "cases.tsv", check_verdict, NULL), 116);
}

static void check_tensor_bytes(const struct st_index *ix, const struct st_tensor *t, int fd,
                               const char *sha256)
{
    unsigned char *bytes = malloc(t->bytes + 1);
    char hex[SHA256_HEX];

    assert_non_null(bytes);
    assert_int_equal(pread(fd, bytes, t->bytes, (off_t)(ix->data_start + t->offset)), t->bytes);
    sha256_hex_of(bytes, t->bytes, hex);
    assert_string_equal(hex, sha256);
    free(bytes);
}

static void check_tensor(char *cell[TSV_CELLS], void *arg)
{
    struct st_index ix = {0};
    struct err e = {0};
    int fd = open_case(cell[0]);
    json_t *name = json_parse(cell[1], strlen(cell[1]), &e);
    const struct st_tensor *t;
    char shape[64];

    (void)arg;
    if (!name)
        fail_msg("%s: %s", cell[1], e.msg);
    assert_int_equal(st_index_read(&ix, fd, &e), 0);
    t = st_index_find_n(&ix, json_string_value(name), json_string_length(name));
    if (!t)
        fail_msg("%s has no tensor %s", cell[0], cell[1]);
    assert_string_equal(dtype_name(t->dtype), cell[2]);
    tensor_shape_str(t->ndim, t->shape, shape, sizeof shape);
    assert_string_equal(shape, cell[3]);
    check_tensor_bytes(&ix, t, fd, cell[4]);
    json_decref(name);
    st_index_release(&ix);
    close(fd);
}

static void every_tensor_of_an_accepted_file_has_its_name_shape_and_bytes(void **state)
{
    (void)state;
    assert_int_equal(tsv_each(CASES "tensors.tsv", check_tensor, NULL), 63);
}

static void refuse_with(const char *file, const char *word, const char *name)
{
    struct st_index ix = {0};
    struct err e = {0};
    int fd = open_case(file);

    assert_int_equal(st_index_read(&ix, fd, &e), -1);
    if (!strstr(e.msg, word) || !strstr(e.msg, name))
        fail_msg("%s: \"%s\" does not say %s and %s", file, e.msg, word, name);
    close(fd);
}

static void a_name_that_occurs_twice_is_called_a_duplicate_and_named(void **state)
{
    (void)state;
    refuse_with("st/dup_name_both_spans_needed.safetensors", "duplicate", "\"w\"");
    refuse_with("st/dup_name_last_one_valid.safetensors", "duplicate", "\"w\"");
    refuse_with("st/dup_name_by_escape.safetensors", "duplicate", "\"w\"");
    refuse_with("st/dup_two_metadata.safetensors", "duplicate", "__metadata__");
    refuse_with("st/dup_inner_dtype.safetensors", "duplicate", "dtype");
}

/* The sizes of the cases are claims of up to 2^64 bytes; nothing near that may be asked for. */
static void a_false_size_takes_no_memory(void **state)
{
    static const char *const files[] = {
        "st/len_u64_max.safetensors", "st/len_over_limit.safetensors",
        "st/shape_bigger_than_span.safetensors", "st/len_4gib.safetensors"};
    struct mallinfo2 before = mallinfo2();

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct st_index ix = {0};
        struct err e = {0};
        int fd = open_case(files[i]);

        assert_int_equal(st_index_read(&ix, fd, &e), -1);
        close(fd);
    }
    assert_true(mallinfo2().arena <= before.arena + (1 << 20));
}

static int add(struct st_index *ix, const char *name, enum dtype dtype, int64_t rows,
               int64_t columns)
{
    struct err e = {0};
    int64_t shape[2] = {rows, columns};

    return st_index_add(ix, name, strlen(name), dtype, 2, shape, &e);
}

static void the_canonical_header_sorts_names_and_starts_data_at_a_page(void **state)
{
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
        "\"a.b\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[12,16]},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[16,16]}}";
    struct st_index ix = {0}, back = {0};
    struct buf header = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(add(&ix, "b", DTYPE_F16, 0, 4), 0);
    assert_int_equal(add(&ix, "a.b", DTYPE_F32, 1, 1), 0);
    assert_int_equal(add(&ix, "a", DTYPE_BF16, 2, 3), 0);
    assert_int_equal(st_index_plan(&ix, &header, &e), 0);
    assert_int_equal(header.len, 4096);
    assert_int_equal(ix.data_start, 4096);
    assert_int_equal(ix.data_bytes, 16);
    assert_memory_equal(header.data, "\xf8\x0f\0\0\0\0\0\0", 8);
    assert_memory_equal(header.data + 8, json, strlen(json));
    for (size_t i = 8 + strlen(json); i < header.len; i++)
        assert_int_equal(header.data[i], ' ');
    assert_int_equal(st_index_parse(&back, header.data, header.len, 4096 + 16, &e), 0);
    assert_true(back.canonical);
    st_index_release(&back);
    st_index_release(&ix);
    buf_release(&header);
}

static void a_planned_name_that_occurs_twice_is_refused(void **state)
{
    struct st_index ix = {0};
    struct buf header = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(add(&ix, "a", DTYPE_F16, 1, 4), 0);
    assert_int_equal(add(&ix, "a", DTYPE_F32, 1, 1), 0);
    assert_int_equal(st_index_plan(&ix, &header, &e), -1);
    assert_non_null(strstr(e.msg, "duplicate"));
    st_index_release(&ix);
    buf_release(&header);
}

static void a_header_that_is_one_byte_from_canonical_is_not_canonical(void **state)
{
    struct st_index ix = {0}, back = {0};
    struct buf header = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(add(&ix, "a", DTYPE_F16, 1, 4), 0);
    assert_int_equal(st_index_plan(&ix, &header, &e), 0);
    header.data[header.len - 1] = '\n';
    assert_int_equal(st_index_parse(&back, header.data, header.len, 4096 + 8, &e), 0);
    assert_false(back.canonical);
    st_index_release(&back);
    st_index_release(&ix);
    buf_release(&header);
}

static void metadata_is_kept_in_file_order(void **state)
{
    struct st_index ix = {0};
    struct err e = {0};
    int fd = open_case("st/ok_metadata_many.safetensors");

    (void)state;
    assert_int_equal(st_index_read(&ix, fd, &e), 0);
    assert_int_equal(ix.n_meta, 40);
    assert_true(ix.has_meta);
    st_index_release(&ix);
    close(fd);
}

static void a_folder_or_pipe_is_not_read(void **state)
{
    struct st_index ix = {0};
    struct err e = {0};
    int fd = open("tests", O_RDONLY | O_DIRECTORY), ends[2];

    (void)state;
    assert_int_equal(st_index_read(&ix, fd, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    close(fd);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(st_index_read(&ix, ends[0], &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_of_the_table_gets_its_verdict),
        cmocka_unit_test(every_tensor_of_an_accepted_file_has_its_name_shape_and_bytes),
        cmocka_unit_test(a_name_that_occurs_twice_is_called_a_duplicate_and_named),
        cmocka_unit_test(a_false_size_takes_no_memory),
        cmocka_unit_test(the_canonical_header_sorts_names_and_starts_data_at_a_page),
        cmocka_unit_test(a_planned_name_that_occurs_twice_is_refused),
        cmocka_unit_test(a_header_that_is_one_byte_from_canonical_is_not_canonical),
        cmocka_unit_test(metadata_is_kept_in_file_order),
        cmocka_unit_test(a_folder_or_pipe_is_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
