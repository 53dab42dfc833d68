#include "service/registration.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/utf8.h"
#include "service/body.h"
#include "service/refusal.h"
#include "service/service.h"

enum { PATH_CHARS = 500, REPO_CHARS = 255, NAME_CHARS = 100 };

/* ---- the body ---- */

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || (unsigned char)c >= 0x80;
}

/* ^[\w-]+/[\w.-]+$ */
static bool repo_ok(const char *s)
{
    const char *slash = strchr(s, '/');

    if (!slash || slash == s || !slash[1])
        return false;
    for (const char *p = s; p < slash; p++)
        if (!word_char(*p))
            return false;
    for (const char *p = slash + 1; *p; p++)
        if (!word_char(*p) && *p != '.')
            return false;
    return strcmp(slash + 1, ".") != 0 && strcmp(slash + 1, "..") != 0;
}

static void check_choice(struct body *b, const char *key, const char *value,
                         const char *const *choices, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(value, choices[i]) == 0)
            return;
    body_error(b, key, "enum", "'%.64s' is not one of the known values", value);
}

static void check_values(struct body *b, const struct registration *g)
{
    static const char *const sources[] = {"huggingface", "local"};
    static const char *const quants[] = {"FP32", "FP16", "Q8", "Q4", "Q2"};
    bool local = g->source && strcmp(g->source, "local") == 0;

    if (!g->source)
        body_error(b, "source", "missing", "is required");
    else
        check_choice(b, "source", g->source, sources, 2);
    check_choice(b, "quantization", g->quantization, quants, 5);
    if (local && !g->local_path)
        body_error(b, "local_path", "missing", "is required for source local");
    if (g->source && !local && !g->repo_id)
        body_error(b, "repo_id", "missing", "is required for source huggingface");
    if (g->repo_id && !repo_ok(g->repo_id))
        body_error(b, "repo_id", "string_pattern_mismatch", "must look like organisation/name");
    if (g->custom_name && !*g->custom_name)
        body_error(b, "custom_name", "string_too_short", "must not be empty");
}

int registration_parse(struct registration *g, const json_t *body, const json_t *errors,
                       struct refusal *r)
{
    static const char *const keys[] = {"source",       "repo_id",          "local_path",
                                       "quantization", "hf_token",         "custom_name",
                                       "revision",     "trust_remote_code"};
    struct body b = {.object = body};

    if (!body)
        return refuse_with(r, REFUSAL_VALIDATION_ERROR,
                           json_pack("{s:O?}", "errors", (json_t *)errors),
                           "The request body must be one JSON object.");
    body_known_keys(&b, keys, 8);
    body_str(&b, "source", 0, &g->source);
    body_str(&b, "repo_id", REPO_CHARS, &g->repo_id);
    body_str(&b, "local_path", PATH_CHARS, &g->local_path);
    body_str(&b, "quantization", 0, &g->quantization);
    body_str(&b, "hf_token", 0, &g->hf_token);
    body_str(&b, "custom_name", NAME_CHARS, &g->custom_name);
    body_str(&b, "revision", NAME_CHARS, &g->revision);
    body_bool(&b, "trust_remote_code", &g->trust_remote_code);
    check_values(&b, g);
    return body_refuse(&b, r);
}

/* ---- the directory ---- */

static bool under(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* A path that is not UTF-8 could be in no answer, and a name in no request. */
static bool take_dir(struct registration *g, const char *path)
{
    struct stat st;

    return realpath(path, g->path) && stat(g->path, &st) == 0 && S_ISDIR(st.st_mode) &&
           utf8_valid(g->path, strlen(g->path));
}

static int find_local(struct registration *g, struct refusal *r)
{
    static const char *const system_dirs[] = {"/proc", "/sys", "/dev",    "/run",
                                              "/boot", "/etc", "/var/run"};
    json_t *details = json_pack("{s:s}", "path", g->local_path);

    if (g->local_path[0] != '/')
        return refuse_with(r, REFUSAL_INVALID_LOCAL_PATH, details,
                           "local_path must be absolute: '%s'.", g->local_path);
    if (!take_dir(g, g->local_path))
        return refuse_with(r, REFUSAL_INVALID_LOCAL_PATH, details,
                           "'%s' is not a directory on this server, or its real path is not UTF-8.",
                           g->local_path);
    for (size_t i = 0; i < sizeof system_dirs / sizeof *system_dirs; i++)
        if (under(g->path, system_dirs[i]))
            return refuse_with(r, REFUSAL_INVALID_LOCAL_PATH, details,
                               "'%s' lies in a system directory.", g->local_path);
    json_decref(details);
    return 0;
}

/* models--<org>--<name>/snapshots/<rev>; the revision is a branch in refs/ or a commit itself. */
static bool find_snapshot(struct registration *g, const char *repo_dir)
{
    const char *rev = g->revision ? g->revision : "main";
    struct buf ref = {0}, path = {0};
    struct err e = {0};
    bool found;
    int fd;

    if (strchr(rev, '/') || strcmp(rev, "..") == 0)
        return false;
    fd = open(repo_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    buf_printf(&path, "refs/%s", rev);
    if (fs_read_file(fd, buf_str(&path), FS_LINKS_INSIDE, 256, &ref, &e) == 0)
        rev = buf_str(&ref);
    buf_reset(&path);
    buf_printf(&path, "%s/snapshots/%.*s", repo_dir, (int)strcspn(rev, "\n/"), rev);
    found = take_dir(g, buf_str(&path));
    close(fd);
    buf_release(&ref);
    buf_release(&path);
    return found;
}

static int find_cached(struct service *s, struct registration *g, struct refusal *r)
{
    const char *cache = s->settings->model_cache_dir;
    const char *slash = strchr(g->repo_id, '/');
    int org = (int)(slash - g->repo_id);
    struct buf path = {0};
    bool found;

    buf_printf(&path, "%s/huggingface/%.*s--%s--%s", cache, org, g->repo_id, slash + 1,
               g->quantization);
    found = take_dir(g, buf_str(&path));
    if (!found) {
        buf_reset(&path);
        buf_printf(&path, "%s/models--%.*s--%s", cache, org, g->repo_id, slash + 1);
        found = find_snapshot(g, buf_str(&path));
    }
    buf_release(&path);
    if (found)
        return 0;
    return refuse_with(
        r, REFUSAL_REPO_NOT_FOUND, json_pack("{s:s}", "repo_id", g->repo_id),
        "'%s' is not in MODEL_CACHE_DIR (%s); this server downloads nothing. Put the "
        "files there, or register their directory with source local.",
        g->repo_id, cache);
}

const char *registration_name(const struct registration *g)
{
    const char *from = g->repo_id ? g->repo_id : g->path;
    const char *slash = strrchr(from, '/');

    return g->custom_name ? g->custom_name : slash ? slash + 1 : from;
}

int registration_find(struct service *s, struct registration *g, struct refusal *r)
{
    return strcmp(g->source, "local") == 0 ? find_local(g, r) : find_cached(s, g, r);
}
