#include "daemon/config_vars.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/config.h"
#include "engine/engine.h"
#include "service/settings.h"

/* ---- the table ---- */

enum kind { TEXT, ABSOLUTE, INT, INT64, REAL, BOOL, OCTAL, CHOICE };

struct var {
    const char *name;
    enum kind kind;
    size_t at;           /* offset into struct settings */
    double least, most;  /* INT, INT64, REAL; REAL with least 0 must be greater */
    const char *choices; /* CHOICE: words separated by '|'; the value is the index */
};

#define AT(field) offsetof(struct settings, field)
#define TEXT_VAR(name, field)             \
    {                                     \
        name, TEXT, AT(field), 0, 0, NULL \
    }
#define PATH_VAR(name, field)                 \
    {                                         \
        name, ABSOLUTE, AT(field), 0, 0, NULL \
    }
#define INT_VAR(name, field, least, most)       \
    {                                           \
        name, INT, AT(field), least, most, NULL \
    }
#define LONG_VAR(name, field, least, most)        \
    {                                             \
        name, INT64, AT(field), least, most, NULL \
    }
#define REAL_VAR(name, field, least)             \
    {                                            \
        name, REAL, AT(field), least, 1e12, NULL \
    }
/* As nanoseconds after now these stay far below 2^63. */
#define SECONDS_VAR(name, field)            \
    {                                       \
        name, REAL, AT(field), 0, 1e9, NULL \
    }
#define BOOL_VAR(name, field)             \
    {                                     \
        name, BOOL, AT(field), 0, 0, NULL \
    }
#define CHOICE_VAR(name, field, words)       \
    {                                        \
        name, CHOICE, AT(field), 0, 0, words \
    }

static const struct var vars[] = {
    TEXT_VAR("HOST", host),
    INT_VAR("PORT", port, 0, 65535),
    TEXT_VAR("CORS_ORIGINS", cors_origins),
    TEXT_VAR("ALLOWED_HOSTS", allowed_hosts),
    PATH_VAR("STATE_DIR", state_dir),
    PATH_VAR("MODEL_CACHE_DIR", model_cache_dir),
    TEXT_VAR("AUTO_LOAD_MODEL", auto_load),
    SECONDS_VAR("GRACEFUL_UNLOAD_TIMEOUT", graceful_unload_timeout_s),
    INT_VAR("MAX_CONCURRENT_REQUESTS", max_concurrent, 1, 1024),
    INT_VAR("MAX_PENDING_REQUESTS", max_pending, 0, 100000),
    INT_VAR("QUEUE_DURATION_WINDOW", queue_duration_window, 3, SLOT_TIMES_MAX),
    BOOL_VAR("ENABLE_CONTINUOUS_BATCHING", continuous_batching),
    PATH_VAR("WEIGHTS_CHECKPOINT_DIR", checkpoint_dir),
    TEXT_VAR("WEIGHTS_CHECKPOINT_READ_ROOTS", read_roots),
    REAL_VAR("WEIGHTS_SAVE_FREE_SPACE_FACTOR", save_free_space_factor, 1),
    LONG_VAR("WEIGHTS_SAVE_OVERHEAD_MB", save_overhead_mb, 0, 1e9),
    LONG_VAR("WEIGHTS_LINEAGE_MAX_DEPTH", lineage_max_depth, 1, 100000),
    SECONDS_VAR("WEIGHTS_QUIESCE_MAX_HOLD_S", quiesce_max_hold_s),
    SECONDS_VAR("WEIGHTS_COMMIT_WATCHDOG_S", commit_watchdog_s),
    SECONDS_VAR("WEIGHTS_HEARTBEAT_TIMEOUT_S", heartbeat_timeout_s),
    SECONDS_VAR("WEIGHTS_DRAIN_TIMEOUT_S", drain_timeout_s),
    SECONDS_VAR("WEIGHTS_HOLD_REQUEST_TIMEOUT_S", hold_request_timeout_s),
    SECONDS_VAR("CAIRN_REQUEST_TIMEOUT_S", request_timeout_s),
    SECONDS_VAR("CAIRN_STOP_S", stop_s),
    CHOICE_VAR("WEIGHTS_SHM_TRANSPORT", shm_transport, "auto|posix_shm|memfd"),
    {"WEIGHTS_SHM_MODE", OCTAL, AT(shm_mode), 0, 0, NULL},
    TEXT_VAR("WEIGHTS_SHM_GROUP", shm_group),
    BOOL_VAR("WEIGHTS_LOAD_PREFETCH", load_prefetch),
    PATH_VAR("WEIGHTS_SCHEMA_FILE", schema_file),
    CHOICE_VAR("WEIGHTS_BARRIER", barrier, "all|single"),
    PATH_VAR("ADAPTER_DIR", adapter_dir),
    PATH_VAR("WEAVER_CHECKPOINT_DIR", weaver_dir),
    INT_VAR("WEAVER_MAX_OPERATIONS", weaver_max_ops, 1, 1e6),
    TEXT_VAR("PUBLIC_URL", public_url),
    LONG_VAR("CAIRN_MAX_PACK_MB", max_pack_mb, 1, 8192),
    LONG_VAR("CAIRN_MEMORY_MB", memory_mb, 0, 1e9),
    INT_VAR("CAIRN_TRAIN_SHARE", train_share, 1, 99),
    INT_VAR("CAIRN_BACKGROUND_SHARE", background_share, 1, 100),
    LONG_VAR("CAIRN_TRAIN_MB", train_mb, 0, 1e9),
    CHOICE_VAR("CAIRN_TRAIN_FORWARD", master_forward, "rounded|master"),
    BOOL_VAR("CAIRN_STEP_LOG", step_log),
    INT_VAR("LEASE_DEFAULT_TTL_SECONDS", lease_default_ttl_s, 1, 86400),
    INT_VAR("LEASE_MAX_TTL_SECONDS", lease_max_ttl_s, 1, 86400),
    INT_VAR("LEASE_HOLDER_MAX_CHARS", lease_holder_max_chars, 1, 4096),
    INT_VAR("LEASE_REASON_MAX_CHARS", lease_reason_max_chars, 1, 4096),
    INT_VAR("LEASE_ENDED_MEMORY", lease_ended_memory, 1, 65536),
    PATH_VAR("BATCH_FILES_DIR", batch_files_dir),
    INT_VAR("BATCH_MAX_ROWS", batch_max_rows, 1, 1e7),
    LONG_VAR("BATCH_MAX_FILE_BYTES", batch_max_file_bytes, 1, 1LL << 40),
    LONG_VAR("BATCH_MAX_LINE_BYTES", batch_max_line_bytes, 64, 1 << 30),
    INT_VAR("BATCH_CHUNK_ROWS", batch_chunk_rows, 1, 256),
    INT_VAR("BATCH_MAX_COMPLETION_WINDOW_HOURS", batch_max_window_h, 1, 8760),
    INT_VAR("BATCH_FILE_RETENTION_DAYS", batch_retention_days, 1, 3650),
    INT_VAR("BATCH_LEASE_TTL_S", batch_lease_ttl_s, 1, 86400),
    SECONDS_VAR("BATCH_WAIT_POLL_S", batch_wait_poll_s),
    INT_VAR("BATCH_ERRORS_SHOWN", batch_errors_shown, 1, 100000),
    SECONDS_VAR("BATCH_RETENTION_INTERVAL_S", batch_retention_interval_s),
    BOOL_VAR("BATCH_PACK_DEFAULT", batch_pack_default),
    CHOICE_VAR("CAIRN_NUMERICS", fast_numerics, "exact|fast"),
    INT_VAR("CAIRN_THREADS", threads, 0, THREADS_MAX),
    LONG_VAR("CAIRN_KV_MB", kv_mb, 0, 1e9),
    INT_VAR("CAIRN_MAX_IMAGES", max_images, 2, 64),
    TEXT_VAR("CAIRN_KERNELS", kernels),
    INT_VAR("EMBEDDINGS_MAX_INPUTS", embeddings_max_inputs, 1, 2048),
    INT_VAR("IGNORED_FIELDS_HEADER_MAX_BYTES", ignored_fields_max_bytes, 16, 65536),
    INT_VAR("RETRY_AFTER_QUEUE_DEFAULT_S", retry_queue_default_s, 1, 86400),
    INT_VAR("RETRY_AFTER_QUEUE_MAX_S", retry_queue_max_s, 1, 86400),
    INT_VAR("RETRY_AFTER_LOAD_S", retry_load_s, 1, 86400),
    INT_VAR("RETRY_AFTER_UNLOAD_S", retry_unload_s, 1, 86400),
    INT_VAR("RETRY_AFTER_NOT_LOADED_S", retry_not_loaded_s, 1, 86400),
    INT_VAR("RETRY_AFTER_MEMORY_S", retry_memory_s, 1, 86400),
    INT_VAR("RETRY_AFTER_READINESS_S", retry_readiness_s, 1, 86400),
    INT_VAR("RETRY_AFTER_FALLBACK_S", retry_fallback_s, 1, 86400),
    INT_VAR("RETRY_AFTER_TORN_S", retry_torn_s, 1, 86400),
};

static const struct settings defaults = {
    .host = "127.0.0.1",
    .port = 8000,
    .cors_origins = "",
    .allowed_hosts = "",
    .model_cache_dir = "/app/model_cache",
    .read_roots = "",
    .save_free_space_factor = 1.1,
    .save_overhead_mb = 64,
    .lineage_max_depth = 1000,
    .quiesce_max_hold_s = 5,
    .commit_watchdog_s = 30,
    .heartbeat_timeout_s = 30,
    .drain_timeout_s = 30,
    .hold_request_timeout_s = 120,
    .graceful_unload_timeout_s = 30,
    .stop_s = 45,
    .shm_mode = 0600,
    .load_prefetch = true,
    .max_images = 3,
    .queue_duration_window = 50,
    .max_pack_mb = 256,
    .weaver_max_ops = 4096,
    .train_share = 50,
    .background_share = 85,
    .lease_default_ttl_s = 7200,
    .lease_max_ttl_s = 7200,
    .lease_holder_max_chars = 128,
    .lease_reason_max_chars = 512,
    .lease_ended_memory = 64,
    .batch_max_rows = 50000,
    .batch_max_file_bytes = 200 << 20,
    .batch_max_line_bytes = 1 << 20,
    .batch_chunk_rows = 8,
    .batch_max_window_h = 168,
    .batch_retention_days = 30,
    .batch_lease_ttl_s = 900,
    .batch_wait_poll_s = 10,
    .batch_errors_shown = 100,
    .batch_retention_interval_s = 3600,
    .kernels = "",
    .embeddings_max_inputs = 128,
    .ignored_fields_max_bytes = 1024,
    .retry_queue_default_s = 5,
    .retry_queue_max_s = 60,
    .retry_load_s = 15,
    .retry_unload_s = 5,
    .retry_not_loaded_s = 30,
    .retry_memory_s = 30,
    .retry_readiness_s = 5,
    .retry_fallback_s = 10,
    .retry_torn_s = 30,
};

/* ---- values ---- */

const char *config_env(const char *name)
{
    const char *v = getenv(name);

    return v && *v ? v : NULL;
}

static int refuse_number(const struct var *v, const char *text, struct err *e)
{
    if (v->kind == REAL && v->least == 0)
        return err_set(e, ERR_ARG, "%s=%s: must be a number above 0, at most %.0f", v->name, text,
                       v->most);
    if (v->kind == REAL)
        return err_set(e, ERR_ARG, "%s=%s: must be a number from %g to %.0f", v->name, text,
                       v->least, v->most);
    return err_set(e, ERR_ARG, "%s=%s: must be a whole number from %.0f to %.0f", v->name, text,
                   v->least, v->most);
}

static int set_number(const struct var *v, const char *text, void *to, struct err *e)
{
    char *end;
    double n;

    errno = 0;
    n = strtod(text, &end);
    if (end == text || *end || errno || !(n >= v->least && n <= v->most) || /* NaN is no number */
        (v->kind == REAL && v->least == 0 && n == 0) ||
        (v->kind != REAL && n != (double)(int64_t)n))
        return refuse_number(v, text, e);
    if (v->kind == REAL)
        *(double *)to = n;
    else if (v->kind == INT64)
        *(int64_t *)to = (int64_t)n;
    else
        *(int *)to = (int)n;
    return 0;
}

int config_env_bool(const char *name, const char *text, bool *to, struct err *e)
{
    static const char *const yes[] = {"1", "true", "yes", "on"};
    static const char *const no[] = {"0", "false", "no", "off"};

    for (int i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0) {
            *to = true;
            return 0;
        }
        if (strcasecmp(text, no[i]) == 0) {
            *to = false;
            return 0;
        }
    }
    return err_set(e, ERR_ARG, "%s=%s: must be true or false", name, text);
}

static int set_choice(const struct var *v, const char *text, void *to, struct err *e)
{
    size_t n = strlen(text);
    int index = 0;

    for (const char *word = v->choices; word; index++) {
        const char *end = strchrnul(word, '|');

        if ((size_t)(end - word) == n && strncasecmp(word, text, n) == 0) {
            if (v->at == AT(fast_numerics) || v->at == AT(master_forward))
                *(bool *)to = index == 1;
            else
                *(int *)to = index;
            return 0;
        }
        word = *end ? end + 1 : NULL;
    }
    return err_set(e, ERR_ARG, "%s=%s: must be one of %s", v->name, text, v->choices);
}

static int set_octal(const struct var *v, const char *text, int *to, struct err *e)
{
    char *end;
    long n = strtol(text, &end, 8);

    if (*end || n < 0 || n > 0777)
        return err_set(e, ERR_ARG, "%s=%s: must be octal, like 0600", v->name, text);
    *to = (int)n;
    return 0;
}

static int set_value(struct settings *s, const struct var *v, const char *text, struct err *e)
{
    void *to = (char *)s + v->at;

    switch (v->kind) {
    case ABSOLUTE:
        if (text[0] != '/')
            return err_set(e, ERR_ARG, "%s=%s: must be an absolute path", v->name, text);
        *(const char **)to = text;
        return 0;
    case TEXT:
        *(const char **)to = text;
        return 0;
    case BOOL:
        return config_env_bool(v->name, text, to, e);
    case CHOICE:
        return set_choice(v, text, to, e);
    case OCTAL:
        return set_octal(v, text, to, e);
    default:
        return set_number(v, text, to, e);
    }
}

/* ---- all of them ---- */

/* A misspelt variable changes nothing: that is said once. The clients' variables may stand beside.
 */
static bool is_known(const char *name, size_t len)
{
    static const char *const others[] = {
        "CAIRN_ALLOW_OPEN", "WEIGHTS_TOKENS",   "WEIGHTS_TOKENS_FILE", "CAIRN_URL",
        "CAIRN_TOKEN",      "CAIRN_ATTACHMENT", "CAIRN_LEASE"};

    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++)
        if (strlen(vars[i].name) == len && memcmp(vars[i].name, name, len) == 0)
            return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strlen(others[i]) == len && memcmp(others[i], name, len) == 0)
            return true;
    return strncmp(name, "WEIGHTS_TEST_", 13) == 0;
}

static void warn_of_unknown(struct buf *warnings)
{
    extern char **environ;

    for (char **v = environ; *v; v++) {
        size_t len = strcspn(*v, "=");

        if ((strncmp(*v, "CAIRN_", 6) == 0 || strncmp(*v, "WEIGHTS_", 8) == 0) &&
            !is_known(*v, len))
            buf_printf(warnings, "%.*s is no variable of this server and changes nothing\n",
                       (int)len, *v);
    }
}

/* What depends on the barrier unless it is set. */
static void default_slots(struct settings *s)
{
    bool single = s->barrier == BARRIER_SINGLE;

    if (s->max_concurrent < 0)
        s->max_concurrent = single ? 1 : 8;
    if (s->max_pending < 0)
        s->max_pending = single ? 10 : 64;
}

int config_vars_read(struct settings *s, struct buf *warnings, struct err *e)
{
    const char *barrier = config_env("WEIGHTS_BARRIER");

    *s = defaults;
    s->max_concurrent = s->max_pending = -1;
    s->continuous_batching = !barrier || strcasecmp(barrier, "single") != 0;
    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++) {
        const char *text = config_env(vars[i].name);

        if (text && set_value(s, &vars[i], text, e) < 0)
            return -1;
    }
    default_slots(s);
    warn_of_unknown(warnings);
    return 0;
}
