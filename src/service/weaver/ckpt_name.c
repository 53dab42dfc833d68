/* service/weaver/ckpt_name.c - names, slugs and paths of checkpoints. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "base/utf8.h"
#include "service/refusal.h"
#include "service/weaver/ckpt.h"

enum { NAME_CHARACTERS_MAX = 128 };
#define TTL_MAX (INT64_C(10) * 365 * 24 * 3600)

static const char *const types[] = {"weight", "weight_and_optimizer", "sampling"};
static const char scheme[] = "weaver://", middle[] = "/checkpoints/", export_prefix[] = "sampler-";

const char *ckpt_type_name(enum ckpt_type t)
{
    return types[t];
}

int ckpt_type_by_name(const char *name)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(types[i], name) == 0)
            return i;
    return -1;
}

static bool plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* Runs of other characters become one '-'; '.' and '-' at both ends go. Room is left for the part
 * that makes it unique. */
static void clean(const char *name, char *out, size_t size)
{
    size_t n = 0;
    bool gap = false;

    for (; *name && n + 2 < size; name++) {
        if (plain(*name)) {
            if (gap)
                out[n++] = '-';
            out[n++] = *name;
            gap = false;
        } else {
            gap = true;
        }
    }
    while (n && (out[n - 1] == '.' || out[n - 1] == '-'))
        n--;
    out[n] = '\0';
    while (*out == '.' || *out == '-')
        memmove(out, out + 1, strlen(out));
}

void ckpt_slug(const char *name, bool exported, int64_t counter, char out[CKPT_SLUG_MAX])
{
    char core[NAME_CHARACTERS_MAX + 8] = "";

    if (name)
        clean(name, core, sizeof core);
    if (!*core)
        snprintf(core, sizeof core, "ckpt-%06lld", (long long)counter);
    snprintf(out, CKPT_SLUG_MAX, "%s%s", exported ? export_prefix : "", core);
}

int ckpt_check_name(const char *name, struct refusal *r)
{
    const unsigned char *at = (const unsigned char *)name, *end = at + strlen(name);
    int n = 0;

    for (; at < end; n++) {
        size_t len = utf8_sequence(at, end);

        if (len == 0 || *at < 0x20 || *at == 0x7f || (*at == 0xc2 && at[1] < 0xa0))
            return refuse(r, REFUSAL_W_INVALID_NAME, "A name has no control characters.");
        at += len;
    }
    if (n < 1 || n > NAME_CHARACTERS_MAX)
        return refuse(r, REFUSAL_W_INVALID_NAME, "A name has 1 to %d characters.",
                      NAME_CHARACTERS_MAX);
    return 0;
}

void w_ckpt_path(const struct w_ckpt *c, struct buf *out)
{
    buf_printf(out, "%s%s%s%s", scheme, c->model_id, middle, c->slug);
}

bool ckpt_path_parse(const char *path, char model_id[65], char slug[CKPT_SLUG_MAX])
{
    const char *model, *rest;
    size_t n;

    if (strncmp(path, scheme, sizeof scheme - 1) != 0)
        return false;
    model = path + sizeof scheme - 1;
    n = strcspn(model, "/");
    if (n == 0 || n > 64 || strncmp(model + n, middle, sizeof middle - 1) != 0)
        return false;
    memcpy(model_id, model, n);
    model_id[n] = '\0';
    rest = model + n + sizeof middle - 1;
    n = strcspn(rest, "/");
    if (n == 0 || n >= CKPT_SLUG_MAX || (rest[n] && strcmp(rest + n, "/") != 0))
        return false;
    memcpy(slug, rest, n);
    slug[n] = '\0';
    return true;
}

int ckpt_read_ttl(const json_t *body, int64_t *ttl_s, struct refusal *r)
{
    const json_t *v = json_object_get(body, "ttl_seconds");

    if (!v)
        return 0;
    if (json_is_null(v)) {
        *ttl_s = 0;
        return 0;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > TTL_MAX)
        return refuse(r, REFUSAL_W_INVALID_TTL,
                      "ttl_seconds must be a whole number of at least 1 and at most ten years, or "
                      "null for no end.");
    *ttl_s = json_integer_value(v);
    return 0;
}
