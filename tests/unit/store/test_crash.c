/* A process that saves in a loop is killed at random moments. After each kill every step directory
 * is whole, `latest` names one of them, a start cleans the rest, and the step that was lost can be
 * saved. */
#include "store/scratch.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "store/manifest.h"
#include "store/name.h"
#include "store/publish.h"
#include "store/reader.h"
#include "store/roots.h"
#include "store/schema.h"
#include "store/sweep.h"

enum { KILLS = 25, WEIGHTS_BYTES = 2 * PUBLISH_BLOCK + 1234 };

static int read_step(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    (void)offset, (void)e;
    memset(to, *(const int *)arg, n);
    return 0;
}

static int save_step(int root_fd, int step, struct err *e)
{
    char text[256], dir[CKPT_STEP_DIR];
    static const struct publish_file config = {"config.json", "{}", 2};
    struct manifest_draft draft = {.base_model = "org/m", .created_ms = 1795950000000};
    struct publish_req req = {
        .root_fd = root_fd,
        .run_dir = "r1",
        .final_name = dir,
        .weights_name = "model.safetensors",
        .weights = {.bytes = WEIGHTS_BYTES, .read = read_step, .arg = &step},
        .files = &config,
        .n_files = 1,
        .manifest_name = MANIFEST_FILE,
        .manifest = manifest_write,
        .manifest_arg = &draft,
        .move_latest = true,
    };
    struct publish_result out;
    json_t *caller;
    int rc;

    ckpt_step_dir(dir, step);
    snprintf(text, sizeof text,
             "{\"run_id\": \"r1\", \"step\": %d, \"domain\": \"d\", \"signal_source\": \"corpus\", "
             "\"parent\": null, \"optimizer\": {\"name\": \"o\", \"state\": \"fresh\"}}",
             step);
    caller = json_parse(text, strlen(text), e);
    draft.caller = caller;
    rc = publish(&req, &out, e);
    json_decref(caller);
    return rc;
}

static struct roots *start(const struct scratch *s)
{
    struct buf warnings = {0};
    struct err e = {0};
    struct sweep_report report;
    struct roots *r = roots_open(scratch_path(s, "main"), NULL, &warnings, &e);

    if (!r)
        fail_msg("%s", e.msg);
    assert_int_equal(sweep_primary(r, &report, &e), 0);
    assert_int_equal(report.failed, 0);
    return r;
}

/* The child: what a server does, without end. */
static void save_for_ever(const struct scratch *s)
{
    struct roots *r = start(s);
    struct err e = {0};
    int fd = roots_dir(r, ROOTS_PRIMARY, &e);
    bool there = true;
    int step = 0;

    while (there) {
        if (roots_step_exists(r, "r1", ++step, &there, &e) < 0)
            _exit(2);
    }
    for (;; step++)
        if (save_step(fd, step, &e) < 0)
            _exit(3);
}

/* The step directory holds exactly what its manifest says. */
static void check_whole(int run_fd, const char *name, const struct schema *schema)
{
    struct manifest_place place = {.run_id = "r1"};
    struct ckpt_reader *reader;
    struct manifest m;
    struct err e = {0};
    char sha[SHA256_HEX];
    int fd = openat(run_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_true(ckpt_step_dir_parse(name, &place.step));
    if (manifest_read(fd, schema, &place, &m, NULL, &e) != MANIFEST_OK ||
        ckpt_reader_open(fd, "model.safetensors", &reader, &e) != READER_OK)
        fail_msg("%s: %s", name, e.msg);
    assert_int_equal(ckpt_reader_facts(reader)->size, WEIGHTS_BYTES);
    assert_int_equal(ckpt_reader_hash(reader, NULL, NULL, NULL, sha, &e), 0);
    assert_string_equal(sha, m.weights_sha256);
    ckpt_reader_close(reader);
    manifest_release(&m);
    close(fd);
}

/* Looks at what the kill left: number of whole checkpoints; *half counts temporary entries. */
static int check_run(const struct scratch *s, const struct schema *schema, int *half)
{
    char latest[64] = "";
    struct dirent *entry;
    bool latest_there = false;
    int whole = 0;
    int fd = openat(s->fd, "main/r1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d)
        return 0; /* killed before the first save began */
    if (readlinkat(fd, "latest", latest, sizeof latest - 1) < 0)
        latest_there = true; /* none yet: nothing to find */
    while ((entry = readdir(d))) {
        if (strncmp(entry->d_name, "step-", 5) == 0) {
            check_whole(fd, entry->d_name, schema);
            latest_there |= strcmp(entry->d_name, latest) == 0;
            whole++;
        } else if (strncmp(entry->d_name, ".tmp-", 5) == 0) {
            ++*half;
        }
    }
    assert_true(latest_there);
    closedir(d);
    return whole;
}

/* How long to let a child live at most, in microseconds: about three saves on this machine, now. */
static unsigned longest_life(const struct scratch *s)
{
    struct roots *r = start(s);
    struct err e = {0};
    int64_t begin;
    unsigned us;
    int fd = roots_dir(r, ROOTS_PRIMARY, &e);

    begin = clock_mono_ns();
    if (save_step(fd, 1, &e) < 0)
        fail_msg("%s", e.msg);
    us = (unsigned)((clock_mono_ns() - begin) / 1000);
    close(fd);
    roots_close(r);
    return 3 * us + 3000;
}

static void kill_one(const struct scratch *s, unsigned longest, unsigned *seed)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        save_for_ever(s);
        _exit(4);
    }
    usleep((useconds_t)((unsigned)rand_r(seed) % longest));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status))
        fail_msg("the saving process ended by itself with status %d", WEXITSTATUS(status));
}

static void a_kill_at_any_moment_leaves_whole_checkpoints_only(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    struct schema *schema = schema_load(NULL, &e);
    unsigned seed = (unsigned)time(NULL), longest = longest_life(s);
    int whole = 1, half = 0;

    print_message("seed %u\n", seed);
    for (int i = 0; i < KILLS; i++) {
        int now;

        kill_one(s, longest, &seed);
        now = check_run(s, schema, &half);
        assert_true(now >= whole);
        whole = now;
    }
    print_message("%d checkpoints, %d cut short\n", whole, half);
    schema_free(schema);
}

static void a_start_cleans_up_and_the_lost_step_can_be_saved(void **state)
{
    struct scratch *s = *state;
    struct err e = {0};
    struct schema *schema = schema_load(NULL, &e);
    unsigned seed = (unsigned)time(NULL) + 1, longest = longest_life(s);
    int whole = 0, half = 0;
    struct roots *r;
    int fd;

    for (int i = 0; i < KILLS && half == 0; i++) {
        kill_one(s, longest, &seed);
        whole = check_run(s, schema, &half);
    }
    r = start(s);
    half = 0;
    assert_int_equal(check_run(s, schema, &half), whole);
    assert_int_equal(half, 0);
    fd = roots_dir(r, ROOTS_PRIMARY, &e);
    if (save_step(fd, whole + 1, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(check_run(s, schema, &half), whole + 1);
    close(fd);
    roots_close(r);
    schema_free(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(a_kill_at_any_moment_leaves_whole_checkpoints_only),
        SCRATCH_TEST(a_start_cleans_up_and_the_lost_step_can_be_saved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
