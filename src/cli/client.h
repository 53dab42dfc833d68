/* cli/client.h - the HTTP side of the command line: one connection to one server.
 *
 * The address is --url, else CAIRN_URL, else http://127.0.0.1:8000; the token --token, else
 * CAIRN_TOKEN. One thread. A reply is filled also for error statuses; client_expect turns those
 * into *e with the server's own sentence. */
#ifndef CLI_CLIENT_H
#define CLI_CLIENT_H

#include <jansson.h>
#include <stdbool.h>

struct cli_opt;
struct client;
struct err;

struct client_args {
    const char *url, *token, *attachment, *lease;
    const char *key; /* of the training API; WEAVER_API_KEY */
};

struct client_reply {
    long status;
    json_t *body;     /* owned; NULL when the answer holds no JSON */
    char model[1200]; /* X-miLLM-Model, or "" */
};

/* NULL with *e. `args` is copied; NULL members take the environment's value. */
struct client *client_new(const struct client_args *args, struct err *e);
void client_free(struct client *c);

/* Sends `body` (borrowed, may be NULL) and reads the whole answer. -1: no answer came. */
int client_call(struct client *c, const char *method, const char *path, const json_t *body,
                struct client_reply *reply, struct err *e);
void client_reply_release(struct client_reply *reply);

/* 0 when the status is below 400; else -1 with "CODE: message". */
int client_expect(const struct client_reply *reply, struct err *e);

/* client_call and client_expect; the `data` of the management envelope. Owned, or NULL with *e. */
json_t *client_data(struct client *c, const char *method, const char *path, const json_t *body,
                    struct err *e);

/* client_call and client_expect for the training API, whose answers have no envelope. Owned, or
 * NULL with *e; an empty answer gives {}. */
json_t *client_weaver(struct client *c, const char *method, const char *path, const json_t *body,
                      struct err *e);

/* The envelope of an operation of that API (consumed) once it has ended, in whatever way. Owned, or
 * NULL with *e. */
json_t *client_wait(struct client *c, json_t *envelope, struct err *e);

/* GET of an address that another answer named, written to `fd` from its beginning. No header of
 * ours is sent along. */
int client_download(struct client *c, const char *url, int fd, struct err *e);

/* POST with a streamed answer: each server-sent event's JSON is passed to `on_event` (borrowed)
 * until [DONE]. on_event returns false to leave. Answers that are not streams end up in *reply. */
typedef bool client_event_fn(void *arg, const json_t *event);
int client_stream(struct client *c, const char *path, const json_t *body, client_event_fn *on_event,
                  void *arg, struct client_reply *reply, struct err *e);

/* Path segment with everything but unreserved characters percent-encoded. Owned. */
char *client_escape(struct client *c, const char *segment);

/* The rows every client command shares, for its option table. */
#define CLIENT_OPTIONS(a)                                                                        \
    {.name = "url",                                                                              \
     .arg = "URL",                                                                               \
     .help = "server (CAIRN_URL, http://127.0.0.1:8000)",                                        \
     .str = &(a).url},                                                                           \
    {                                                                                            \
        .name = "token", .arg = "TOKEN", .help = "bearer token (CAIRN_TOKEN)", .str = &(a).token \
    }
#define CLIENT_OPTION_KEY(a)                                                             \
    {                                                                                    \
        .name = "key", .arg = "KEY", .help = "key of the training API (WEAVER_API_KEY)", \
        .str = &(a).key                                                                  \
    }
#define CLIENT_OPTION_LEASE(a)                                                            \
    {                                                                                     \
        .name = "lease", .arg = "ID", .help = "lease id (CAIRN_LEASE)", .str = &(a).lease \
    }
#define CLIENT_OPTION_ATTACHMENT(a)                                                    \
    {                                                                                  \
        .name = "attachment", .arg = "ID", .help = "attachment id (CAIRN_ATTACHMENT)", \
        .str = &(a).attachment                                                         \
    }
#endif
