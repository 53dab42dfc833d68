/* The fault points of test builds; in a release build they do not exist. */
#include "store/scratch.h"

#include "base/clock.h"
#include "base/faults.h"
#include "store/publish.h"

static int read_ones(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    (void)arg, (void)offset, (void)e;
    memset(to, 1, n);
    return 0;
}

static int save(const struct scratch *s, const char *step, struct faults *f,
                struct publish_result *out)
{
    struct publish_req req = {
        .root_fd = s->fd,
        .run_dir = "r1",
        .final_name = step,
        .weights_name = "model.safetensors",
        .weights = {.bytes = 1000, .read = read_ones},
        .move_latest = true,
        .faults = f,
    };
    struct err e = {0};

    return publish(&req, out, &e);
}

#ifdef CAIRN_FAULTS
static void each_stage_fails_once_when_it_is_asked_to(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};

    for (int i = 0; i < PUBLISH_N_STAGES; i++) {
        struct publish_result out;
        struct faults *f;

        setenv("WEIGHTS_TEST_FAIL", publish_stage_name((enum publish_stage)i), 1);
        f = faults_from_env();
        assert_int_equal(save(s, "step-000001", f, &out), -1);
        assert_int_equal(out.stage, i);
        assert_int_equal(out.published, i > PUBLISH_RENAME);
        assert_int_equal(count_entries(s, "."), i > PUBLISH_RENAME);
        assert_int_equal(save(s, "step-000002", f, &out), 0);
        assert_int_equal(fs_remove_tree(s->fd, "r1", &e), 0);
        faults_free(f);
    }
    unsetenv("WEIGHTS_TEST_FAIL");
}

static void a_write_is_delayed_once(void **state)
{
    struct scratch *s = *state;
    struct publish_result out;
    struct faults *f;
    int64_t start = clock_mono_ns();

    setenv("WEIGHTS_TEST_WRITE_DELAY_MS", "200", 1);
    f = faults_from_env();
    assert_int_equal(save(s, "step-000001", f, &out), 0);
    assert_true(clock_ms_since(start) >= 200);
    faults_free(f);
    unsetenv("WEIGHTS_TEST_WRITE_DELAY_MS");
}

static void counted_points_and_measured_memory_are_read(void **state)
{
    struct faults *f;
    int64_t n = 0;

    (void)state;
    setenv("WEIGHTS_TEST_FAIL", "load_after_bytes:4096", 1);
    setenv("WEIGHTS_TEST_MEM_AVAILABLE", "unknown", 1);
    f = faults_from_env();
    assert_false(faults_take(f, "load_after_bytes"));
    assert_true(faults_take_count(f, "load_after_bytes", &n));
    assert_int_equal(n, 4096);
    assert_false(faults_take_count(f, "load_after_bytes", &n));
    assert_true(faults_mem_available(f, &n));
    assert_int_equal(n, -1);
    faults_free(f);
    unsetenv("WEIGHTS_TEST_FAIL");
    unsetenv("WEIGHTS_TEST_MEM_AVAILABLE");
}
#else
static void a_release_build_reads_no_fault_points(void **state)
{
    struct scratch *s = *state;
    struct publish_result out;
    int64_t n;

    setenv("WEIGHTS_TEST_FAIL", "weights", 1);
    assert_null(faults_from_env());
    assert_int_equal(save(s, "step-000001", faults_from_env(), &out), 0);
    assert_false(faults_mem_available(NULL, &n));
    unsetenv("WEIGHTS_TEST_FAIL");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef CAIRN_FAULTS
        SCRATCH_TEST(each_stage_fails_once_when_it_is_asked_to),
        SCRATCH_TEST(a_write_is_delayed_once),
        SCRATCH_TEST(counted_points_and_measured_memory_are_read),
#else
        SCRATCH_TEST(a_release_build_reads_no_fault_points),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
