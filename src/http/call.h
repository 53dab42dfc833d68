/* http/call.h - inside of the room: one exchange, its connection and the server that owns both.
 *
 * Life of a call: NEW (request line) -> READING (body) -> COMPLETE -> RUNNING (connection parked,
 * handler on a pool thread) -> READY (resumed, the answer leaves). COMPLETE lets the library leave
 * its reading state: a connection that is parked while reading is read again when it is resumed,
 * and the end of a half-closed client's data would end it there, without an answer.
 *
 * A call is counted: one reference each for the connection (until the library says completed), the
 * handler (until it returned), a stream (until http_stream_end) and the library's response that
 * reads the stream.
 *
 * Locks: conns' lock covers the list of connections and what the watcher does to their calls;
 * call->lock covers the gone function and the stream's bytes. Order: conns, call, then the
 * library's own. */
#ifndef HTTP_CALL_H
#define HTTP_CALL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/buf.h"
#include "http/body.h"
#include "http/conns.h"
#include "http/request.h"
#include "http/response.h"
#include "http/server.h"
#include "http/workers.h"

typedef enum MHD_Result queue_response_fn(struct MHD_Connection *c, unsigned int status,
                                          struct MHD_Response *r);

struct http_server {
    struct http_config c; /* its strings are owned */
    struct MHD_Daemon *mhd;
    queue_response_fn *queue_response; /* the library's own; see own_pages.c */
    int listen_fd;
    int port;
    struct conns *conns;
    struct workers *workers;
    struct body_budget budget;
    atomic_int running;   /* handlers and streams that are not done */
    atomic_bool stopping; /* connections that are open get no further answers */
    atomic_uint_fast64_t requests_total;
};

enum call_phase { CALL_NEW, CALL_READING, CALL_COMPLETE, CALL_RUNNING, CALL_READY, CALL_SENT };

struct http_resp {
    int status;
    struct http_field *headers; /* array and strings in the call's arena */
    int n_headers;
    struct buf body;
    int file; /* instead of the body; owned, -1: none */
    size_t file_from, file_bytes;
    const char *content_type;
    bool close; /* the connection ends after this answer */
};

struct http_stream {
    struct buf waiting; /* bytes for the client; the first `sent` are gone already */
    size_t sent;
    bool begun, ended, dropped;
    bool parked;            /* the connection sleeps until there are bytes */
    int64_t progress_ns;    /* when the client last took something, or had nothing to take */
    const char *keep_alive; /* static, or NULL */
};

struct http_call {
    struct http_req req; /* first: a request, its answer and its stream lead to the call */
    struct http_resp resp;
    struct http_stream stream;
    struct http_server *srv;
    struct conn *conn;
    struct MHD_Connection *mhd;
    const char *uri, *uri_end;   /* in the library's memory, until the header has been read */
    struct MHD_Response *answer; /* what goes out; owned until queued */
    size_t answer_bytes;         /* of its body, 0 for a stream */
    struct arena arena;
    struct body body;
    size_t body_limit;
    struct work work;
    enum call_phase phase;
    bool http_1_1, broken_lines,
        linger; /* linger: the client may still be sending, so close gently */
    atomic_int refs;
    atomic_bool gone;
    pthread_mutex_t lock;
    http_gone_fn *gone_fn;
    void *gone_arg;
};

/* call.c */
/* NULL: out of memory. `s` NULL: a request without a connection (local.c). */
struct http_call *call_new(struct http_server *s, const char *uri);
void call_ref(struct http_call *call);
void call_unref(struct http_call *call);
void call_set_gone(struct http_call *call); /* any thread; once */
struct http_call *call_of_req(struct http_req *req);
struct http_call *call_of_resp(struct http_resp *r);
struct http_call *call_of_stream(struct http_stream *s);
int call_read_head(struct http_call *call, const char *method); /* -1: out of memory */
void call_identify(struct http_call *call);  /* fills req.client and req.request_id */
void call_choose_id(struct http_call *call); /* fills req.request_id */

/* exchange.c: what the library calls. */
enum MHD_Result exchange_on_request(void *cls, struct MHD_Connection *c, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_len, void **state);
void *exchange_on_uri(void *cls, const char *uri, struct MHD_Connection *c);
void exchange_on_completed(void *cls, struct MHD_Connection *c, void **state,
                           enum MHD_RequestTerminationCode why);

/* answer.c: call->answer from the filled call->resp, or as a stream. -1: out of memory. */
int answer_build(struct http_call *call);
int answer_build_stream(struct http_call *call);
void answer_write(struct http_call *call, struct buf *out); /* the whole answer as bytes */
void answer_resume(struct http_call *call); /* the connection goes on and sends call->answer */
enum MHD_Result answer_queue(struct http_call *call); /* epoll thread; gives call->answer away */
void answer_forget(struct http_call *call);

/* refuse.c: answers that the server makes itself. */
enum MHD_Result refuse_now(struct http_call *call, enum http_refusal kind, size_t measured,
                           const char *message); /* before the body is read */
enum MHD_Result refuse_midway(struct http_call *call, enum http_refusal kind, size_t measured,
                              const char *message); /* while it is read, or never will be */

/* own_pages.c: what the library answers itself. NULL: the library cannot be found. */
queue_response_fn *own_pages_library(void);

enum MHD_Result answer_preflight(struct http_call *call);

/* framing.c: the lines of the header as they lie in the library's memory, in order; then the end.
 */
struct line_order {
    const char *end; /* of the last value */
    bool broken;     /* a folded line or a NUL */
};
void framing_see_line(struct line_order *o, const char *name, const char *value);
void framing_see_end(struct line_order *o);

/* The request line as the library cut it in place: whether one space stood between its three parts,
 * and no NUL in them. */
bool framing_line_whole(const char *method, const char *uri, const char *uri_end,
                        const char *version);

/* NULL, or why the header must be refused. */
const char *framing_fault(const struct http_req *req, const char *version);
bool framing_has_body(const struct http_req *req);
int64_t framing_length(const struct http_req *req); /* -1: chunked or none */

/* guard.c: who may talk to us. Names and origins are compared in any case. */
bool guard_host_ok(const struct http_config *c, const char *host);
bool guard_origin_ok(const struct http_config *c, const char *origin, const char *host);
bool guard_origin_listed(const char *list, const char *origin);

/* response.c: the library's reader of a stream, and what the watcher asks. */
ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max);
void stream_drop(struct http_call *call); /* call->lock held */
/* Dropped, or its client has taken nothing for too long: the connection is to be cut. Breaks the
 * silence of a stream that wants it. */
bool stream_stuck(struct http_call *call, int64_t now_ns);
#endif
