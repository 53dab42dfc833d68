/* http/server.h - an HTTP/1.1 server: one thread that moves bytes, a pool of threads that answer.
 *
 * Order: fill a config, http_server_start, ..., http_server_stop. The epoll thread reads requests,
 * bounds them and never calls a handler; a handler runs on a pool thread and may block. While it
 * runs its connection is parked, and a watcher thread looks whether the client is still there.
 *
 * What the server settles alone: framing (RFC 9112: doubtful lengths and encodings are refused with
 * 400 and the connection closes), limits of size and time, X-Request-ID, CORS, and which Host and
 * Origin may talk to us. Bodies of those refusals come from `refuse`, so that they have the form of
 * the route's face. */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct http_req;
struct http_resp;
struct http_server;

/* Answers one request, on a pool thread. `resp` is sent when the function returns, unless it began
 * a stream. Both are borrowed until then (a stream keeps the request alive until http_stream_end).
 */
typedef void http_handler_fn(void *arg, struct http_req *req, struct http_resp *resp);

/* The most bytes a body of this request may have. Epoll thread; must not block. */
typedef size_t http_limit_fn(void *arg, const char *method, const char *raw_path);

/* Writes the body of a refusal that the server makes itself, and returns its content type (static).
 * It may put another status in place of the refusal's own: what else it knows of the request may
 * stand before it. Epoll thread. */
enum http_refusal {
    HTTP_BAD_REQUEST,  /* 400 framing */
    HTTP_TOO_LARGE,    /* 413; limit and measured bytes are given */
    HTTP_BAD_HOST,     /* 403 Host is neither local nor listed */
    HTTP_BAD_ORIGIN,   /* 403 Origin is foreign and not listed */
    HTTP_OVERLOADED,   /* 503 bodies in flight, threads or memory */
    HTTP_LONG_ADDRESS, /* 414 the request line */
    HTTP_LONG_HEADER,  /* 431 all header lines together */
    HTTP_BAD_VERSION,  /* 505 another protocol than HTTP/1 */
};
struct http_refusal_facts {
    enum http_refusal kind;
    int status;
    const char *message; /* one sentence */
    size_t limit_bytes, measured_bytes;
    const struct http_req *req; /* method, path, headers, client, id; its body is not read */
    const char *challenge;      /* set by the function: WWW-Authenticate, static; NULL: none */
};
typedef const char *http_refuse_fn(void *arg, const char *raw_path, struct http_refusal_facts *f,
                                   struct buf *body);

struct http_config {
    const char *host;         /* "127.0.0.1", "::1", "0.0.0.0" or a name; NULL: 127.0.0.1 */
    uint16_t port;            /* 0: the system chooses, see http_server_port */
    const char *cors_origins; /* "" or NULL: none, "*": all, else a comma list of origins */
    const char *cors_expose;  /* header names for Access-Control-Expose-Headers, comma list */
    const char *hosts;        /* further names that Host may carry, comma list; NULL: none */
    const char *spool_dir;    /* bodies over spool_bytes lie here in unlinked files; NULL: /tmp */
    http_handler_fn *handler;
    http_limit_fn *limit;   /* NULL: 1 MiB */
    http_refuse_fn *refuse; /* NULL: {"detail": message} */
    void *arg;              /* of the three functions above */
    /* Limits; 0: the default in brackets. */
    int max_threads;           /* handlers at once [192] */
    int max_connections;       /* [4096], lowered to what the descriptor limit allows */
    size_t max_header_bytes;   /* request line and headers [32 KiB] */
    size_t max_inflight_bytes; /* all bodies together [512 MiB] */
    size_t spool_bytes;        /* a body larger than this goes to a file [16 MiB] */
    int head_timeout_ms;       /* a connection that has not sent a whole header [60 s] */
    int body_timeout_ms;       /* besides 1 s for each 64 KiB of the body that came [30 s] */
    int send_timeout_ms;       /* a client that takes nothing of its answer [60 s] */
    int retry_after_s;         /* Retry-After of a 503 of the server itself [10] */
    int keep_alive_ms;         /* a comment in an event stream that is silent [15 s] */
    size_t stream_bytes;       /* unread bytes of one stream before its client is dropped [4 MiB] */
};

/* Copies the config. NULL with ERR_ARG (host), ERR_CONFLICT (address in use), ERR_IO, ERR_NOMEM. */
struct http_server *http_server_start(const struct http_config *c, struct err *e);
int http_server_port(const struct http_server *s); /* the port that is really bound */

/* Takes no new connections and refuses what comes on open ones with 503, waits up to grace_ms for
 * running handlers, then marks every request as gone and waits for the handlers to return. NULL is
 * allowed. */
void http_server_stop(struct http_server *s, int grace_ms);

struct http_stats {
    int connections, requests_running, threads;
    size_t inflight_bytes;
    uint64_t requests_total;
};
void http_server_stats(struct http_server *s, struct http_stats *out);
#endif
