#include "http/conns.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "http/call.h"
#include "http/peer.h"

enum { EVENTS_AT_ONCE = 64, LINGER_BYTES = 8 << 20 };
enum {
    TICK_MS = 500,
    PROBE_TICK_MS = 20
}; /* between two sweeps; while a half-closed client is watched */
static const int64_t LINGER_NS = 2000000000;

struct conn {
    struct conn *prev, *next; /* in conns->live, or in conns->dead by next */
    int fd;
    bool lingering;   /* a duplicate that the watcher drains and closes */
    bool half_closed; /* a FIN came: the client closed its sending side, or all */
    bool may_probe;   /* an interim answer may go out to find out, once */
    bool hung;        /* reset: nobody is there any more */
    bool removed;
    bool idle; /* waits for a request, or for the rest of its header */
    int64_t deadline_ns;
    size_t drained;
    struct http_call *call;
    struct http_server *server;
    struct http_call *reading; /* the epoll thread's alone */
};

struct conns {
    pthread_mutex_t lock;
    pthread_t watcher;
    struct conn *live, *oldest, *dead; /* live: newest first */
    int count, high, half_closed;
    int epoll_fd, wake_fd, diag_fd;
    bool stopping;
};

static void list_add(struct conns *cs, struct conn *c)
{
    c->prev = NULL;
    c->next = cs->live;
    if (cs->live)
        cs->live->prev = c;
    else
        cs->oldest = c;
    cs->live = c;
    cs->count++;
}

static void wake(struct conns *cs)
{
    uint64_t one = 1;

    if (write(cs->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is awake */
}

/* Takes it off the list; the memory stays until the watcher is done with its current events.
 * Locked. */
static void retire(struct conns *cs, struct conn *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        cs->live = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        cs->oldest = c->prev;
    cs->count--;
    cs->half_closed -= c->half_closed;
    epoll_ctl(cs->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->lingering)
        close(c->fd);
    c->removed = true;
    c->next = cs->dead;
    cs->dead = c;
}

/* ---- what the watcher sees ---- */

/* A FIN of a client whose request runs: did it leave? Asked again at each tick until it is known.
 */
static void look_at_half_closed(struct conns *cs, struct conn *c)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    enum peer_state state;

    if (!c->call || atomic_load(&c->call->gone))
        return;
    state = peer_look(cs->diag_fd, c->fd);
    if (state == PEER_CLOSED) {
        call_set_gone(c->call);
    } else if (state == PEER_UNKNOWN && c->may_probe) {
        /* A client that left answers these bytes with a reset, which is the next event. */
        c->may_probe = false;
        send(c->fd, interim, sizeof interim - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

static void drain(struct conns *cs, struct conn *c)
{
    char scrap[16384];
    ssize_t n;

    while ((n = recv(c->fd, scrap, sizeof scrap, MSG_DONTWAIT)) > 0 && c->drained < LINGER_BYTES)
        c->drained += (size_t)n;
    if (n == 0 || c->drained >= LINGER_BYTES || (n < 0 && errno != EAGAIN))
        retire(cs, c);
}

static void on_event(struct conns *cs, struct conn *c, uint32_t events)
{
    if (c->removed)
        return;
    if (c->lingering) {
        drain(cs, c);
        return;
    }
    if (events & (EPOLLHUP | EPOLLERR)) {
        c->hung = true; /* perhaps before the call is known */
        if (c->call)
            call_set_gone(c->call);
    } else if (!c->half_closed) {
        c->half_closed = true;
        cs->half_closed++;
        look_at_half_closed(cs, c);
    }
}

static void sweep(struct conns *cs, int64_t now)
{
    struct conn *next;

    for (struct conn *c = cs->live; c; c = next) {
        next = c->next;
        if (c->half_closed)
            look_at_half_closed(cs, c);
        if (c->call && stream_stuck(c->call, now)) {
            call_set_gone(c->call);
            shutdown(c->fd, SHUT_RDWR);
        }
        if (!c->deadline_ns || now < c->deadline_ns)
            continue;
        if (c->lingering) {
            retire(cs, c);
        } else {
            c->deadline_ns = 0;
            shutdown(c->fd, SHUT_RDWR);
        }
    }
}

static void free_dead(struct conns *cs)
{
    while (cs->dead) {
        struct conn *c = cs->dead;

        cs->dead = c->next;
        free(c);
    }
}

static void *watcher_main(void *arg)
{
    struct conns *cs = arg;
    struct epoll_event evs[EVENTS_AT_ONCE];
    int64_t next_sweep = 0;
    int timeout = -1;
    bool stop = false;

    while (!stop) {
        int n = epoll_wait(cs->epoll_fd, evs, EVENTS_AT_ONCE, timeout);
        int64_t now = clock_mono_ns();
        uint64_t count;

        pthread_mutex_lock(&cs->lock);
        for (int i = 0; i < n; i++)
            if (evs[i].data.ptr)
                on_event(cs, evs[i].data.ptr, evs[i].events);
            else if (read(cs->wake_fd, &count, sizeof count) < 0)
                continue; /* nothing to clear */
        timeout = cs->half_closed ? PROBE_TICK_MS : cs->count ? TICK_MS : -1;
        if (now >= next_sweep) {
            sweep(cs, now);
            next_sweep = now + (int64_t)(cs->half_closed ? PROBE_TICK_MS : TICK_MS) * 1000000;
        }
        free_dead(cs);
        stop = cs->stopping;
        pthread_mutex_unlock(&cs->lock);
    }
    return NULL;
}

/* ---- the other threads ---- */

static int open_descriptors(struct conns *cs, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN};

    cs->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    cs->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cs->diag_fd = peer_diag_open();
    if (cs->epoll_fd < 0 || cs->wake_fd < 0 ||
        epoll_ctl(cs->epoll_fd, EPOLL_CTL_ADD, cs->wake_fd, &ev) < 0)
        return err_io(e, "watch connections");
    return 0;
}

static void close_all(struct conns *cs)
{
    free_dead(cs);
    if (cs->epoll_fd >= 0)
        close(cs->epoll_fd);
    if (cs->wake_fd >= 0)
        close(cs->wake_fd);
    if (cs->diag_fd >= 0)
        close(cs->diag_fd);
    pthread_mutex_destroy(&cs->lock);
    free(cs);
}

struct conns *conns_start(int high, struct err *e)
{
    struct conns *cs = calloc(1, sizeof *cs);

    if (!cs) {
        err_nomem(e);
        return NULL;
    }
    cs->high = high;
    pthread_mutex_init(&cs->lock, NULL);
    if (open_descriptors(cs, e) < 0)
        goto fail;
    if ((errno = pthread_create(&cs->watcher, NULL, watcher_main, cs)) != 0) {
        err_io(e, "start the thread that watches connections");
        goto fail;
    }
    return cs;

fail:
    close_all(cs);
    return NULL;
}

void conns_stop(struct conns *cs)
{
    if (!cs)
        return;
    pthread_mutex_lock(&cs->lock);
    cs->stopping = true;
    pthread_mutex_unlock(&cs->lock);
    wake(cs);
    pthread_join(cs->watcher, NULL);
    while (cs->live) /* duplicates that were still being drained */
        retire(cs, cs->live);
    close_all(cs);
}

int conns_count(struct conns *cs)
{
    int n;

    pthread_mutex_lock(&cs->lock);
    n = cs->count;
    pthread_mutex_unlock(&cs->lock);
    return n;
}

/* A thousand connections that say nothing must not keep the next client out. Locked. */
static void end_oldest_idle(struct conns *cs)
{
    for (struct conn *c = cs->oldest; c; c = c->prev)
        if (c->idle) {
            c->idle = false;
            shutdown(c->fd, SHUT_RDWR);
            return;
        }
}

static struct conn *add(struct conns *cs, struct conn *c, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    bool first;

    pthread_mutex_lock(&cs->lock);
    first = cs->count == 0;
    if (cs->count >= cs->high)
        end_oldest_idle(cs);
    list_add(cs, c);
    epoll_ctl(cs->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev);
    pthread_mutex_unlock(&cs->lock);
    if (first)
        wake(cs); /* it slept without a timeout */
    return c;
}

struct conn *conns_add(struct conns *cs, struct http_server *s, int fd)
{
    struct conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->fd = fd;
    c->server = s;
    return add(cs, c, EPOLLRDHUP | EPOLLET);
}

struct http_server *conn_server(const struct conn *c)
{
    return c->server;
}

void conn_set_reading(struct conn *c, struct http_call *call)
{
    if (c)
        c->reading = call;
}

struct http_call *conn_reading(const struct conn *c)
{
    return c->reading;
}

void conns_remove(struct conns *cs, struct conn *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    retire(cs, c);
    pthread_mutex_unlock(&cs->lock);
}

void conns_set_call(struct conns *cs, struct conn *c, struct http_call *call, bool may_probe)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    c->call = call;
    c->may_probe = may_probe;
    if (call && c->hung)
        call_set_gone(call);
    else if (c->half_closed)
        look_at_half_closed(cs, c);
    pthread_mutex_unlock(&cs->lock);
}

void conns_answer_begins(struct conns *cs, struct conn *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    c->may_probe = false;
    pthread_mutex_unlock(&cs->lock);
}

int conns_busy(struct conns *cs)
{
    int n = 0;

    pthread_mutex_lock(&cs->lock);
    for (struct conn *c = cs->live; c; c = c->next)
        n += c->call != NULL;
    pthread_mutex_unlock(&cs->lock);
    return n;
}

static void set_deadline(struct conns *cs, struct conn *c, int64_t at_ns, bool idle)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    c->deadline_ns = at_ns;
    c->idle = idle;
    pthread_mutex_unlock(&cs->lock);
}

void conns_set_deadline(struct conns *cs, struct conn *c, int64_t at_ns)
{
    set_deadline(cs, c, at_ns, false);
}

void conns_set_idle(struct conns *cs, struct conn *c, int64_t until_ns)
{
    set_deadline(cs, c, until_ns, true);
}

void conns_gone_all(struct conns *cs)
{
    pthread_mutex_lock(&cs->lock);
    for (struct conn *c = cs->live; c; c = c->next)
        if (c->call)
            call_set_gone(c->call);
    pthread_mutex_unlock(&cs->lock);
}

void conns_shut_all(struct conns *cs)
{
    pthread_mutex_lock(&cs->lock);
    for (struct conn *c = cs->live; c; c = c->next)
        if (!c->lingering)
            shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&cs->lock);
}

int conns_open(struct conns *cs)
{
    int n = 0;

    pthread_mutex_lock(&cs->lock);
    for (struct conn *c = cs->live; c; c = c->next)
        n += !c->lingering;
    pthread_mutex_unlock(&cs->lock);
    return n;
}

void conns_linger(struct conns *cs, int fd)
{
    struct conn *c = calloc(1, sizeof *c);

    shutdown(fd, SHUT_WR);
    if (!c)
        return;
    c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (c->fd < 0) {
        free(c);
        return;
    }
    c->lingering = true;
    c->deadline_ns = clock_mono_ns() + LINGER_NS;
    add(cs, c, EPOLLIN | EPOLLRDHUP);
}
