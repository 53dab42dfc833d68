/* What the tests of service/ share: a whole service over a tiny model, in a directory of its own,
 * without HTTP. */
#ifndef SERVICE_TEST_H
#define SERVICE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "db/db.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/image_bank.h"
#include "engine/served.h"
#include "kernels/kernels.h"
#include "service/identity.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/service.h"
#include "service/state.h"
#include "service/tokens.h"
#include "service/weights.h"
#include "store/catalogue.h"
#include "store/roots.h"
#include "store/schema.h"
#include "tensor/weights.h"
#include "text/chat_template.h"

#define TRAINER    "Bearer trainer-token-1234"
#define OPERATOR   "Bearer operator-token-1234"
#define TINY       "tests/vectors/models/tiny-llama"
#define TINY_OTHER "tests/vectors/models/tiny-qwen2"

struct fixture {
    char dir[64];
    struct settings set;
    struct engine *engine;
    struct db *db;
    struct roots *roots;
    struct schema *schema;
    struct chat_worker *chat;
    struct faults *faults;
    struct tokens *tokens;
    struct service *s;
    char attachment[64];
    struct refusal r;
    json_t *data;
};

static inline struct settings test_settings(void)
{
    return (struct settings){.host = "127.0.0.1",
                             .read_roots = "",
                             .model_cache_dir = "/nonexistent",
                             .save_free_space_factor = 1.1,
                             .lineage_max_depth = 100,
                             .quiesce_max_hold_s = 60,
                             .commit_watchdog_s = 60,
                             .heartbeat_timeout_s = 60,
                             .drain_timeout_s = 10,
                             .hold_request_timeout_s = 60,
                             .graceful_unload_timeout_s = 10,
                             .shm_mode = 0600,
                             .load_prefetch = true,
                             .max_concurrent = 4,
                             .max_pending = 16,
                             .continuous_batching = true,
                             .max_images = 3,
                             .retry_load_s = 15,
                             .retry_torn_s = 30};
}

static inline void fixture_build(struct fixture *f)
{
    struct engine_config c = {.n_threads = 2,
                              .kernels = kernels_pick(false),
                              .max_running = 4,
                              .max_waiting = 16,
                              .kv_bytes = 8 << 20,
                              .max_images = 3,
                              .hold_timeout_ms = 60000};
    struct err e = {0};
    struct buf warnings = {0};

    f->engine = engine_start(&c, &e);
    assert_non_null(f->engine);
    f->db = db_open(":memory:", &e);
    assert_non_null(f->db);
    f->roots = roots_open(f->dir, f->set.read_roots, &warnings, &e);
    assert_non_null(f->roots);
    buf_release(&warnings);
    f->schema = schema_load(f->set.schema_file, &e);
    f->chat = chat_worker_new(&e);
    f->faults = faults_from_env();
    f->tokens =
        tokens_parse("trainer:forge:trainer-token-1234,operator:ops:operator-token-1234", &e);
    assert_non_null(f->tokens);
    f->s = service_open(&(struct service_parts){.settings = &f->set,
                                                .engine = f->engine,
                                                .db = f->db,
                                                .roots = f->roots,
                                                .schema = f->schema,
                                                .chat = f->chat,
                                                .faults = f->faults,
                                                .tokens = f->tokens},
                        &e);
    assert_non_null(f->s);
}

/* The settings may be changed through `tune` before anything is built. */
static inline struct fixture *fixture_new(void (*tune)(struct settings *))
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    log_setup(LOG_ERROR, false);
    strcpy(f->dir, "/tmp/cairn-service-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->set = test_settings();
    f->set.checkpoint_dir = f->dir;
    if (tune)
        tune(&f->set);
    fixture_build(f);
    return f;
}

static inline void fixture_free(struct fixture *f)
{
    struct err e = {0};
    int top = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    refusal_clear(&f->r);
    json_decref(f->data);
    service_close(f->s);
    engine_stop(f->engine);
    chat_worker_free(f->chat);
    schema_free(f->schema);
    roots_close(f->roots);
    db_close(f->db);
    tokens_free(f->tokens);
    faults_free(f->faults);
    assert_int_equal(fs_remove_tree(top, strrchr(f->dir, '/') + 1, &e), 0);
    close(top);
    free(f);
}

/* ---- calls ---- */

static inline int call(struct fixture *f, weights_route_fn *route, const char *token,
                       const char *attachment, json_t *body)
{
    struct weights_req req = {.authorization = token,
                              .attachment = attachment,
                              .request_id = "test",
                              .client_addr = "127.0.0.1:1",
                              .body = body};
    int rc;

    refusal_clear(&f->r);
    json_decref(f->data);
    f->data = NULL;
    rc = route(f->s, &req, &f->data, &f->r);
    json_decref(body);
    return rc;
}

/* The holder's call. */
static inline int hold(struct fixture *f, weights_route_fn *route)
{
    return call(f, route, TRAINER, f->attachment, json_object());
}

#define GRANTED(f, expression)                                                  \
    do {                                                                        \
        if ((expression) < 0)                                                   \
            fail_msg("%s: %s", refusal_wire_code((f)->r.code), (f)->r.message); \
    } while (0)

#define REFUSED(f, expression, name)                                \
    do {                                                            \
        assert_int_equal(expression, -1);                           \
        assert_string_equal(refusal_wire_code((f)->r.code), #name); \
    } while (0)

static inline const char *detail(const struct fixture *f, const char *key)
{
    const char *s = json_string_value(json_object_get(f->r.details, key));

    return s ? s : "";
}

static inline int64_t number(const struct fixture *f, const char *key)
{
    return json_integer_value(json_object_get(f->data, key));
}

static inline const char *text(const struct fixture *f, const char *key)
{
    const char *s = json_string_value(json_object_get(f->data, key));

    return s ? s : "";
}

/* Registers a directory and loads it; its row. */
static inline int64_t load_model(struct fixture *f, const char *dir)
{
    char real[PATH_MAX];
    json_t *body, *data = NULL;
    int64_t id;
    char which[32];

    assert_non_null(realpath(dir, real));
    body = json_pack("{s:s, s:s}", "source", "local", "local_path", real);
    GRANTED(f, models_register(f->s, body, NULL, &data, &f->r));
    id = json_integer_value(json_object_get(data, "id"));
    snprintf(which, sizeof which, "%lld", (long long)id);
    GRANTED(f, models_auto_load(f->s, which, &f->r));
    json_decref(body);
    json_decref(data);
    return id;
}

static inline void attach(struct fixture *f)
{
    GRANTED(f, call(f, weights_attach, TRAINER, NULL, json_object()));
    snprintf(f->attachment, sizeof f->attachment, "%s", text(f, "attachment_id"));
}

/* A commit that adds `step` to one byte of every weight's low half. */
static inline void commit(struct fixture *f, unsigned char step)
{
    GRANTED(f, hold(f, weights_quiesce));
    GRANTED(f, hold(f, weights_commit_begin));
    struct image *im = engine_peek_image(f->engine);

    for (size_t i = im->weights->data_start; i < im->weights->bytes; i += 2)
        im->weights->base[i] ^= step;
    image_unref(im);
    GRANTED(f, hold(f, weights_commit_end));
    GRANTED(f, hold(f, weights_resume));
}

static inline json_t *manifest(const char *run, int64_t step, const char *parent)
{
    return json_pack("{s:{s:s, s:I, s:s, s:s, s:s?, s:{s:s, s:s}}}", "manifest", "run_id", run,
                     "step", (json_int_t)step, "domain", "tests", "signal_source", "corpus",
                     "parent", parent, "optimizer", "name", "adamw", "state", "fresh");
}

static inline int save(struct fixture *f, const char *run, int64_t step, const char *parent)
{
    return call(f, weights_save, TRAINER, f->attachment, manifest(run, step, parent));
}

static inline const char *condition_now(struct fixture *f)
{
    struct weights_state w;

    state_read(f->s, &w, NULL);
    return condition_name(w.condition);
}

static inline void served_name(struct fixture *f, char out[SERVED_NAME_MAX])
{
    struct served *served = engine_peek_served(f->engine);

    strcpy(out, served ? served->name : "");
    served_unref(served);
}

static inline void weights_digest(struct fixture *f, char out[SHA256_HEX])
{
    struct image *im = engine_peek_image(f->engine);

    sha256_hex_of(im->weights->base, im->weights->bytes, out);
    image_unref(im);
}

static inline void wait_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Waits for a timer of the server, up to ten seconds. */
static inline bool wait_until(struct fixture *f, bool (*met)(const struct weights_state *w))
{
    struct weights_state w;

    for (int i = 0; i < 1000; i++) {
        state_read(f->s, &w, NULL);
        if (met(&w))
            return true;
        wait_ms(10);
    }
    return false;
}

static inline int setup_plain(void **state)
{
    *state = fixture_new(NULL);
    return 0;
}

static inline int teardown(void **state)
{
    fixture_free(*state);
    return 0;
}

#define SERVICE_TEST(name) cmocka_unit_test_setup_teardown(name, setup_plain, teardown)
#endif
