/* The system calls of a save that make it durable: their order, and what happens when one fails.
 *
 * This program defines fsync, renameat2, renameat, symlinkat and fallocate itself; the linker takes
 * these for the archive's calls. Each is written down, may be told to fail, and goes on to the
 * kernel. */
#include "store/scratch.h"

#include <errno.h>
#include <sys/syscall.h>

#include "base/buf.h"
#include "store/publish.h"

/* What one test watches; cleared by each test's set-up. */
static struct trace {
    struct buf calls;
    const char *fail; /* the line that fails with EIO instead of being done */
    bool failed;
} trace;

/* "r1/.tmp-step-000001-0a1b2c3d-4e5f6071" becomes "r1/.tmp-step-000001-*". */
static void normalise(char *path)
{
    for (char *at = path; (at = strstr(at, "-")); at++)
        if (strspn(at + 1, "0123456789abcdef") == 8 && at[9] == '-' &&
            strspn(at + 10, "0123456789abcdef") == 8) {
            at[1] = '*';
            memmove(at + 2, at + 18, strlen(at + 18) + 1);
        }
}

static void path_of(int dir_fd, const char *name, char out[512])
{
    char link[32], dir[400] = "";
    char *at;

    snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
    assert_true(readlink(link, dir, sizeof dir - 1) > 0);
    at = strchr(dir + strlen("/tmp/"), '/'); /* after the scratch directory */
    snprintf(out, 512, "%s%s%s", at ? at + 1 : "", at && *name ? "/" : "", name);
    if (!*out)
        strcpy(out, "root");
    normalise(out);
}

/* True: the call has to fail. */
static bool record(const char *call, const char *a, const char *b)
{
    char line[1200];
    bool fails;

    snprintf(line, sizeof line, "%s %s%s%s", call, a, *b ? " -> " : "", b);
    buf_printf(&trace.calls, "%s\n", line);
    fails = trace.fail && !trace.failed && strcmp(trace.fail, line) == 0;
    trace.failed |= fails;
    errno = EIO;
    return fails;
}

int fsync(int fd)
{
    char path[512];

    path_of(fd, "", path);
    return record("fsync", path, "") ? -1 : (int)syscall(SYS_fsync, fd);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    char a[512], b[512];

    path_of(from_dir, from, a);
    path_of(to_dir, to, b);
    assert_int_equal(flags, RENAME_NOREPLACE);
    return record("rename", a, b) ? -1
                                  : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    char a[512], b[512];

    path_of(from_dir, from, a);
    path_of(to_dir, to, b);
    return record("replace", a, b) ? -1
                                   : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

int symlinkat(const char *target, int dir, const char *name)
{
    char b[512];

    path_of(dir, name, b);
    return record("link", b, target) ? -1 : (int)syscall(SYS_symlinkat, target, dir, name);
}

int fallocate(int fd, int mode, off_t offset, off_t len)
{
    char path[512];

    path_of(fd, "", path);
    return record("reserve", path, "") ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

static int read_ones(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    (void)arg, (void)offset, (void)e;
    memset(to, 1, n);
    return 0;
}

static int write_manifest(void *arg, const char sha[SHA256_HEX], struct buf *out, struct err *e)
{
    (void)arg, (void)e;
    buf_add_str(out, sha);
    return 0;
}

static int save(const struct scratch *s, const char *step, struct publish_result *out)
{
    static const struct publish_file config = {"config.json", "{}", 2};
    struct publish_req req = {
        .root_fd = s->fd,
        .run_dir = "r1",
        .final_name = step,
        .weights_name = "model.safetensors",
        .weights = {.bytes = 100000, .read = read_ones},
        .files = &config,
        .n_files = 1,
        .manifest_name = "manifest.json",
        .manifest = write_manifest,
        .move_latest = true,
    };
    struct err e = {0};

    return publish(&req, out, &e);
}

static int set_up(void **state)
{
    trace = (struct trace){0};
    return scratch_make(state);
}

static int tear_down(void **state)
{
    buf_release(&trace.calls);
    return scratch_drop(state);
}

static const char first_save[] = "reserve r1/.tmp-step-000001-*/model.safetensors\n"
                                 "fsync r1/.tmp-step-000001-*/model.safetensors\n"
                                 "fsync r1/.tmp-step-000001-*/config.json\n"
                                 "fsync r1/.tmp-step-000001-*/manifest.json\n"
                                 "fsync r1/.tmp-step-000001-*\n"
                                 "rename r1/.tmp-step-000001-* -> r1/step-000001\n"
                                 "fsync r1\n"
                                 "fsync root\n"
                                 "link r1/.tmp-latest-* -> step-000001\n"
                                 "replace r1/.tmp-latest-* -> r1/latest\n"
                                 "fsync r1\n";

static void everything_is_synced_before_the_rename_and_the_name_after_it(void **state)
{
    struct publish_result out;

    assert_int_equal(save(*state, "step-000001", &out), 0);
    assert_string_equal(buf_str(&trace.calls), first_save);
}

static void a_run_that_is_known_needs_no_sync_of_the_root(void **state)
{
    struct publish_result out;

    assert_int_equal(save(*state, "step-000001", &out), 0);
    buf_reset(&trace.calls);
    assert_int_equal(save(*state, "step-000002", &out), 0);
    assert_string_equal(strstr(buf_str(&trace.calls), "rename"),
                        "rename r1/.tmp-step-000002-* -> r1/step-000002\n"
                        "fsync r1\n"
                        "link r1/.tmp-latest-* -> step-000002\n"
                        "replace r1/.tmp-latest-* -> r1/latest\n"
                        "fsync r1\n");
}

static void each_call_that_fails_is_told_by_its_stage_and_leaves_old_or_new(void **state)
{
    static const struct {
        const char *call;
        enum publish_stage stage;
        bool published;
    } rows[] = {
        {"reserve r1/.tmp-step-000001-*/model.safetensors", PUBLISH_WEIGHTS, false},
        {"fsync r1/.tmp-step-000001-*/model.safetensors", PUBLISH_SYNC, false},
        {"fsync r1/.tmp-step-000001-*/config.json", PUBLISH_SYNC, false},
        {"fsync r1/.tmp-step-000001-*/manifest.json", PUBLISH_SYNC, false},
        {"fsync r1/.tmp-step-000001-*", PUBLISH_SYNC, false},
        {"rename r1/.tmp-step-000001-* -> r1/step-000001", PUBLISH_RENAME, false},
        {"fsync r1", PUBLISH_SYNC_PARENT, true},
        {"fsync root", PUBLISH_SYNC_PARENT, true},
        {"link r1/.tmp-latest-* -> step-000001", PUBLISH_LATEST, true},
        {"replace r1/.tmp-latest-* -> r1/latest", PUBLISH_LATEST, true},
    };
    struct scratch *s = *state;
    struct err e = {0};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct publish_result out;

        trace.fail = rows[i].call;
        trace.failed = false;
        assert_int_equal(save(s, "step-000001", &out), -1);
        assert_true(trace.failed);
        if (out.stage != rows[i].stage || out.published != rows[i].published)
            fail_msg("%s: stage %s", rows[i].call, publish_stage_name(out.stage));
        assert_int_equal(exists(s, "r1/step-000001/manifest.json"), rows[i].published);
        assert_int_equal(count_entries(s, "."), rows[i].published);
        if (rows[i].published)
            assert_int_equal(count_entries(s, "r1"), 1);
        assert_int_equal(fs_remove_tree(s->fd, "r1", &e), 0);
    }
}

static void a_failed_sync_is_not_tried_again(void **state)
{
    struct publish_result out;
    const char *sync = "fsync r1/.tmp-step-000001-*/model.safetensors";
    const char *first;

    trace.fail = sync;
    assert_int_equal(save(*state, "step-000001", &out), -1);
    first = strstr(buf_str(&trace.calls), sync);
    assert_non_null(first);
    assert_null(strstr(first + 1, "fsync"));
}

#define ORDER_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ORDER_TEST(everything_is_synced_before_the_rename_and_the_name_after_it),
        ORDER_TEST(a_run_that_is_known_needs_no_sync_of_the_root),
        ORDER_TEST(each_call_that_fails_is_told_by_its_stage_and_leaves_old_or_new),
        ORDER_TEST(a_failed_sync_is_not_tried_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
