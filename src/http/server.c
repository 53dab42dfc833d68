#include "http/server.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/err.h"
#include "http/call.h"

enum { BACKLOG = 1024, SPARE_DESCRIPTORS = 128, LAST_BYTES_MS = 500, CLOSE_MS = 10000 };

/* ---- the config, copied with its defaults ---- */

static int copy_string(const char **s, const char *fallback)
{
    *s = strdup(*s ? *s : fallback);
    return *s ? 0 : -1;
}

static void default_int(int *v, int fallback)
{
    if (*v <= 0)
        *v = fallback;
}

static void default_size(size_t *v, size_t fallback)
{
    if (*v == 0)
        *v = fallback;
}

static int copy_config(struct http_config *c, struct err *e)
{
    default_int(&c->max_threads, 192);
    default_int(&c->max_connections, 4096);
    default_size(&c->max_header_bytes, 32 << 10);
    default_size(&c->max_inflight_bytes, 512 << 20);
    default_size(&c->spool_bytes, 16 << 20);
    default_int(&c->head_timeout_ms, 60000);
    default_int(&c->body_timeout_ms, 30000);
    default_int(&c->send_timeout_ms, 60000);
    default_int(&c->retry_after_s, 10);
    default_int(&c->keep_alive_ms, 15000);
    default_size(&c->stream_bytes, 4 << 20);
    int failed = copy_string(&c->host, "127.0.0.1");
    failed |= copy_string(&c->cors_origins, "");
    failed |= copy_string(&c->cors_expose, "X-Request-ID");
    failed |= copy_string(&c->hosts, "");
    failed |= copy_string(&c->spool_dir, "/tmp");
    return failed ? err_nomem(e) : 0;
}

static void free_config(struct http_config *c)
{
    free((char *)c->host);
    free((char *)c->cors_origins);
    free((char *)c->cors_expose);
    free((char *)c->hosts);
    free((char *)c->spool_dir);
}

/* As many connections as descriptors allow, after asking for as many as the system gives. */
static void fit_connections(struct http_config *c)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY &&
        (rlim_t)c->max_connections + SPARE_DESCRIPTORS > r.rlim_cur)
        c->max_connections =
            r.rlim_cur > (rlim_t)2 * SPARE_DESCRIPTORS ? (int)r.rlim_cur - SPARE_DESCRIPTORS : 64;
}

/* ---- listening ---- */

static int bind_one(const struct addrinfo *a)
{
    int one = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    one = errno;
    close(fd);
    errno = one;
    return -1;
}

static int open_listener(const struct http_config *c, struct err *e)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[8];
    int fd = -1, rc;

    snprintf(port, sizeof port, "%u", c->port);
    rc = getaddrinfo(c->host, port, &hints, &found);
    if (rc != 0)
        return err_set(e, ERR_ARG, "the address %s to listen on is unknown: %s", c->host,
                       gai_strerror(rc));
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = bind_one(a);
    freeaddrinfo(found);
    if (fd < 0 && errno == EADDRINUSE)
        err_set(e, ERR_CONFLICT,
                "%s port %s is in use by another program: stop it, or choose another port (PORT, "
                "--port; 0 takes any free one)",
                c->host, port);
    else if (fd < 0)
        err_io(e, "listen on %s port %s", c->host, port);
    return fd;
}

static int bound_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {0};
    socklen_t n = sizeof a;

    if (getsockname(fd, &a.any, &n) < 0)
        return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

/* ---- the library's daemon ---- */

/* After some of its own pages the library does not tell that the request is over. */
static void end_unfinished(struct http_server *s, struct MHD_Connection *c, struct conn *conn)
{
    void *call = conn ? conn_reading(conn) : NULL;

    if (call)
        exchange_on_completed(s, c, &call, MHD_REQUEST_TERMINATED_WITH_ERROR);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *s = cls;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info ? conns_add(s->conns, s, info->connect_fd) : NULL;
        conns_set_idle(s->conns, *context,
                       clock_mono_ns() + (int64_t)s->c.head_timeout_ms * 1000000);
    } else {
        end_unfinished(s, c, *context);
        conns_remove(s->conns, *context);
        *context = NULL;
    }
}

/* Paths stay as they were sent; http/request.h decodes them once. */
static size_t keep_escapes(void *cls, struct MHD_Connection *c, char *s)
{
    (void)cls, (void)c;
    return strlen(s);
}

/* Its thread gets short turns on a core, and so do the handlers' threads, which it starts. */
static struct MHD_Daemon *start_daemon(struct http_server *s)
{
    struct MHD_Daemon *d;

    cpus_short_turns(true);
    d = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
                         exchange_on_request, s, MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->c.max_connections,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, s->c.max_header_bytes + 4096,
                         MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_URI_LOG_CALLBACK,
                         exchange_on_uri, s, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
                         MHD_OPTION_NOTIFY_COMPLETED, exchange_on_completed, s,
                         MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    cpus_short_turns(false);
    return d;
}

static int start_parts(struct http_server *s, struct err *e)
{
    s->listen_fd = open_listener(&s->c, e);
    if (s->listen_fd < 0)
        return -1;
    s->port = bound_port(s->listen_fd);
    s->conns = conns_start(s->c.max_connections - s->c.max_connections / 8, e);
    s->workers = s->conns ? workers_new(s->c.max_threads, e) : NULL;
    if (!s->workers)
        return -1;
    s->queue_response = own_pages_library();
    s->mhd = s->queue_response ? start_daemon(s) : NULL;
    return s->mhd ? 0 : err_set(e, ERR_IO, "the HTTP thread could not be started");
}

static void free_server(struct http_server *s)
{
    workers_free(s->workers);
    conns_stop(s->conns);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    free_config(&s->c);
    free(s);
}

struct http_server *http_server_start(const struct http_config *c, struct err *e)
{
    struct http_server *s = calloc(1, sizeof *s);

    if (!s) {
        err_nomem(e);
        return NULL;
    }
    s->c = *c;
    s->listen_fd = -1;
    if (copy_config(&s->c, e) < 0)
        goto fail;
    fit_connections(&s->c);
    s->budget.limit = s->c.max_inflight_bytes;
    s->budget.spool_bytes = s->c.spool_bytes;
    s->budget.spool_dir = s->c.spool_dir;
    if (start_parts(s, e) < 0)
        goto fail;
    return s;

fail:
    free_server(s);
    return NULL;
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

static void wait_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

/* Waits until no handler runs and every answer has left, at most ms. */
static void wait_idle(struct http_server *s, int ms)
{
    for (; ms > 0 && (atomic_load(&s->running) || conns_busy(s->conns)); ms -= 5)
        wait_ms(5);
}

/* Every connection ends before the library does: a page of its own that it queues while it stops is
 * a page that it believes to have and has not, and it crashes. */
static void wait_closed(struct http_server *s)
{
    conns_shut_all(s->conns);
    for (int ms = CLOSE_MS; ms > 0 && conns_open(s->conns); ms -= 5)
        wait_ms(5);
}

void http_server_stop(struct http_server *s, int grace_ms)
{
    if (!s)
        return;
    atomic_store(&s->stopping, true);
    MHD_quiesce_daemon(s->mhd);
    wait_idle(s, grace_ms);
    do { /* one may have begun in the instant of the stop */
        conns_gone_all(s->conns);
        wait_ms(5);
    } while (atomic_load(&s->running));
    wait_idle(s, LAST_BYTES_MS);
    wait_closed(s);
    MHD_stop_daemon(s->mhd);
    free_server(s);
}

void http_server_stats(struct http_server *s, struct http_stats *out)
{
    *out = (struct http_stats){
        .connections = conns_count(s->conns),
        .requests_running = atomic_load(&s->running),
        .threads = workers_threads(s->workers),
        .inflight_bytes = atomic_load(&s->budget.used),
        .requests_total = atomic_load(&s->requests_total),
    };
}
