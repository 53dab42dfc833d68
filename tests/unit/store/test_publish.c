/* Publishing: whole or absent, what stays after a failure, and what is hashed. */
#include "store/scratch.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "store/publish.h"

struct image {
    unsigned char *bytes;
    size_t n;
    size_t fail_at; /* a read that reaches this offset fails; 0: none */
    bool change;    /* every byte is changed right after it was handed out */
    size_t next;    /* where the next read must begin */
};

static struct image make_image(size_t n)
{
    struct image im = {.bytes = malloc(n + 1), .n = n};

    assert_non_null(im.bytes);
    for (size_t i = 0; i < n; i++)
        im.bytes[i] = (unsigned char)(i * 2654435761U >> 7);
    return im;
}

static int read_image(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    struct image *im = arg;

    if (offset != im->next || n == 0 || n > PUBLISH_BLOCK || offset + n > im->n)
        return err_set(e, ERR_ARG, "read out of order");
    im->next = offset + n;
    if (im->fail_at && im->next > im->fail_at)
        return err_set(e, ERR_CANCELLED, "the image went away");
    memcpy(to, im->bytes + offset, n);
    if (im->change)
        memset(im->bytes + offset, 0xee, n);
    return 0;
}

static int write_manifest(void *arg, const char sha[SHA256_HEX], struct buf *out, struct err *e)
{
    (void)e;
    buf_printf(out, "%s %s\n", (const char *)arg, sha);
    return 0;
}

static const struct publish_file companions[] = {{"config.json", "{}\n", 3}, {"empty.txt", "", 0}};
static char manifest_word[] = "weights";

static struct publish_req request(const struct scratch *s, struct image *im, const char *step)
{
    return (struct publish_req){
        .root_fd = s->fd,
        .run_dir = "r1",
        .final_name = step,
        .weights_name = "model.safetensors",
        .weights = {.bytes = (int64_t)im->n, .read = read_image, .arg = im},
        .files = companions,
        .n_files = 2,
        .manifest_name = "manifest.json",
        .manifest = write_manifest,
        .manifest_arg = manifest_word,
        .move_latest = true,
    };
}

static void read_back(const struct scratch *s, const char *name, struct buf *out)
{
    struct err e = {0};

    if (fs_read_file(s->fd, name, FS_LINKS_INSIDE, 1 << 28, out, &e) < 0)
        fail_msg("%s", e.msg);
}

static void expect_latest(const struct scratch *s, const char *step)
{
    char target[64] = "";

    assert_true(readlinkat(s->fd, "r1/latest", target, sizeof target - 1) > 0);
    assert_string_equal(target, step);
}

static void save(const struct scratch *s, const char *step, size_t n)
{
    struct image im = make_image(n);
    struct publish_req req = request(s, &im, step);
    struct publish_result out;
    struct err e = {0};

    if (publish(&req, &out, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(out.stage, PUBLISH_N_STAGES);
    assert_true(out.published && !out.exists);
    free(im.bytes);
}

static void the_files_hold_the_bytes_and_the_hashes_are_theirs(void **state)
{
    struct scratch *s = *state;
    const size_t sizes[] = {
        0, 1, 4095, 4096, 4097, PUBLISH_BLOCK, PUBLISH_BLOCK + 1, 6 * (size_t)PUBLISH_BLOCK + 513};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct image im = make_image(sizes[i]);
        struct publish_req req = request(s, &im, "step-000001");
        struct publish_result out;
        struct buf weights = {0}, manifest = {0};
        struct err e = {0};
        char sha[SHA256_HEX], line[128];

        assert_int_equal(publish(&req, &out, &e), 0);
        read_back(s, "r1/step-000001/model.safetensors", &weights);
        assert_int_equal(weights.len, sizes[i]);
        assert_true(sizes[i] == 0 || memcmp(weights.data, im.bytes, sizes[i]) == 0);
        sha256_hex_of(im.bytes, im.n, sha);
        assert_string_equal(out.weights_sha256, sha);
        read_back(s, "r1/step-000001/manifest.json", &manifest);
        snprintf(line, sizeof line, "weights %s\n", sha);
        assert_string_equal(buf_str(&manifest), line);
        sha256_hex_of(manifest.data, manifest.len, sha);
        assert_string_equal(out.manifest_sha256, sha);
        assert_int_equal(count_entries(s, "r1/step-000001"), 4);
        assert_int_equal(count_entries(s, "r1"), 2);
        assert_int_equal(fs_remove_tree(s->fd, "r1", &e), 0);
        buf_release(&weights);
        buf_release(&manifest);
        free(im.bytes);
    }
}

static void further_streams_are_hashed_and_fail_like_the_first(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(100), more = make_image(PUBLISH_BLOCK + 7);
    struct publish_stream second = {.name = "optimizer.safetensors",
                                    .source = {(int64_t)more.n, read_image, &more}};
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_result out;
    struct buf text = {0};
    struct err e = {0};
    char sha[SHA256_HEX];

    req.more = &second;
    req.n_more = 1;
    assert_int_equal(publish(&req, &out, &e), 0);
    read_back(s, "r1/step-000001/optimizer.safetensors", &text);
    assert_int_equal(text.len, more.n);
    sha256_hex_of(more.bytes, more.n, sha);
    assert_string_equal(second.sha256, sha);
    assert_memory_equal(text.data, more.bytes, more.n);
    im.next = more.next = 0;
    more.fail_at = 4096;
    req.final_name = "step-000002";
    assert_int_equal(publish(&req, &out, &e), -1);
    assert_int_equal(out.stage, PUBLISH_WEIGHTS);
    assert_int_equal(faccessat(s->fd, "r1/step-000002", F_OK, 0), -1);
    buf_release(&text);
    free(im.bytes);
    free(more.bytes);
}

/* More files than are under way at a time, of lengths that do not meet in their blocks. */
static void many_streams_are_each_whole(void **state)
{
    enum { MORE = 4 };
    static const size_t sizes[MORE] = {3 * PUBLISH_BLOCK + 5, 0, PUBLISH_BLOCK - 64, 777};
    struct scratch *s = *state;
    struct image im = make_image(2 * PUBLISH_BLOCK + 63), images[MORE];
    struct publish_stream more[MORE];
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_result out;
    struct err e = {0};
    char names[MORE][8], path[64], sha[SHA256_HEX];

    for (int i = 0; i < MORE; i++) {
        images[i] = make_image(sizes[i]);
        snprintf(names[i], sizeof names[i], "more%d", i);
        more[i] = (struct publish_stream){.name = names[i],
                                          .source = {(int64_t)sizes[i], read_image, &images[i]}};
    }
    req.more = more;
    req.n_more = MORE;
    if (publish(&req, &out, &e) < 0)
        fail_msg("%s", e.msg);
    sha256_hex_of(im.bytes, im.n, sha);
    assert_string_equal(out.weights_sha256, sha);
    for (int i = 0; i < MORE; i++) {
        struct buf text = {0};

        snprintf(path, sizeof path, "r1/step-000001/%s", names[i]);
        read_back(s, path, &text);
        assert_int_equal(text.len, sizes[i]);
        assert_true(sizes[i] == 0 || memcmp(text.data, images[i].bytes, sizes[i]) == 0);
        sha256_hex_of(images[i].bytes, sizes[i], sha);
        assert_string_equal(more[i].sha256, sha);
        buf_release(&text);
        free(images[i].bytes);
    }
    free(im.bytes);
}

/* Whichever fails, early or late, the others are given up and nothing stays. */
static void a_stream_that_fails_ends_the_others(void **state)
{
    struct scratch *s = *state;

    for (int failing = 0; failing < 2; failing++)
        for (size_t at = 0; at < 3 * (size_t)PUBLISH_BLOCK; at += PUBLISH_BLOCK) {
            struct image im = make_image(8 * (size_t)PUBLISH_BLOCK),
                         other = make_image(3 * (size_t)PUBLISH_BLOCK);
            struct publish_stream more = {.name = "more",
                                          .source = {(int64_t)other.n, read_image, &other}};
            struct publish_req req = request(s, &im, "step-000001");
            struct publish_result out;
            struct err e = {0};

            *(failing ? &other.fail_at : &im.fail_at) = at + 1;
            req.more = &more;
            req.n_more = 1;
            assert_int_equal(publish(&req, &out, &e), -1);
            assert_int_equal(out.stage, PUBLISH_WEIGHTS);
            assert_int_equal(count_entries(s, "."), 0);
            free(im.bytes);
            free(other.bytes);
        }
}

static void what_was_hashed_is_what_was_written_though_the_source_changes(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(9 * (size_t)PUBLISH_BLOCK + 77);
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_result out;
    struct buf file = {0};
    struct err e = {0};
    char before[SHA256_HEX], after[SHA256_HEX];

    im.change = true;
    sha256_hex_of(im.bytes, im.n, before);
    assert_int_equal(publish(&req, &out, &e), 0);
    read_back(s, "r1/step-000001/model.safetensors", &file);
    sha256_hex_of(file.data, file.len, after);
    assert_string_equal(out.weights_sha256, after);
    assert_string_equal(out.weights_sha256, before);
    buf_release(&file);
    free(im.bytes);
}

static void latest_is_the_last_saved_not_the_largest(void **state)
{
    struct scratch *s = *state;
    static const char *const steps[] = {"step-000900", "step-001000", "step-999999", "step-1000000",
                                        "step-000050"};

    for (size_t i = 0; i < 5; i++) {
        save(s, steps[i], 10);
        expect_latest(s, steps[i]);
    }
    assert_int_equal(count_entries(s, "r1"), 6);
}

static void modes_are_those_of_readable_files(void **state)
{
    struct scratch *s = *state;
    mode_t mask = umask(022);
    struct stat st;

    save(s, "step-000001", 10);
    umask(mask);
    assert_int_equal(fstatat(s->fd, "r1", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    assert_int_equal(fstatat(s->fd, "r1/step-000001", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    assert_int_equal(fstatat(s->fd, "r1/step-000001/model.safetensors", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    assert_int_equal(fstatat(s->fd, "r1/step-000001/manifest.json", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

/* Publishing fails in `stage`; afterwards the scratch directory has `left` entries. */
static void expect_failure(struct scratch *s, const struct publish_result *out, const struct err *e,
                           enum publish_stage stage, enum err_code code, int left)
{
    if (out->stage != stage || e->code != code)
        fail_msg("stage %s code %d: %s", publish_stage_name(out->stage), e->code, e->msg);
    assert_int_equal(count_entries(s, "."), left);
}

static struct publish_result fails(struct scratch *s, struct publish_req *req,
                                   enum publish_stage stage, enum err_code code, int left)
{
    struct publish_result out;
    struct err e = {0};

    assert_int_equal(publish(req, &out, &e), -1);
    expect_failure(s, &out, &e, stage, code, left);
    return out;
}

static void an_entry_of_any_kind_is_never_replaced(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");

    save(s, "step-000001", 20);
    assert_true(fails(s, &req, PUBLISH_PREPARE, ERR_CONFLICT, 1).exists);
    assert_int_equal(im.next, 0); /* nothing was read for it */
    put_dir(s, "r1/step-000002"); /* an empty directory, which plain rename would replace */
    req.final_name = "step-000002";
    assert_true(fails(s, &req, PUBLISH_PREPARE, ERR_CONFLICT, 1).exists);
    put_link(s, "r1/step-000003", "nowhere");
    req.final_name = "step-000003";
    assert_true(fails(s, &req, PUBLISH_PREPARE, ERR_CONFLICT, 1).exists);
    assert_int_equal(count_entries(s, "r1"), 4);
    expect_latest(s, "step-000001");
    free(im.bytes);
}

static void put_rival(void *arg, enum publish_stage stage, int64_t done, int64_t total)
{
    (void)done, (void)total;
    if (stage == PUBLISH_RENAME)
        put_dir(arg, "r1/step-000001");
}

static void a_race_lost_at_the_rename_is_told_as_taken(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_result out;

    req.progress = put_rival;
    req.progress_arg = s;
    out = fails(s, &req, PUBLISH_RENAME, ERR_CONFLICT, 1);
    assert_true(out.exists && !out.published);
    assert_int_equal(count_entries(s, "r1"), 1);
    free(im.bytes);
}

static void a_source_that_fails_leaves_nothing_behind(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(8 * (size_t)PUBLISH_BLOCK);
    struct publish_req req = request(s, &im, "step-000001");

    im.fail_at = 6 * (size_t)PUBLISH_BLOCK;
    assert_false(fails(s, &req, PUBLISH_WEIGHTS, ERR_CANCELLED, 0).published);
    free(im.bytes);
}

static void a_failure_keeps_a_run_that_was_there_before(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000002");

    save(s, "step-000001", 10);
    im.fail_at = 1;
    fails(s, &req, PUBLISH_WEIGHTS, ERR_CANCELLED, 1);
    assert_int_equal(count_entries(s, "r1"), 2);
    expect_latest(s, "step-000001");
    free(im.bytes);
}

static void a_file_size_limit_fails_the_save_and_the_next_one_works(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(3 * (size_t)PUBLISH_BLOCK);
    struct publish_req req = request(s, &im, "step-000001");
    struct rlimit before, small;

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = PUBLISH_BLOCK;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    fails(s, &req, PUBLISH_WEIGHTS, ERR_SPACE, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    save(s, "step-000001", 10);
    free(im.bytes);
}

static void a_companion_that_cannot_be_written_is_told_by_its_stage(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_file bad = {"model.safetensors", "x", 1};

    req.files = &bad;
    req.n_files = 1;
    fails(s, &req, PUBLISH_COMPANIONS, ERR_CONFLICT, 0);
    free(im.bytes);
}

static void a_name_with_a_slash_leaves_nothing(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_file bad = {"../../escape", "x", 1};

    req.files = &bad;
    req.n_files = 1;
    fails(s, &req, PUBLISH_COMPANIONS, ERR_ARG, 0);
    assert_false(exists(s, "escape"));
    free(im.bytes);
}

static int no_manifest(void *arg, const char sha[SHA256_HEX], struct buf *out, struct err *e)
{
    (void)arg, (void)sha, (void)out;
    return err_set(e, ERR_NOMEM, "no memory");
}

static void a_manifest_that_cannot_be_made_fails_its_stage(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");

    req.manifest = no_manifest;
    fails(s, &req, PUBLISH_MANIFEST, ERR_NOMEM, 0);
    free(im.bytes);
}

static void a_run_that_is_a_link_out_of_the_root_is_not_written(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");

    put_link(s, "r1", "/tmp");
    fails(s, &req, PUBLISH_PREPARE, ERR_ARG, 1);
    free(im.bytes);
}

static void latest_that_cannot_move_leaves_a_published_checkpoint(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(10);
    struct publish_req req = request(s, &im, "step-000001");

    put_dir(s, "r1/latest");
    assert_true(fails(s, &req, PUBLISH_LATEST, ERR_IO, 1).published);
    assert_true(exists(s, "r1/step-000001/manifest.json"));
    assert_int_equal(count_entries(s, "r1"), 2);
    free(im.bytes);
}

struct told {
    int stages[PUBLISH_N_STAGES + 1];
    int n;
    int64_t done;
};

static void note(void *arg, enum publish_stage stage, int64_t done, int64_t total)
{
    struct told *t = arg;

    if (done == 0)
        t->stages[t->n++] = (int)stage;
    else
        assert_int_equal(stage, PUBLISH_WEIGHTS);
    assert_true(done == 0 || done > t->done);
    assert_true(done <= total);
    if (stage == PUBLISH_WEIGHTS)
        t->done = done;
}

static void stages_and_bytes_are_told_in_order(void **state)
{
    static const char *const names[] = {"prepare", "weights", "companions",  "manifest",
                                        "sync",    "rename",  "sync_parent", "latest"};
    struct scratch *s = *state;
    struct image im = make_image(3 * (size_t)PUBLISH_BLOCK + 1);
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_result out;
    struct told told = {0};
    struct err e = {0};

    req.progress = note;
    req.progress_arg = &told;
    assert_int_equal(publish(&req, &out, &e), 0);
    assert_int_equal(told.n, PUBLISH_N_STAGES);
    for (int i = 0; i < PUBLISH_N_STAGES; i++) {
        assert_int_equal(told.stages[i], i);
        assert_string_equal(publish_stage_name((enum publish_stage)i), names[i]);
    }
    assert_int_equal(told.done, im.n);
    free(im.bytes);
}

/* ---- a caller that is bound to one CPU, always or now and then ---- */

static int bind_to_one_cpu(const cpu_set_t *allowed)
{
    cpu_set_t one;
    size_t cpu = 0;

    while (!CPU_ISSET(cpu, allowed))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one);
}

struct mover {
    cpu_set_t allowed;
    int rc;
};

static void bind_now_and_then(void *arg, enum publish_stage stage, int64_t done, int64_t total)
{
    struct mover *m = arg;
    int64_t block = done / PUBLISH_BLOCK;

    (void)total;
    if (stage != PUBLISH_WEIGHTS || done % PUBLISH_BLOCK)
        return;
    if (block % 7 < 3) /* three blocks bound, four free */
        m->rc |= bind_to_one_cpu(&m->allowed);
    else
        m->rc |= sched_setaffinity(0, sizeof m->allowed, &m->allowed);
}

/* By a caller that is bound, and is free again before anything is judged. */
static int publish_bound(struct publish_req *req, bool moves, struct publish_result *out,
                         struct err *e)
{
    struct mover m = {.rc = 0};
    int rc;

    assert_int_equal(sched_getaffinity(0, sizeof m.allowed, &m.allowed), 0);
    req->progress = moves ? bind_now_and_then : NULL;
    req->progress_arg = &m;
    m.rc |= bind_to_one_cpu(&m.allowed);
    rc = publish(req, out, e);
    m.rc |= sched_setaffinity(0, sizeof m.allowed, &m.allowed);
    assert_int_equal(m.rc, 0);
    return rc;
}

static void save_bound(struct scratch *s, bool moves)
{
    struct image im = make_image(40 * (size_t)PUBLISH_BLOCK + 777);
    struct publish_req req = request(s, &im, moves ? "step-000002" : "step-000001");
    struct publish_result out;
    struct buf file = {0};
    struct err e = {0};
    char before[SHA256_HEX], after[SHA256_HEX];

    im.change = true;
    sha256_hex_of(im.bytes, im.n, before);
    assert_int_equal(publish_bound(&req, moves, &out, &e), 0);
    read_back(s, moves ? "r1/step-000002/model.safetensors" : "r1/step-000001/model.safetensors",
              &file);
    sha256_hex_of(file.data, file.len, after);
    assert_string_equal(out.weights_sha256, after);
    assert_string_equal(out.weights_sha256, before);
    buf_release(&file);
    free(im.bytes);
}

static void on_one_cpu_every_byte_is_read_once_and_in_order(void **state)
{
    save_bound(*state, false);
}

static void a_caller_that_moves_between_one_cpu_and_all_writes_the_same(void **state)
{
    save_bound(*state, true);
}

static void on_one_cpu_a_source_that_fails_leaves_nothing_behind(void **state)
{
    struct scratch *s = *state;
    struct image im = make_image(8 * (size_t)PUBLISH_BLOCK);
    struct publish_req req = request(s, &im, "step-000001");
    struct publish_result out;
    struct err e = {0};

    im.fail_at = 6 * (size_t)PUBLISH_BLOCK + 5;
    assert_int_equal(publish_bound(&req, false, &out, &e), -1);
    expect_failure(s, &out, &e, PUBLISH_WEIGHTS, ERR_CANCELLED, 0);
    assert_false(out.published);
    free(im.bytes);
}

struct saver {
    const struct scratch *s;
    int first;
};

static void *save_many(void *arg)
{
    const struct saver *me = arg;
    char step[32];

    for (int i = 0; i < 20; i++) {
        struct image im = make_image(5000);
        struct publish_req req = request(me->s, &im, step);
        struct publish_result out;
        struct err e = {0};
        int rc;

        snprintf(step, sizeof step, "step-%06d", me->first + i);
        im.fail_at = (size_t)i % 2; /* every other one fails, and may remove the empty run */
        rc = publish(&req, &out, &e);
        free(im.bytes);
        if (rc != (i % 2 ? -1 : 0) || out.published == i % 2)
            return arg;
    }
    return NULL;
}

static void two_saves_of_one_run_at_once_do_not_harm_each_other(void **state)
{
    struct scratch *s = *state;
    struct saver a = {s, 0}, b = {s, 100};
    pthread_t ta, tb;
    void *bad;

    pthread_create(&ta, NULL, save_many, &a);
    pthread_create(&tb, NULL, save_many, &b);
    pthread_join(ta, &bad);
    assert_null(bad);
    pthread_join(tb, &bad);
    assert_null(bad);
    assert_int_equal(count_entries(s, "r1"), 21);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(the_files_hold_the_bytes_and_the_hashes_are_theirs),
        SCRATCH_TEST(further_streams_are_hashed_and_fail_like_the_first),
        SCRATCH_TEST(many_streams_are_each_whole),
        SCRATCH_TEST(a_stream_that_fails_ends_the_others),
        SCRATCH_TEST(what_was_hashed_is_what_was_written_though_the_source_changes),
        SCRATCH_TEST(latest_is_the_last_saved_not_the_largest),
        SCRATCH_TEST(modes_are_those_of_readable_files),
        SCRATCH_TEST(an_entry_of_any_kind_is_never_replaced),
        SCRATCH_TEST(a_race_lost_at_the_rename_is_told_as_taken),
        SCRATCH_TEST(a_source_that_fails_leaves_nothing_behind),
        SCRATCH_TEST(a_failure_keeps_a_run_that_was_there_before),
        SCRATCH_TEST(a_file_size_limit_fails_the_save_and_the_next_one_works),
        SCRATCH_TEST(a_companion_that_cannot_be_written_is_told_by_its_stage),
        SCRATCH_TEST(a_name_with_a_slash_leaves_nothing),
        SCRATCH_TEST(a_manifest_that_cannot_be_made_fails_its_stage),
        SCRATCH_TEST(a_run_that_is_a_link_out_of_the_root_is_not_written),
        SCRATCH_TEST(latest_that_cannot_move_leaves_a_published_checkpoint),
        SCRATCH_TEST(stages_and_bytes_are_told_in_order),
        SCRATCH_TEST(on_one_cpu_every_byte_is_read_once_and_in_order),
        SCRATCH_TEST(a_caller_that_moves_between_one_cpu_and_all_writes_the_same),
        SCRATCH_TEST(on_one_cpu_a_source_that_fails_leaves_nothing_behind),
        SCRATCH_TEST(two_saves_of_one_run_at_once_do_not_harm_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
