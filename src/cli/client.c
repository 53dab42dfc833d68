#include "cli/client.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

enum { ANSWER_MAX = 256 << 20, CODE_MAX = 40, POLL_NS = 50000000 };

struct client {
    CURL *curl;
    char url[1024];
    struct buf no_proxy;        /* hosts that are asked directly */
    struct curl_slist *headers; /* sent with every request */
};

/* One exchange: where the bytes of the answer go. */
struct exchange {
    CURL *curl;
    struct buf body;
    struct client_reply *reply;
    client_event_fn *on_event; /* NULL: gather */
    void *arg;
    bool is_stream, done, left;
};

static const char *or_env(const char *value, const char *name, const char *otherwise)
{
    const char *env = getenv(name);

    if (value)
        return value;
    return env && *env ? env : otherwise;
}

/* This machine needs no proxy, which would see the token, too. */
static void spare_proxy(struct client *c)
{
    const char *more = or_env(NULL, "no_proxy", or_env(NULL, "NO_PROXY", NULL));

    buf_printf(&c->no_proxy, "localhost,127.0.0.1,::1%s%s", more ? "," : "", more ? more : "");
}

static void add_header(struct client *c, const char *name, const char *value)
{
    struct buf b = {0};

    if (!value)
        return;
    buf_printf(&b, "%s%s", name, value);
    c->headers = curl_slist_append(c->headers, buf_str(&b));
    buf_release(&b);
}

static int refuse_url(const char *url, struct err *e)
{
    return err_set(e, ERR_ARG,
                   "\"%.200s\" is no URL of a server: http://HOST:PORT is (--url, or CAIRN_URL)",
                   url);
}

/* Without a scheme it is http. Nothing else is spoken: file:// would read whatever lies there. */
static int take_url(struct client *c, const char *url, struct err *e)
{
    const char *colon = strstr(url, "://"), *host = colon ? colon + 3 : url;
    size_t n = strlen(url);

    if (!*host || *host == '/' ||
        (colon && strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0))
        return refuse_url(url, e);
    if (n >= sizeof c->url)
        return err_set(e, ERR_ARG, "the server's URL is longer than %zu bytes", sizeof c->url - 1);
    memcpy(c->url, url, n + 1);
    while (n && c->url[n - 1] == '/')
        c->url[--n] = 0;
    return 0;
}

struct client *client_new(const struct client_args *args, struct err *e)
{
    struct client *c = calloc(1, sizeof *c);

    if (!c || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(c->curl = curl_easy_init())) {
        free(c);
        err_nomem(e);
        return NULL;
    }
    if (take_url(c, or_env(args->url, "CAIRN_URL", "http://127.0.0.1:8000"), e) < 0) {
        client_free(c);
        return NULL;
    }
    spare_proxy(c);
    add_header(c, "Authorization: Bearer ", or_env(args->token, "CAIRN_TOKEN", NULL));
    add_header(c, "X-miLLM-Attachment: ", or_env(args->attachment, "CAIRN_ATTACHMENT", NULL));
    add_header(c, "X-miLLM-Lease: ", or_env(args->lease, "CAIRN_LEASE", NULL));
    add_header(c, "X-WEAVER-API-KEY: ", or_env(args->key, "WEAVER_API_KEY", NULL));
    add_header(c, "Content-Type: ", "application/json");
    add_header(c, "Expect:", "");
    return c;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    curl_slist_free_all(c->headers);
    buf_release(&c->no_proxy);
    curl_easy_cleanup(c->curl);
    free(c);
}

/* "data: {...}" lines of the gathered text, as far as they are complete. */
static void take_events(struct exchange *x)
{
    char *line = x->body.data, *end;
    struct err ignored = {0};
    size_t used;

    while (line && !x->left && (end = strchr(line, '\n'))) {
        *end = 0;
        if (!strncmp(line, "data: ", 6) && strcmp(line + 6, "[DONE]") != 0) {
            json_t *event = json_parse(line + 6, strlen(line + 6), &ignored);

            if (event && !x->on_event(x->arg, event))
                x->left = true;
            json_decref(event);
        } else if (!strncmp(line, "data: [DONE]", 12)) {
            x->done = true;
        }
        line = end + 1;
    }
    if (!line)
        return;
    used = (size_t)(line - x->body.data);
    memmove(x->body.data, line, x->body.len - used + 1);
    x->body.len -= used;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct exchange *x = arg;

    buf_add(&x->body, bytes, size * n);
    if (x->body.failed || x->body.len > ANSWER_MAX)
        return 0;
    if (x->on_event && x->is_stream)
        take_events(x);
    return x->left ? 0 : size * n;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    static const char model[] = "x-millm-model:", type[] = "content-type:";
    struct exchange *x = arg;
    size_t len = size * n;

    if (len > sizeof type && !strncasecmp(bytes, type, sizeof type - 1))
        x->is_stream = memmem(bytes, len, "text/event-stream", 17) != NULL;
    if (len > sizeof model && !strncasecmp(bytes, model, sizeof model - 1)) {
        size_t from = sizeof model - 1, to = len;

        while (from < to && bytes[from] == ' ')
            from++;
        while (to > from && (bytes[to - 1] == '\n' || bytes[to - 1] == '\r'))
            to--;
        if (to - from < sizeof x->reply->model) {
            memcpy(x->reply->model, bytes + from, to - from);
            x->reply->model[to - from] = 0;
        }
    }
    return len;
}

/* What every request has; nothing of the one before is left. */
static void prepare(struct client *c, const char *url)
{
    curl_easy_reset(c->curl);
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(c->curl, CURLOPT_NOPROXY, buf_str(&c->no_proxy));
}

static int perform(struct client *c, const char *method, const char *path, const json_t *body,
                   struct exchange *x, struct err *e)
{
    struct buf url = {0}, text = {0};
    CURLcode rc;

    buf_printf(&url, "%s%s", c->url, path);
    if (body)
        json_write(&text, body);
    prepare(c, buf_str(&url));
    curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    if (body) {
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, buf_str(&text));
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)text.len);
    }
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, x);
    rc = curl_easy_perform(c->curl);
    buf_release(&url);
    buf_release(&text);
    if (rc == CURLE_WRITE_ERROR && x->left)
        return 0;
    if (rc == CURLE_URL_MALFORMAT)
        return refuse_url(c->url, e);
    if (rc == CURLE_COULDNT_CONNECT)
        return err_set(e, ERR_IO,
                       "no server answers at %s; start one with `cairn serve`, or say --url",
                       c->url);
    if (rc != CURLE_OK)
        return err_set(e, ERR_IO, "%s %s%s: %s", method, c->url, path, curl_easy_strerror(rc));
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &x->reply->status);
    return 0;
}

static void read_body(struct exchange *x)
{
    struct err ignored = {0};

    if (x->body.len)
        x->reply->body = json_parse(x->body.data, x->body.len, &ignored);
    buf_release(&x->body);
}

int client_call(struct client *c, const char *method, const char *path, const json_t *body,
                struct client_reply *reply, struct err *e)
{
    struct exchange x = {.reply = reply};
    int rc = perform(c, method, path, body, &x, e);

    read_body(&x);
    return rc;
}

int client_stream(struct client *c, const char *path, const json_t *body, client_event_fn *on_event,
                  void *arg, struct client_reply *reply, struct err *e)
{
    struct exchange x = {.reply = reply, .on_event = on_event, .arg = arg};
    int rc = perform(c, "POST", path, body, &x, e);

    if (rc == 0 && x.is_stream && !x.done && !x.left)
        rc = err_set(e, ERR_IO, "the stream ended before its last event");
    read_body(&x);
    return rc;
}

void client_reply_release(struct client_reply *reply)
{
    json_decref(reply->body);
    reply->body = NULL;
}

static enum err_code code_of_status(long status)
{
    switch (status) {
    case 404:
    case 410:
        return ERR_NOT_FOUND;
    case 409:
        return ERR_CONFLICT;
    case 507:
        return ERR_SPACE;
    default:
        return status < 500 ? ERR_ARG : ERR_IO;
    }
}

/* The server speaks of headers; who types commands sets them otherwise. */
static const char *hint_of(const char *code, const char *message)
{
    static const struct {
        const char *code, *about, *hint; /* about: what the message must speak of */
    } hints[] = {
        {"UNAUTHORIZED", "", " (--token, or CAIRN_TOKEN)"},
        {"NOT_ATTACHMENT_HOLDER", "", " (--attachment, or CAIRN_ATTACHMENT)"},
        {"MODEL_LEASED", "", " (--lease, or CAIRN_LEASE, if the lease is yours)"},
        {"INVALID_LEASE_REQUEST", "X-miLLM-Lease", " (--lease, or CAIRN_LEASE)"},
        {"unauthorized", "", " (--key, or WEAVER_API_KEY)"},
    };

    for (size_t i = 0; code && i < sizeof hints / sizeof *hints; i++)
        if (strcmp(hints[i].code, code) == 0 && strstr(message, hints[i].about))
            return hints[i].hint;
    return "";
}

int client_expect(const struct client_reply *reply, struct err *e)
{
    const json_t *error = json_object_get(reply->body, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    const char *message = json_string_value(json_object_get(error, "message")), *hint;

    if (json_is_string(error)) { /* the training API: {"error": code, "message"} */
        code = json_string_value(error);
        message = json_string_value(json_object_get(reply->body, "message"));
    }
    if (reply->status < 400)
        return 0;
    if (!message)
        return err_set(e, code_of_status(reply->status), "the server answered with status %ld",
                       reply->status);
    hint = hint_of(code, message); /* which has its place, however long the message is */
    err_set(e, code_of_status(reply->status), "%s%s%.*s%s", code ? code : "", code ? ": " : "",
            (int)(sizeof e->msg - strlen(hint) - CODE_MAX), message, hint);
    return err_detail(e, "HTTP status %ld", reply->status);
}

json_t *client_data(struct client *c, const char *method, const char *path, const json_t *body,
                    struct err *e)
{
    struct client_reply reply = {0};
    json_t *data = NULL;

    if (client_call(c, method, path, body, &reply, e) == 0 && client_expect(&reply, e) == 0) {
        data = json_incref(json_object_get(reply.body, "data"));
        if (!data)
            err_set(e, ERR_FORMAT, "the answer to %s %s has no data: is this a cairn server?",
                    method, path);
    }
    client_reply_release(&reply);
    return data;
}

char *client_escape(struct client *c, const char *segment)
{
    char *from = curl_easy_escape(c->curl, segment, 0), *copy;

    copy = from ? strdup(from) : NULL;
    curl_free(from);
    return copy;
}

json_t *client_weaver(struct client *c, const char *method, const char *path, const json_t *body,
                      struct err *e)
{
    struct client_reply reply = {0};
    json_t *data = NULL;

    if (client_call(c, method, path, body, &reply, e) == 0 && client_expect(&reply, e) == 0)
        data = reply.body ? json_incref(reply.body) : json_object();
    client_reply_release(&reply);
    return data;
}

static bool goes_on(const json_t *envelope)
{
    const char *status = json_text_or(envelope, "status", "");

    return strcmp(status, "pending") == 0 || strcmp(status, "running") == 0;
}

json_t *client_wait(struct client *c, json_t *envelope, struct err *e)
{
    char path[128];

    while (envelope && goes_on(envelope)) {
        snprintf(path, sizeof path, "/api/v1/operations/%.40s", json_text_or(envelope, "id", ""));
        json_decref(envelope);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        envelope = client_weaver(c, "GET", path, NULL, e);
    }
    return envelope;
}

static size_t to_file(char *bytes, size_t size, size_t n, void *arg)
{
    size_t left = size * n;

    while (left) {
        ssize_t wrote = write(*(const int *)arg, bytes, left);

        if (wrote < 0)
            return 0;
        bytes += wrote;
        left -= (size_t)wrote;
    }
    return size * n;
}

int client_download(struct client *c, const char *url, int fd, struct err *e)
{
    long status = 0;
    CURLcode rc;

    prepare(c, url);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, to_file);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, &fd);
    rc = curl_easy_perform(c->curl);
    if (rc != CURLE_OK)
        return err_set(e, ERR_IO, "GET %.200s: %s", url, curl_easy_strerror(rc));
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    return status == 200
               ? 0
               : err_set(e, ERR_IO, "GET %.200s: the server answered with status %ld", url, status);
}
