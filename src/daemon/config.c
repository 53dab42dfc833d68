#include "daemon/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "daemon/config_vars.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "service/tokens.h"

/* ---- tokens ---- */

/* Process listings show the environment as it was given: leave no token there. */
static void wipe(const char *name)
{
    char *v = getenv(name);

    if (v)
        OPENSSL_cleanse(v, strlen(v));
    unsetenv(name);
}

static int read_tokens(struct config *c, struct err *e)
{
    const char *list = config_env("WEIGHTS_TOKENS"), *path = config_env("WEIGHTS_TOKENS_FILE");

    if (list && path)
        return err_set(e, ERR_ARG, "WEIGHTS_TOKENS and WEIGHTS_TOKENS_FILE are both set; use one");
    c->tokens = path ? tokens_read(path, e) : tokens_parse(list, e);
    if (!c->tokens)
        return err_wrap(e, "%s", path ? "WEIGHTS_TOKENS_FILE" : "WEIGHTS_TOKENS");
    wipe("WEIGHTS_TOKENS");
    c->keys = tokens_parse_keys(config_env("WEAVER_API_KEYS"), e);
    if (!c->keys)
        return err_wrap(e, "WEAVER_API_KEYS");
    wipe("WEAVER_API_KEYS");
    return 0;
}

/* ---- directories ---- */

static const char *keep(struct config *c, struct buf *b, struct err *e)
{
    char *s = buf_take(b);

    if (!s) {
        err_nomem(e);
        return NULL;
    }
    c->owned[c->n_owned++] = s;
    return s;
}

static int default_state_dir(struct config *c, struct err *e)
{
    const char *xdg = config_env("XDG_STATE_HOME"), *home = config_env("HOME");
    struct buf b = {0};

    if (c->settings.state_dir)
        return 0;
    if (xdg && xdg[0] == '/')
        buf_printf(&b, "%s/cairn", xdg);
    else if (home)
        buf_printf(&b, "%s/.local/state/cairn", home);
    else
        return err_set(e, ERR_ARG, "STATE_DIR is not set, and neither is HOME");
    c->settings.state_dir = keep(c, &b, e);
    return c->settings.state_dir ? 0 : -1;
}

/* /data/checkpoints where it is there to be used (containers), else a directory of this user. */
static int default_checkpoint_dir(struct config *c, struct err *e)
{
    struct buf b = {0};

    if (c->settings.checkpoint_dir)
        return 0;
    if (access("/data/checkpoints", W_OK | X_OK) == 0)
        buf_add_str(&b, "/data/checkpoints");
    else
        buf_printf(&b, "%s/checkpoints", c->settings.state_dir);
    c->settings.checkpoint_dir = keep(c, &b, e);
    return c->settings.checkpoint_dir ? 0 : -1;
}

static int default_weaver_dir(struct config *c, struct err *e)
{
    struct buf b = {0};

    if (c->settings.weaver_dir)
        return 0;
    buf_printf(&b, "%s/weaver", c->settings.state_dir);
    c->settings.weaver_dir = keep(c, &b, e);
    return c->settings.weaver_dir ? 0 : -1;
}

/* ---- the whole ---- */

static int refuse_test_variables(struct err *e)
{
#ifndef CAIRN_FAULTS
    extern char **environ;

    for (char **v = environ; *v; v++)
        if (strncmp(*v, "WEIGHTS_TEST_", 13) == 0)
            return err_set(e, ERR_ARG, "%.*s is for test builds only (make faults)",
                           (int)strcspn(*v, "="), *v);
#else
    (void)e;
#endif
    return 0;
}

static int read_level(struct config *c, const char *word, struct err *e)
{
    static const char *const words[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

    for (int i = 0; i < 4; i++)
        if (strcasecmp(word, words[i]) == 0) {
            c->log_level = (enum log_level)i;
            return 0;
        }
    return err_set(e, ERR_ARG, "LOG_LEVEL=%s: must be one of DEBUG, INFO, WARNING, ERROR", word);
}

static int read_log(struct config *c, struct err *e)
{
    const char *format = config_env("LOG_FORMAT"), *level = config_env("LOG_LEVEL");

    if (format && strcmp(format, "console") != 0 && strcmp(format, "json") != 0)
        return err_set(e, ERR_ARG, "LOG_FORMAT=%s: must be console or json", format);
    c->log_json = format && strcmp(format, "json") == 0;
    return level ? read_level(c, level, e) : 0;
}

static int read_open(struct config *c, struct err *e)
{
    static const char name[] = "CAIRN_ALLOW_OPEN";
    const char *text = config_env(name);

    return text ? config_env_bool(name, text, &c->allow_open, e) : 0;
}

int config_read(struct config *c, struct buf *warnings, struct err *e)
{
    *c = (struct config){.log_level = LOG_INFO};
    if (config_vars_read(&c->settings, warnings, e) < 0)
        return -1;
    if (config_env("DATABASE_URL"))
        buf_add_str(warnings, "DATABASE_URL is ignored: the catalogue lives in STATE_DIR\n");
    if (refuse_test_variables(e) < 0 || read_log(c, e) < 0 || read_open(c, e) < 0)
        return -1;
    return read_tokens(c, e);
}

static bool is_loopback(const char *host)
{
    struct in6_addr six;
    struct in_addr four;

    if (strcmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &four) == 1)
        return (ntohl(four.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static int default_batch_dir(struct config *c, struct err *e)
{
    struct buf b = {0};

    if (c->settings.batch_files_dir)
        return 0;
    buf_printf(&b, "%s/batch_files", c->settings.state_dir);
    c->settings.batch_files_dir = keep(c, &b, e);
    return c->settings.batch_files_dir ? 0 : -1;
}

int config_directories(struct config *c, struct err *e)
{
    if (default_state_dir(c, e) < 0 || default_checkpoint_dir(c, e) < 0 ||
        default_weaver_dir(c, e) < 0)
        return -1;
    return default_batch_dir(c, e);
}

/* Here, while there is one thread: the C library answers in memory that all share. */
static int find_shm_group(struct settings *s, struct err *e)
{
    const struct group *g = s->shm_group ? getgrnam(s->shm_group) : NULL;

    if (s->shm_group && !g)
        return err_set(e, ERR_ARG, "WEIGHTS_SHM_GROUP=%s: there is no such group", s->shm_group);
    if (g)
        s->shm_gid = g->gr_gid;
    return 0;
}

int config_check(struct config *c, struct err *e)
{
    const char *kernels = c->settings.kernels;

    c->settings.needs_token = !is_loopback(c->settings.host) && !c->allow_open;
    if (c->settings.needs_token && tokens_empty(c->tokens))
        return err_set(e, ERR_ARG,
                       "HOST=%s is reachable from other machines, and no token is configured: set "
                       "WEIGHTS_TOKENS, or CAIRN_ALLOW_OPEN=true to let anybody change models",
                       c->settings.host);
    if (c->settings.lease_default_ttl_s > c->settings.lease_max_ttl_s)
        return err_set(e, ERR_ARG,
                       "LEASE_DEFAULT_TTL_SECONDS=%d is more than LEASE_MAX_TTL_SECONDS=%d",
                       c->settings.lease_default_ttl_s, c->settings.lease_max_ttl_s);
    if (find_shm_group(&c->settings, e) < 0)
        return -1;
    if (*kernels && !kernels_by_name(kernels))
        return err_set(e, ERR_ARG, "CAIRN_KERNELS=%s: this CPU has no such kernels", kernels);
    return 0;
}

void config_release(struct config *c)
{
    tokens_free(c->tokens);
    tokens_free(c->keys);
    for (int i = 0; i < c->n_owned; i++)
        free(c->owned[i]);
}
