/* Every allocation of the store fails once, ours and those of the JSON library: each time one clean
 * error, nothing leaked, nothing left behind. The program is linked with malloc and its siblings
 * wrapped (Makefile). */
#include "store/scratch.h"

#include "base/buf.h"
#include "base/json.h"
#include "db/db.h"
#include "no_memory.h"
#include "store/catalogue.h"
#include "store/lineage.h"
#include "store/manifest.h"
#include "store/publish.h"
#include "store/reader.h"
#include "store/resolve.h"
#include "store/roots.h"
#include "store/schema.h"

/* What the attempts work on; made before anything fails. */
struct world {
    struct scratch *s;
    struct roots *roots;
    struct schema *schema;
    struct db *db;
    json_t *caller;
};

static struct world make_world(struct scratch *s)
{
    static const char text[] =
        "{\"run_id\": \"r9\", \"step\": 5, \"domain\": \"d\", \"signal_source\": \"corpus\", "
        "\"parent\": null, \"optimizer\": {\"name\": \"o\", \"state\": \"fresh\"}, "
        "\"test\": {\"set\": \"s\", \"score\": 0.5, \"n\": 1.0}}";
    struct world w = {.s = s};
    struct buf warnings = {0};
    struct err e = {0};

    put_checkpoint(s, "main", "b", "r1", 1, NULL);
    put_checkpoint(s, "main", "b", "r1", 2, "b:r1:step-1");
    put_link(s, "main/r1/latest", "step-000002");
    w.roots = roots_open(scratch_path(s, "main"), NULL, &warnings, &e);
    w.schema = schema_load(NULL, &e);
    w.db = db_open(":memory:", &e);
    w.caller = json_parse(text, sizeof text - 1, &e);
    assert_true(w.roots && w.schema && w.db && w.caller);
    return w;
}

static void drop_world(struct world *w)
{
    json_decref(w->caller);
    db_close(w->db);
    schema_free(w->schema);
    roots_close(w->roots);
}

/* ---- attempts ---- */

static int load_schema(struct world *w, struct err *e)
{
    struct schema *s = schema_load("docs/schemas/checkpoint-manifest-v1.json", e);
    int rc = 0;

    (void)w;
    if (!s)
        return -1;
    if (schema_problem(s)) /* no memory for the comparison: unusable, and it says so */
        rc = err_set(e, ERR_NOMEM, "%s", schema_problem(s));
    schema_free(s);
    return rc;
}

static int check_caller(struct world *w, struct err *e)
{
    static const char bad[] =
        "{\"a\": 1, \"step\": -1, \"name\": 5, \"optimizer\": {\"state\": 7}}";
    json_t *v = json_parse(bad, sizeof bad - 1, e);
    json_t *errors = v ? schema_check(w->schema, v, SCHEMA_CALLER, e) : NULL;
    json_t *fields = errors ? schema_server_fields(w->schema, v, e) : NULL;
    int rc = fields ? 0 : -1;

    if (rc == 0)
        assert_int_equal(json_array_size(errors), 8);
    json_decref(v);
    json_decref(errors);
    json_decref(fields);
    return rc;
}

static int write_and_read(struct world *w, struct err *e)
{
    struct manifest_draft draft = {.caller = w->caller, .base_model = "b", .created_ms = 1};
    struct buf text = {0};
    struct manifest m = {0};
    int rc = manifest_write(
        &draft, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", &text, e);

    if (rc == 0 && manifest_parse(text.data, text.len, w->schema, NULL, &m, NULL, e) != MANIFEST_OK)
        rc = -1;
    manifest_release(&m);
    buf_release(&text);
    return rc;
}

static int write_entry(void *arg, const struct lineage_entry *entry, struct err *e)
{
    lineage_write_entry(arg, entry);
    return ((struct buf *)arg)->failed ? err_nomem(e) : 0;
}

static int walk_lineage(struct world *w, struct err *e)
{
    struct lineage_end end;
    struct buf text = {0};
    int rc = lineage_walk(w->roots, w->schema, "b:r1:step-2", 10, write_entry, &text, &end, e);

    buf_release(&text);
    if (rc == 0 && end.reason != LINEAGE_COMPLETE) /* the JSON library had no memory */
        rc = err_set(e, ERR_NOMEM, "the walk broke off");
    if (end.depth == 2)
        assert_int_equal(end.reason, LINEAGE_COMPLETE);
    lineage_end_release(&end);
    return rc;
}

static int resolve_latest(struct world *w, struct err *e)
{
    struct resolved r;
    int rc = resolve_path(w->roots, "r1/latest", 9, &r, e) == RESOLVE_OK ? 0 : -1;

    resolved_release(&r);
    return rc;
}

static int open_roots(struct world *w, struct err *e)
{
    struct buf warnings = {0};
    struct roots *r =
        roots_open(scratch_path(w->s, "second"), scratch_path(w->s, "none"), &warnings, e);

    roots_close(r);
    buf_release(&warnings);
    return r ? 0 : -1;
}

static int read_ones(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    (void)arg, (void)offset, (void)e;
    memset(to, 1, n);
    return 0;
}

static int publish_one(struct world *w, struct err *e)
{
    struct manifest_draft draft = {.caller = w->caller, .base_model = "b", .created_ms = 1};
    struct publish_req req = {
        .root_fd = w->s->fd,
        .run_dir = "r9",
        .final_name = "step-000005",
        .weights_name = "model.safetensors",
        .weights = {.bytes = 5000, .read = read_ones},
        .manifest_name = MANIFEST_FILE,
        .manifest = manifest_write,
        .manifest_arg = &draft,
        .move_latest = true,
    };
    struct publish_result out;
    struct err ignored = {0};
    int rc = publish(&req, &out, e);

    assert_int_equal(out.published, rc == 0);
    assert_int_equal(exists(w->s, "r9"), rc == 0);
    fs_remove_tree(w->s->fd, "r9/step-000005", &ignored);
    unlinkat(w->s->fd, "r9/latest", 0);
    unlinkat(w->s->fd, "r9", AT_REMOVEDIR);
    return rc;
}

static int read_weights(struct world *w, struct err *e)
{
    struct ckpt_reader *r = NULL;
    char sha[SHA256_HEX];
    int fd = openat(w->s->fd, "main/r1/step-000001", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = ckpt_reader_open(fd, "model.safetensors", &r, e) == READER_OK ? 0 : -1;

    if (rc == 0)
        rc = ckpt_reader_hash(r, NULL, NULL, NULL, sha, e);
    ckpt_reader_close(r);
    close(fd);
    return rc;
}

static int list_rows(struct world *w, struct err *e)
{
    struct model_row *rows = NULL;
    struct model_row one = {0};
    bool ordinary;
    int64_t id;
    int rc, n = 0;

    rc = catalogue_carrier(w->db, "b:r1:step-1", "/c/r1/step-000001", false, &id, &ordinary, e);
    if (rc == 0)
        rc = catalogue_list(w->db, &rows, &n, e);
    if (rc == 0)
        rc = catalogue_get_by_name(w->db, "b:r1:step-1", &one, e);
    if (rc == 0)
        assert_int_equal(n, 1);
    model_row_release(&one);
    catalogue_list_release(rows, n);
    return rc;
}

static int (*const attempts[])(struct world *w, struct err *e) = {
    load_schema, check_caller, write_and_read, walk_lineage, resolve_latest,
    open_roots,  publish_one,  read_weights,   list_rows};

/* Lets the first, the second, ... allocation fail until the attempt gets through; `exact`: an
 * attempt that failed says that memory ran out. Returns how many allocations there were. */
static long walk(struct world *w, size_t which, bool exact)
{
    for (long n = 0;; n++) {
        struct err e = {0};
        bool reached;
        int rc;

        until_failure = n;
        rc = attempts[which](w, &e);
        reached = until_failure < 0;
        until_failure = -1;
        if (!reached) {
            if (rc < 0)
                fail_msg("%s", e.msg);
            return n;
        }
        if (rc < 0 && (!e.msg[0] || (exact && e.code != ERR_NOMEM)))
            fail_msg("attempt %zu, allocation %ld: %d \"%s\"", which, n, e.code, e.msg);
        assert_true(n < 100000);
    }
}

static void each_allocation_of_ours_may_fail(void **state)
{
    struct world w = make_world(*state);
    long total = 0;

    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++)
        total += walk(&w, i, true);
    print_message("%ld allocations\n", total);
    assert_true(total >= 20);
    drop_world(&w);
}

static void each_allocation_of_the_json_library_may_fail(void **state)
{
    struct world w = make_world(*state);
    long total = 0;

    json_set_alloc_funcs(__wrap_malloc, free);
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++)
        total += walk(&w, i, false);
    json_set_alloc_funcs(malloc, free);
    print_message("%ld allocations\n", total);
    assert_true(total >= 500);
    drop_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(each_allocation_of_ours_may_fail),
        SCRATCH_TEST(each_allocation_of_the_json_library_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
