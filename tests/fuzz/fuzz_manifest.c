/* Manifests, from a file and from a caller, and checkpoint names.
 *
 * Beside memory safety it holds that a caller's manifest which passes the checks of a save is
 * written as a file that passes the checks of a load, and that a name which parses is written back
 * as it was. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "store/manifest.h"
#include "store/name.h"
#include "store/schema.h"

static const char zero_sha[] = "0000000000000000000000000000000000000000000000000000000000000000";

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(int holds)
{
    if (!holds)
        abort();
}

static void read_as_file(const struct schema *s, const char *text, size_t len)
{
    struct manifest m;
    struct err e = {0};
    json_t *errors;
    enum manifest_fault f = manifest_parse(text, len, s, NULL, &m, &errors, &e);

    check((f == MANIFEST_SCHEMA) == (errors != NULL));
    json_decref(errors);
    manifest_release(&m);
}

static void write_and_read(const struct schema *s, const json_t *caller)
{
    struct manifest_draft draft = {.caller = caller, .base_model = "org/m:x", .created_ms = 1};
    struct buf text = {0};
    struct manifest m;
    struct err e = {0};

    check(manifest_write(&draft, zero_sha, &text, &e) == 0);
    check(text.len > MANIFEST_MAX_BYTES ||
          manifest_parse(text.data, text.len, s, NULL, &m, NULL, &e) == MANIFEST_OK);
    if (text.len <= MANIFEST_MAX_BYTES)
        manifest_release(&m);
    buf_release(&text);
}

static int count_and_drop(json_t *list)
{
    int n = (int)json_array_size(list);

    check(list != NULL);
    json_decref(list);
    return n;
}

static void read_as_caller(const struct schema *s, const char *text, size_t len)
{
    struct err e = {0};
    json_t *v = json_parse(text, len, &e);
    const json_t *run;

    if (!v)
        return;
    run = json_object_get(v, "run_id");
    if (count_and_drop(schema_server_fields(s, v, &e)) == 0 &&
        count_and_drop(schema_check(s, v, SCHEMA_CALLER, &e)) == 0 &&
        ckpt_run_id_may_save(json_string_value(run), json_string_length(run)))
        write_and_read(s, v);
    json_decref(v);
}

static void read_as_name(const char *text, size_t len)
{
    struct ckpt_name name;
    struct buf again = {0};
    char *base;

    if (!ckpt_name_parse(text, len, &name))
        return;
    base = strndup(text, name.base_len);
    ckpt_name_write(&again, base, name.run_id, name.step);
    check(again.len == len && memcmp(again.data, text, len) == 0);
    buf_release(&again);
    free(base);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static struct schema *s; /* read once: loading it takes longer than a run */
    const char *text = (const char *)data;
    struct err e = {0};

    if (!s)
        s = schema_load(NULL, &e);

    read_as_file(s, text, size);
    read_as_caller(s, text, size);
    read_as_name(text, size);
    return 0;
}
