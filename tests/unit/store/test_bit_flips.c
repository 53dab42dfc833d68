/* No single bit of a checkpoint's weights can change without the verified read noticing it.
 *
 * A 64 KB checkpoint is published, then each bit is flipped and flipped back. CRASH_MATRIX=full
 * takes all 524,288 bits; otherwise every bit of every 127th byte and of the first and last 128
 * bytes. */
#include "store/scratch.h"

#include "base/buf.h"
#include "base/json.h"
#include "store/manifest.h"
#include "store/publish.h"
#include "store/reader.h"
#include "store/schema.h"

enum { BYTES = 64 << 10, EDGE = 128, EVERY = 127 };

static int read_pattern(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    unsigned char *bytes = to;

    (void)arg, (void)e;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)((offset + i) * 2246822519U >> 11);
    return 0;
}

static void publish_checkpoint(const struct scratch *s)
{
    static const char text[] = "{\"run_id\": \"r\", \"step\": 1, \"domain\": \"d\", "
                               "\"signal_source\": \"corpus\", \"parent\": null, "
                               "\"optimizer\": {\"name\": \"o\", \"state\": \"fresh\"}}";
    struct err e = {0};
    struct manifest_draft draft = {.caller = json_parse(text, strlen(text), &e),
                                   .base_model = "m",
                                   .created_ms = 1795950000000};
    struct publish_req req = {
        .root_fd = s->fd,
        .run_dir = "r",
        .final_name = "step-000001",
        .weights_name = "model.safetensors",
        .weights = {.bytes = BYTES, .read = read_pattern},
        .manifest_name = MANIFEST_FILE,
        .manifest = manifest_write,
        .manifest_arg = &draft,
    };
    struct publish_result out;

    if (publish(&req, &out, &e) < 0)
        fail_msg("%s", e.msg);
    json_decref((json_t *)(uintptr_t)draft.caller);
}

/* What a load compares: the hash of what it read, and the manifest's. */
static bool is_accepted(int dir_fd, const char *expected)
{
    struct ckpt_reader *r = NULL;
    struct err e = {0};
    char sha256[SHA256_HEX];

    if (ckpt_reader_open(dir_fd, "model.safetensors", &r, &e) != READER_OK ||
        ckpt_reader_hash(r, NULL, NULL, NULL, sha256, &e) < 0)
        fail_msg("%s", e.msg);
    ckpt_reader_close(r);
    return strcmp(sha256, expected) == 0;
}

static void flip(int fd, size_t at, unsigned char mask)
{
    unsigned char byte;

    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
}

static bool is_chosen(size_t at)
{
    const char *how = getenv("CRASH_MATRIX");

    return (how && strcmp(how, "full") == 0) || at % EVERY == 0 || at < EDGE || at >= BYTES - EDGE;
}

static void a_flipped_bit_is_refused_wherever_it_is(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    struct schema *schema = schema_load(NULL, &e);
    struct manifest m = {0};
    int flips = 0, dir_fd, fd;

    publish_checkpoint(s);
    dir_fd = openat(s->fd, "r/step-000001", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = openat(dir_fd, "model.safetensors", O_RDWR | O_CLOEXEC);
    assert_true(dir_fd >= 0 && fd >= 0);
    assert_int_equal(manifest_read(dir_fd, schema, NULL, &m, NULL, &e), MANIFEST_OK);
    assert_true(is_accepted(dir_fd, m.weights_sha256));
    for (size_t at = 0; at < BYTES; at++)
        for (int bit = 0; bit < 8 && is_chosen(at); bit++, flips++) {
            flip(fd, at, (unsigned char)(1 << bit));
            if (is_accepted(dir_fd, m.weights_sha256))
                fail_msg("bit %d of byte %zu was not noticed", bit, at);
            flip(fd, at, (unsigned char)(1 << bit));
        }
    assert_true(is_accepted(dir_fd, m.weights_sha256));
    print_message("%d bits\n", flips);
    manifest_release(&m);
    schema_free(schema);
    close(fd);
    close(dir_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_flipped_bit_is_refused_wherever_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
