#include "store/manifest.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/nomem.h"
#include "store/name.h"
#include "store/schema.h"

/* ---- writing: docs/formats/manifest.md, "Canonical form" ---- */

/* A number that is whole is written without fraction, however the caller wrote it. -0.0 stays
 * itself. */
static json_t *canonical_value(const json_t *v)
{
    int64_t whole;

    if (json_is_real(v) && json_is_whole(v, &whole) &&
        (whole != 0 || !__builtin_signbit(json_real_value(v))))
        return json_integer(whole);
    return json_deep_copy(v);
}

/* Members of `from` in the order of `keys`; one that was not sent is null. A null `from` stays
 * null. */
static json_t *ordered(const json_t *from, const char *const *keys)
{
    json_t *to;

    if (!json_is_object(from))
        return json_null();
    to = json_object();
    for (; to && *keys; keys++) {
        const json_t *v = json_object_get(from, *keys);

        if (json_object_set_new(to, *keys, v ? canonical_value(v) : json_null()) < 0) {
            json_decref(to);
            return NULL;
        }
    }
    return to;
}

static json_t *full_name(const struct manifest_draft *d)
{
    struct buf name = {0};
    int64_t step = 0;
    json_t *text = NULL;

    json_is_whole(json_object_get(d->caller, "step"), &step);
    ckpt_name_write(&name, d->base_model, json_string_value(json_object_get(d->caller, "run_id")),
                    step);
    if (!name.failed)
        text = json_string(buf_str(&name));
    buf_release(&name);
    return text;
}

static json_t *created_at(int64_t ms)
{
    char text[32];

    clock_iso8601(ms, text);
    return json_string(text);
}

/* The member `key` of the manifest, owned; NULL: no memory. */
static json_t *member_of(const struct manifest_draft *d, const char *key,
                         const char *weights_sha256)
{
    static const char *const optimizer[] = {"name", "state", "config_hash", NULL};
    static const char *const score[] = {"set", "score", "n", "floor", NULL};
    const json_t *sent = json_object_get(d->caller, key);

    if (strcmp(key, "kind") == 0)
        return json_string(MANIFEST_KIND);
    if (strcmp(key, "schema_version") == 0)
        return json_string(MANIFEST_VERSION);
    if (strcmp(key, "name") == 0)
        return full_name(d);
    if (strcmp(key, "base_model") == 0)
        return json_string(d->base_model);
    if (strcmp(key, "created_at") == 0)
        return created_at(d->created_ms);
    if (strcmp(key, "weights_sha256") == 0)
        return json_string(weights_sha256);
    if (strcmp(key, "optimizer") == 0)
        return ordered(sent, optimizer);
    if (strcmp(key, "test") == 0 || strcmp(key, "retention") == 0)
        return ordered(sent, score);
    return sent ? canonical_value(sent) : json_null();
}

int manifest_write(void *draft, const char weights_sha256[SHA256_HEX], struct buf *out,
                   struct err *e)
{
    static const char *const order[] = {
        "kind",          "schema_version", "name",       "base_model",
        "run_id",        "step",           "created_at", "domain",
        "signal_source", "parent",         "optimizer",  "selector_hash",
        "grader_hash",   "test",           "retention",  "weights_sha256",
    };
    bool before = nomem_noted(), ok;
    json_t *doc;

    nomem_forget();
    doc = json_object();
    ok = doc != NULL;
    for (size_t i = 0; ok && i < sizeof order / sizeof order[0]; i++)
        ok = json_object_set_new(doc, order[i], member_of(draft, order[i], weights_sha256)) == 0;
    if (ok) {
        json_write_pretty(out, doc);
        buf_add_char(out, '\n');
    }
    json_decref(doc);
    ok = ok && !out->failed && !nomem_noted();
    if (before)
        nomem_note();
    return ok ? 0 : err_nomem(e);
}

/* ---- reading ---- */

const char *manifest_fault_name(enum manifest_fault f)
{
    static const char *const names[] = {
        [MANIFEST_OK] = "ok",
        [MANIFEST_MISSING] = "missing",
        [MANIFEST_UNREADABLE] = "unreadable",
        [MANIFEST_TOO_LARGE] = "too_large",
        [MANIFEST_SCHEMA] = "schema",
        [MANIFEST_RUN_ID] = "run_id",
        [MANIFEST_NAME_MISMATCH] = "name_mismatch",
        [MANIFEST_DIRECTORY_MISMATCH] = "directory_mismatch",
        [MANIFEST_FAILED] = "failed",
    };

    return names[f];
}

static void take_fields(struct manifest *m)
{
    m->name = json_string_value(json_object_get(m->json, "name"));
    m->base_model = json_string_value(json_object_get(m->json, "base_model"));
    m->run_id = json_string_value(json_object_get(m->json, "run_id"));
    m->parent = json_string_value(json_object_get(m->json, "parent"));
    m->created_at = json_string_value(json_object_get(m->json, "created_at"));
    m->weights_sha256 = json_string_value(json_object_get(m->json, "weights_sha256"));
    json_is_whole(json_object_get(m->json, "step"), &m->step);
}

static enum manifest_fault check_name(const struct manifest *m, struct err *e)
{
    struct buf expected = {0};
    enum manifest_fault f = MANIFEST_OK;

    ckpt_name_write(&expected, m->base_model, m->run_id, m->step);
    if (expected.failed) {
        err_nomem(e);
        f = MANIFEST_FAILED;
    } else if (strcmp(buf_str(&expected), m->name) != 0) {
        err_set(e, ERR_FORMAT,
                "the manifest's name \"%.80s\" is not base_model:run_id:step, \"%.80s\"", m->name,
                buf_str(&expected));
        f = MANIFEST_NAME_MISMATCH;
    }
    buf_release(&expected);
    return f;
}

static enum manifest_fault check_place(const struct manifest *m, const struct manifest_place *p,
                                       struct err *e)
{
    if (p->base_model && (strlen(m->base_model) != p->base_len ||
                          memcmp(m->base_model, p->base_model, p->base_len) != 0)) {
        err_set(e, ERR_FORMAT,
                "the manifest's base_model \"%.100s\" is not that of the name asked for",
                m->base_model);
        return MANIFEST_NAME_MISMATCH;
    }
    if (p->run_id && (strcmp(m->run_id, p->run_id) != 0 || m->step != p->step)) {
        char own[CKPT_PATH_MAX];

        ckpt_path(own, m->run_id, m->step);
        err_set(e, ERR_FORMAT, "the manifest belongs to %.160s, not to this directory", own);
        return MANIFEST_DIRECTORY_MISMATCH;
    }
    return MANIFEST_OK;
}

static enum manifest_fault check_schema(const struct manifest *m, const struct schema *s,
                                        json_t **errors, struct err *e)
{
    json_t *list = schema_check(s, m->json, SCHEMA_FILE, e);
    json_t *first;

    if (!list)
        return MANIFEST_FAILED;
    if (json_array_size(list) == 0) {
        json_decref(list);
        return MANIFEST_OK;
    }
    first = json_array_get(list, 0);
    err_set(e, ERR_FORMAT, "the manifest breaks its schema in %zu places, first at %s: %s",
            json_array_size(list), json_string_value(json_object_get(first, "path")),
            json_string_value(json_object_get(first, "message")));
    if (errors)
        *errors = list;
    else
        json_decref(list);
    return MANIFEST_SCHEMA;
}

static enum manifest_fault check_all(struct manifest *m, const struct schema *s,
                                     const struct manifest_place *place, json_t **errors,
                                     struct err *e)
{
    enum manifest_fault f = check_schema(m, s, errors, e);

    if (f != MANIFEST_OK)
        return f;
    take_fields(m);
    if (!ckpt_run_id_may_load(m->run_id, strlen(m->run_id))) {
        err_set(e, ERR_FORMAT, "the manifest's run_id \"%.100s\" is no safe path segment",
                m->run_id);
        return MANIFEST_RUN_ID;
    }
    f = check_name(m, e);
    if (f == MANIFEST_OK && place)
        f = check_place(m, place, e);
    return f;
}

enum manifest_fault manifest_parse(const char *text, size_t len, const struct schema *s,
                                   const struct manifest_place *place, struct manifest *out,
                                   json_t **errors, struct err *e)
{
    enum manifest_fault f;

    *out = (struct manifest){0};
    if (errors)
        *errors = NULL;
    if (len > MANIFEST_MAX_BYTES) {
        err_set(e, ERR_FORMAT, "the manifest has %zu bytes, of at most %d", len,
                MANIFEST_MAX_BYTES);
        return MANIFEST_TOO_LARGE;
    }
    out->json = json_parse(text, len, e);
    if (!out->json) {
        err_wrap(e, "the manifest cannot be read");
        return e->code == ERR_NOMEM ? MANIFEST_FAILED : MANIFEST_UNREADABLE;
    }
    sha256_hex_of(text, len, out->sha256);
    f = check_all(out, s, place, errors, e);
    if (f != MANIFEST_OK)
        manifest_release(out);
    return f;
}

/* What reading the file came to: rc 0 with its bytes in `text` (released here), or -1 with *e. */
static enum manifest_fault parse_read(int rc, struct buf *text, const struct schema *s,
                                      const struct manifest_place *place, struct manifest *out,
                                      json_t **errors, struct err *e)
{
    enum manifest_fault f;

    *out = (struct manifest){0};
    if (errors)
        *errors = NULL;
    if (rc == 0)
        f = manifest_parse(buf_str(text), text->len, s, place, out, errors, e);
    else if (e->code == ERR_NOT_FOUND)
        f = MANIFEST_MISSING;
    else if (e->code == ERR_SPACE)
        f = MANIFEST_TOO_LARGE;
    else
        f = e->code == ERR_NOMEM ? MANIFEST_FAILED : MANIFEST_UNREADABLE;
    buf_release(text);
    return f;
}

enum manifest_fault manifest_read(int step_dir_fd, const struct schema *s,
                                  const struct manifest_place *place, struct manifest *out,
                                  json_t **errors, struct err *e)
{
    struct buf text = {0};
    int rc = fs_read_file(step_dir_fd, MANIFEST_FILE, FS_LINKS_NONE, MANIFEST_MAX_BYTES, &text, e);

    return parse_read(rc, &text, s, place, out, errors, e);
}

enum manifest_fault manifest_read_open(int fd, const struct schema *s,
                                       const struct manifest_place *place, struct manifest *out,
                                       json_t **errors, struct err *e)
{
    struct buf text = {0};
    int rc = fs_read_open(fd, MANIFEST_FILE, MANIFEST_MAX_BYTES, &text, e);

    return parse_read(rc, &text, s, place, out, errors, e);
}

void manifest_release(struct manifest *m)
{
    json_decref(m->json);
    *m = (struct manifest){0};
}
