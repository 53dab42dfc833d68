#include "daemon/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api.h"
#include "api/openai/batch_row.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "base/version.h"
#include "cli/cli.h"
#include "daemon/config.h"
#include "daemon/state_dir.h"
#include "daemon/stop_watch.h"
#include "db/db.h"
#include "engine/engine.h"
#include "http/server.h"
#include "kernels/kernels.h"
#include "service/batches.h"
#include "service/models.h"
#include "service/refusal.h"
#include "service/service.h"
#include "store/catalogue.h"
#include "store/relink.h"
#include "store/roots.h"
#include "store/schema.h"
#include "store/sweep.h"
#include "text/chat_template.h"

enum {
    STOP_GRACE_MS = 5000,
    SPARE_HANDLERS = 64,
    STAND_BACK_MS = 1000, /* docs/decisions/0024-standing-back.md */
};

/* Every part, in the order in which they are made; taken down in the opposite one. */
struct daemon {
    struct config config;
    struct faults *faults;
    int state_lock, weaver_lock;
    struct db *db;
    struct roots *roots;
    struct schema *schema;
    struct engine *engine;
    struct chat_worker *chat;
    struct service *service;
    struct api api;
    struct http_server *http;
    struct stop_watch watch; /* a signal may come while the first model is loaded */
};

/* ---- the parts ---- */

static int open_catalogue(struct daemon *d, struct err *e)
{
    struct buf path = {0};

    d->state_lock = state_dir_open(d->config.settings.state_dir, e);
    if (d->state_lock < 0)
        return -1;
    d->weaver_lock = weaver_dir_open(d->config.settings.weaver_dir, e);
    if (d->weaver_lock < 0)
        return -1;
    buf_printf(&path, "%s/cairn.db", d->config.settings.state_dir);
    d->db = db_open(buf_str(&path), e);
    buf_release(&path);
    return d->db ? catalogue_start(d->db, e) : -1;
}

static void log_lines(const char *event, const char *text)
{
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");

        log_ev(LOG_WARNING, event, "cause=\"%.*s\"", (int)n, line);
        line += line[n] ? n + 1 : n;
    }
}

static int relink_runs(struct daemon *d, struct err *e)
{
    struct relink_report report;

    if (relink_primary(d->roots, d->schema, &report, e) < 0)
        return -1;
    if (report.made || report.failed)
        log_ev(report.failed ? LOG_WARNING : LOG_INFO, "checkpoint_relink",
               "made=%d failed=%d cause=\"%s\"", report.made, report.failed, report.why);
    return 0;
}

static int open_store(struct daemon *d, struct err *e)
{
    struct sweep_report report = {0};
    struct buf warnings = {0};

    d->roots =
        roots_open(d->config.settings.checkpoint_dir, d->config.settings.read_roots, &warnings, e);
    log_lines("checkpoint_roots", buf_str(&warnings));
    buf_release(&warnings);
    if (!d->roots || sweep_primary(d->roots, &report, e) < 0)
        return -1;
    if (report.removed || report.emptied || report.failed)
        log_ev(report.failed ? LOG_WARNING : LOG_INFO, "checkpoint_sweep",
               "removed=%d emptied=%d failed=%d cause=\"%s\"", report.removed, report.emptied,
               report.failed, report.why);
    d->schema = schema_load(d->config.settings.schema_file, e);
    if (d->schema && schema_problem(d->schema))
        log_ev(LOG_ERROR, "schema_ownership", "problem=\"%s\"", schema_problem(d->schema));
    return d->schema ? relink_runs(d, e) : -1;
}

static void log_slow_step(void *arg, const struct engine_slow_step *s)
{
    (void)arg;
    log_ev(LOG_WARNING, "slow_step",
           "took_ms=%.0f expected_ms=%.0f decode_rows=%d prompt_rows=%d page_faults=%ld "
           "preempted=%ld",
           s->ms, s->expected_ms, s->decode_rows, s->prefill_rows, s->page_faults, s->switches);
}

static int start_engine(struct daemon *d, struct err *e)
{
    const struct settings *s = &d->config.settings;
    struct engine_config c = {
        .n_threads = s->threads,
        .kernels = *s->kernels ? kernels_by_name(s->kernels) : kernels_pick(s->fast_numerics),
        .max_running = s->max_concurrent,
        .max_waiting = s->max_pending,
        .slot_times = s->queue_duration_window,
        .kv_bytes = (size_t)s->kv_mb << 20,
        .max_images = s->max_images,
        .hold_timeout_ms = (int64_t)(s->hold_request_timeout_s * 1000),
        .stand_back_ms = STAND_BACK_MS,
        .train_share = s->train_share,
        .background_share = s->background_share,
        .on_slow_step = log_slow_step,
    };

    d->engine = engine_start(&c, e);
    return d->engine ? 0 : -1;
}

static int open_service(struct daemon *d, struct err *e)
{
    struct service_parts parts = {.settings = &d->config.settings,
                                  .engine = d->engine,
                                  .db = d->db,
                                  .roots = d->roots,
                                  .schema = d->schema,
                                  .faults = d->faults,
                                  .tokens = d->config.tokens,
                                  .keys = d->config.keys,
                                  .cut = &d->watch.cut};

    parts.chat = d->chat = chat_worker_new(e);
    if (!d->chat)
        return -1;
    d->service = service_open(&parts, e);
    return d->service ? 0 : -1;
}

static int start_http(struct daemon *d, struct err *e)
{
    const struct settings *s = &d->config.settings;
    struct http_config c = {
        .host = s->host,
        .port = (uint16_t)s->port,
        .cors_origins = s->cors_origins,
        .cors_expose = "X-miLLM-Model, X-miLLM-Ignored-Fields, X-miLLM-Adapter, X-Request-ID, "
                       "Retry-After",
        .hosts = s->allowed_hosts,
        .handler = api_handle,
        .limit = api_limit,
        .refuse = api_refuse,
        .arg = &d->api,
        .spool_dir = s->state_dir,
        .retry_after_s = s->retry_fallback_s,
        /* Held requests keep their threads; those who let them go need some, too. */
        .max_threads = s->max_concurrent + s->max_pending + SPARE_HANDLERS,
    };

    d->api = (struct api){.service = d->service, .version = CAIRN_VERSION};
    d->http = http_server_start(&c, e);
    if (!d->http && e->code == ERR_ARG)
        err_wrap(e, "HOST");
    return d->http ? 0 : -1;
}

static int build(struct daemon *d, struct err *e)
{
    if (open_catalogue(d, e) < 0 || open_store(d, e) < 0 || start_engine(d, e) < 0 ||
        open_service(d, e) < 0)
        return -1;
    return start_http(d, e);
}

static void take_down(struct daemon *d)
{
    log_end_waits();
    service_stop(d->service);
    if (d->http)
        http_server_stop(d->http, STOP_GRACE_MS);
    service_close(d->service);
    if (d->engine)
        engine_stop(d->engine);
    chat_worker_free(d->chat);
    schema_free(d->schema);
    roots_close(d->roots);
    db_close(d->db);
    fs_close(d->weaver_lock);
    fs_close(d->state_lock);
    faults_free(d->faults);
    config_release(&d->config);
}

/* ---- the first model ---- */

static const char *register_dir(struct daemon *d, const char *path, char id[32], struct refusal *r)
{
    struct model_row row = {0};
    char real[PATH_MAX];
    json_t *body, *data = NULL;
    struct err e = {0};
    int64_t found = 0;

    if (!realpath(path, real))
        return path;
    if (catalogue_get_by_path(d->db, real, &row, &e) == 0) {
        found = row.id;
    } else {
        body = json_pack("{s:s, s:s}", "source", "local", "local_path", real);
        if (models_register(d->service, body, NULL, &data, r) == 0)
            found = json_integer_value(json_object_get(data, "id"));
        json_decref(body);
        json_decref(data);
    }
    model_row_release(&row);
    snprintf(id, 32, "%" PRId64, found);
    return found ? id : NULL;
}

/* A model that cannot be loaded does not stop the server: the reason is in the log and in the row.
 */
static void load_first_model(struct daemon *d)
{
    const char *which = d->config.model ? d->config.model : d->config.settings.auto_load;
    struct refusal r = {0};
    struct stat st;
    char id[32];

    if (!which)
        return;
    if (d->config.model && stat(which, &st) == 0 && S_ISDIR(st.st_mode))
        which = register_dir(d, which, id, &r);
    if (!which || models_auto_load(d->service, which, &r) < 0)
        log_ev(LOG_ERROR, "auto_load_failed", "code=%s cause=\"%s\"", refusal_wire_code(r.code),
               r.message);
    refusal_clear(&r);
}

/* ---- running ---- */

/* Batches go on only when the model that they may belong to had its chance. */
static int start_work(struct daemon *d, struct err *e)
{
    load_first_model(d);
    return batches_start(d->service->batches, openai_batch_row, &d->api, e);
}

static void say_where(const struct daemon *d, bool json, FILE *out)
{
    const char *host = d->config.settings.host;
    bool six = strchr(host, ':') != NULL;

    fprintf(out, "%shttp://%s%s%s:%d%s\n", json ? "{\"listening\": \"" : "listening on ",
            six ? "[" : "", host, six ? "]" : "", http_server_port(d->http), json ? "\"}" : "");
    if (fflush(out) != 0) /* nobody has to listen to it */
        __fpurge(out);
    clearerr(out);
}

static void begin_stop(void *arg)
{
    service_stop_loads(((struct daemon *)arg)->service);
}

static int start_watch(struct daemon *d, struct err *e)
{
    d->watch.begin = begin_stop;
    d->watch.arg = d;
    d->watch.patience_s = d->config.settings.stop_s;
    return stop_watch_start(&d->watch, e);
}

static void setup_log(const struct config *c, struct buf *warnings)
{
    log_setup(c->log_level, c->log_json);
    log_lines("configuration", buf_str(warnings));
}

static int apply_options(struct config *c, const struct serve_options *o, struct err *e)
{
    struct settings *s = &c->settings;

    if (o->port != CLI_UNSET && (o->port < 0 || o->port > 65535))
        return err_set(e, ERR_ARG, "--port must be from 0 to 65535");
    if (o->threads != CLI_UNSET && (o->threads < 0 || o->threads > THREADS_MAX))
        return err_set(e, ERR_ARG, "--threads must be from 0 to %d", THREADS_MAX);
    if (o->port != CLI_UNSET)
        s->port = (int)o->port;
    if (o->threads != CLI_UNSET)
        s->threads = (int)o->threads;
    if (o->host)
        s->host = o->host;
    if (o->state_dir)
        s->state_dir = o->state_dir;
    if (o->checkpoint_dir)
        s->checkpoint_dir = o->checkpoint_dir;
    c->model = o->model;
    return 0;
}

int serve(const struct serve_options *o, FILE *out, struct err *e)
{
    struct daemon d = {.state_lock = -1, .weaver_lock = -1};
    struct buf warnings = {0};
    int rc = config_read(&d.config, &warnings, e);

    stop_watch_block(&d.watch);
    setup_log(&d.config, &warnings);
    d.faults = faults_from_env();
    if (rc == 0)
        rc = apply_options(&d.config, o, e);
    if (rc == 0)
        rc = config_directories(&d.config, e);
    if (rc == 0)
        rc = config_check(&d.config, e);
    if (rc == 0)
        rc = log_start(e);
    if (rc == 0)
        rc = build(&d, e);
    if (rc == 0)
        rc = start_watch(&d, e);
    if (rc == 0)
        rc = start_work(&d, e);
    if (rc == 0)
        say_where(&d, o->json, out);
    if (rc == 0)
        stop_watch_wait(&d.watch);
    else
        stop_watch_end(&d.watch); /* there is nothing yet that it could cut */
    take_down(&d);
    stop_watch_end(&d.watch);
    log_stop();
    buf_release(&warnings);
    return rc;
}
