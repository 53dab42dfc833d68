#include "api/openapi.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/envelope.h"
#include "api/openai/ask.h"
#include "api/router.h"
#include "api/weaver/face.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

static const unsigned char parts_text[] = {
#include "openapi_parts.inc"
};

/* ---- small pieces ---- */

static json_t *schema_ref(const char *name)
{
    return json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", name));
}

static json_t *media_object(const char *media, json_t *schema)
{
    json_t *content = json_object();

    json_object_set_new(content, media, json_pack("{s:o}", "schema", schema));
    return content;
}

static json_t *response(const char *description, json_t *content)
{
    return json_pack("{s:s, s:o*}", "description", description, "content", content);
}

/* ---- paths ---- */

/* "{rest...}" has a name of its own in the document. */
static void write_path(struct buf *out, const char *pattern)
{
    const char *rest = strstr(pattern, "{rest...}");

    if (rest)
        buf_printf(out, "%.*s{name}", (int)(rest - pattern), pattern);
    else
        buf_add_str(out, pattern);
}

static void add_parameter(json_t *list, const char *name, json_t *schema)
{
    json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:o}", "name", name, "in", "path",
                                          "required", 1, "schema", schema));
}

static json_t *parameters_of(const char *pattern)
{
    json_t *list = json_array();

    if (strstr(pattern, "{id}"))
        add_parameter(list, "id", json_pack("{s:s, s:i}", "type", "integer", "minimum", 1));
    if (strstr(pattern, "{key}"))
        add_parameter(list, "key", json_pack("{s:s, s:i}", "type", "string", "maxLength", 64));
    if (strstr(pattern, "{rest...}"))
        add_parameter(list, "name", json_pack("{s:s}", "type", "string"));
    return list;
}

/* "post_v1_chat_completions" */
static json_t *operation_id(const char *method, const char *pattern)
{
    struct buf id = {0};
    json_t *v;

    for (; *method; method++)
        buf_add_char(&id, (char)tolower((unsigned char)*method));
    for (const char *p = pattern; *p; p++)
        if (isalnum((unsigned char)*p))
            buf_add_char(&id, *p);
        else if (id.len && id.data[id.len - 1] != '_')
            buf_add_char(&id, '_');
    while (id.len && id.data[id.len - 1] == '_')
        id.len--;
    v = json_stringn(buf_str(&id), id.len);
    buf_release(&id);
    return v;
}

/* ---- faces ---- */

enum face { FACE_OPENAI, FACE_TRAINING, FACE_MANAGEMENT, FACE_PLAIN };

static enum face face_of(const char *pattern)
{
    if (strncmp(pattern, "/v1/", 4) == 0)
        return FACE_OPENAI;
    if (strncmp(pattern, "/api/v1/", 8) == 0)
        return FACE_TRAINING;
    if (strncmp(pattern, "/api/", 5) == 0 && strncmp(pattern, "/api/health", 11) != 0)
        return FACE_MANAGEMENT;
    return FACE_PLAIN;
}

static const struct {
    const char *tag, *error;
} faces[] = {
    [FACE_OPENAI] = {"OpenAI", "OpenAIError"},
    [FACE_TRAINING] = {"Training", "TrainingError"},
    [FACE_MANAGEMENT] = {"Management", "Error"},
    [FACE_PLAIN] = {"Service", "BareError"},
};

/* ENV-01: what a success of the management face stands in. */
static json_t *enveloped(json_t *data)
{
    return json_pack("{s:s, s:[s,s,s], s:{s:{s:b}, s:o, s:{s:s}}}", "type", "object", "required",
                     "success", "data", "error", "properties", "success", "const", 1, "data", data,
                     "error", "type", "null");
}

/* ---- one operation ---- */

static json_t *request_body(const struct api_route *route)
{
    if (route->body == BODY_UPLOAD)
        return json_pack("{s:b, s:o}", "required", 1, "content",
                         media_object("multipart/form-data", schema_ref("Object")));
    if (!route->doc.asks)
        return NULL;
    return json_pack("{s:b, s:o}", "required", strcmp(route->doc.asks, "Empty") != 0, "content",
                     media_object("application/json", schema_ref(route->doc.asks)));
}

static json_t *success_content(const struct api_route *route, enum face face)
{
    const struct api_doc *d = &route->doc;
    json_t *content;

    if (!d->answers)
        return media_object(d->media, json_pack("{s:s}", "type", "string"));
    content =
        media_object("application/json", face == FACE_MANAGEMENT ? enveloped(schema_ref(d->answers))
                                                                 : schema_ref(d->answers));
    if (strcmp(d->answers, "ChatCompletion") == 0 || strcmp(d->answers, "Completion") == 0)
        json_object_set_new(content, "text/event-stream",
                            json_pack("{s:{s:s}}", "schema", "type", "string"));
    return content;
}

static json_t *operation(const struct api_route *route)
{
    const struct api_doc *d = &route->doc;
    enum face face = face_of(route->pattern);
    json_t *responses = json_object();
    json_t *o = json_pack("{s:o, s:s, s:[s], s:o, s:o*}", "operationId",
                          operation_id(route->method, route->pattern), "summary", d->summary,
                          "tags", faces[face].tag, "parameters", parameters_of(route->pattern),
                          "requestBody", request_body(route));
    char status[8];

    snprintf(status, sizeof status, "%d", d->status);
    json_object_set_new(responses, status, response("Done.", success_content(route, face)));
    json_object_set_new(responses, "default",
                        response("Refused, or failed: docs/api/errors.md.",
                                 media_object("application/json", schema_ref(faces[face].error))));
    json_object_set_new(o, "responses", responses);
    if (d->token)
        json_object_set_new(o, "security", json_pack("[{s:[]}]", "token"));
    return o;
}

static void add_operation(json_t *paths, const struct api_route *route)
{
    struct buf path = {0};
    char method[16] = "";
    json_t *item;

    for (size_t i = 0; route->method[i] && i + 1 < sizeof method; i++)
        method[i] = (char)tolower((unsigned char)route->method[i]);
    write_path(&path, route->pattern);
    item = json_object_get(paths, buf_str(&path));
    if (!item) {
        item = json_object();
        json_object_set_new(paths, buf_str(&path), item);
    }
    json_object_set_new(item, method, operation(route));
    buf_release(&path);
}

/* The training API has a table of its own; its answers are described in docs/api. */
static void add_training(json_t *paths)
{
    size_t n;
    const struct weaver_route *table = weaver_routes(&n);

    for (size_t i = 0; i < n; i++) {
        struct api_route route = {
            .method = table[i].method,
            .pattern = table[i].pattern,
            .doc = {.summary = table[i].pattern + strlen("/api/v1/"),
                    .status = table[i].status,
                    .asks = table[i].body == WEAVER_NO_BODY ? NULL : "Object",
                    .answers = "Object",
                    .token = !table[i].by_address},
        };

        add_operation(paths, &route);
    }
}

static json_t *all_paths(void)
{
    json_t *paths = json_object();
    size_t n;
    const struct api_route *table = api_routes(&n);

    for (size_t i = 0; i < n; i++)
        if (table[i].doc.summary)
            add_operation(paths, &table[i]);
    add_training(paths);
    return paths;
}

/* ---- the bodies of /v1: the tables of fields ---- */

struct properties {
    json_t *object;
    const json_t *parts; /* schemas of fields that code reads */
};

static void add_property(void *arg, const struct field_facts *f)
{
    struct properties *p = arg;
    json_t *schema;

    if (!f->type)
        schema = json_copy(json_object_get(p->parts, f->name));
    else
        schema = json_pack("{s:[s,s]}", "type", f->type, "null");
    if (f->type && strcmp(f->type, "boolean") != 0) {
        json_object_set_new(schema, "minimum", json_real(f->least));
        json_object_set_new(schema, "maximum", json_real(f->most));
    }
    json_object_set_new(p->object, f->name, schema ? schema : json_object());
}

static void add_request(json_t *schemas, const char *name, enum endpoint where, const char *input,
                        const json_t *parts)
{
    struct properties p = {.object = json_object(), .parts = parts};

    fields_each(where, add_property, &p);
    json_object_set_new(schemas, name,
                        json_pack("{s:s, s:[s,s], s:o}", "type", "object", "required", "model",
                                  input, "properties", p.object));
}

json_t *openapi_document(const char *version)
{
    struct err e = {0};
    json_t *parts = json_parse((const char *)parts_text, sizeof parts_text, &e);
    json_t *schemas = json_object_get(parts, "schemas");
    const json_t *fields = json_object_get(parts, "fields");
    json_t *doc;

    if (!parts)
        return NULL;
    add_request(schemas, "ChatRequest", ON_CHAT, "messages", fields);
    add_request(schemas, "CompletionRequest", ON_COMPLETIONS, "prompt", fields);
    add_request(schemas, "EmbeddingRequest", ON_EMBEDDINGS, "input", fields);
    doc = json_pack("{s:s, s:{s:s, s:s}, s:[{s:s}], s:o, s:{s:O, s:{s:{s:s, s:s}}}}", "openapi",
                    "3.1.0", "info", "title", "Cairn", "version", version, "servers", "url", "/",
                    "paths", all_paths(), "components", "schemas", schemas, "securitySchemes",
                    "token", "type", "http", "scheme", "bearer");
    json_decref(parts);
    return doc;
}

void openapi_get(struct api_call *call)
{
    api_json(call, 200, openapi_document(call->api->version));
}
