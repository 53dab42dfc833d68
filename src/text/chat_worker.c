#include "text/chat_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "text/chat_filter.h"
#include "text/chat_source.h"
#include "text/chat_template.h"

static const char worker_script[] = {
#include "chat_worker.inc"
    0};

static const char python[] = "/usr/bin/python3";

enum {
    SCRIPT_FD = 3,    /* as chat_worker.py knows it */
    START_MS = 20000, /* for Python to import Jinja, on a very busy machine */
    ANSWER_MS =
        CHAT_TIME_MS + 3000, /* the worker keeps CHAT_TIME_MS itself; this is for a stuck one */
};

struct chat_worker {
    pthread_mutex_t lock; /* over one exchange; guards the rest */
    pid_t pid;            /* 0: no process */
    int fd;
};

struct chat_worker *chat_worker_new(struct err *e)
{
    struct chat_worker *w = calloc(1, sizeof *w);

    if (!w) {
        err_nomem(e);
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    w->fd = -1;
    return w;
}

static void stop(struct chat_worker *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    if (w->pid > 0) {
        kill(w->pid, SIGKILL);
        while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    w->pid = 0;
}

void chat_worker_free(struct chat_worker *w)
{
    if (!w)
        return;
    stop(w);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- bytes with a deadline ---- */

static int wait_for(int fd, short events, int64_t deadline_ns, struct err *e)
{
    struct pollfd p = {.fd = fd, .events = events};

    for (;;) {
        int64_t left_ms = (deadline_ns - clock_mono_ns() + 999999) / 1000000;
        int rc = left_ms > 0 ? poll(&p, 1, (int)left_ms) : 0;

        if (rc > 0)
            return 0;
        if (rc == 0)
            return err_set(e, ERR_IO, "the template worker does not answer");
        if (errno != EINTR)
            return err_io(e, "wait for the template worker");
    }
}

static int send_all(int fd, const void *bytes, size_t n, int64_t deadline_ns, struct err *e)
{
    const char *p = bytes;

    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            p += sent;
            n -= (size_t)sent;
        } else if (errno == EAGAIN) {
            if (wait_for(fd, POLLOUT, deadline_ns, e) < 0)
                return -1;
        } else if (errno != EINTR) {
            return err_io(e, "send to the template worker");
        }
    }
    return 0;
}

static int receive_all(int fd, void *bytes, size_t n, int64_t deadline_ns, struct err *e)
{
    char *p = bytes;

    while (n > 0) {
        ssize_t got = recv(fd, p, n, MSG_DONTWAIT);

        if (got > 0) {
            p += got;
            n -= (size_t)got;
        } else if (got == 0) {
            return err_set(e, ERR_IO, "the template worker ended");
        } else if (errno == EAGAIN) {
            if (wait_for(fd, POLLIN, deadline_ns, e) < 0)
                return -1;
        } else if (errno != EINTR) {
            return err_io(e, "receive from the template worker");
        }
    }
    return 0;
}

static int64_t deadline_in(int ms)
{
    return clock_mono_ns() + (int64_t)ms * 1000000;
}

/* Little-endian, as Python's struct "<I". */
static void put_u32(unsigned char to[4], uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t get_u32(const unsigned char from[4])
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

/* ---- start ---- */

/* The environment of the worker: nothing of ours but the time zone. */
struct worker_env {
    char tz[128];
    char *vars[4];
};

static void fill_env(struct worker_env *env)
{
    static char path[] = "PATH=/usr/bin:/bin", lang[] = "LC_ALL=C.UTF-8";
    const char *tz = getenv("TZ");
    int n = 0;

    env->vars[n++] = path;
    env->vars[n++] = lang;
    if (tz && strlen(tz) < sizeof env->tz - 3) {
        memcpy(env->tz, "TZ=", 3);
        memcpy(env->tz + 3, tz, strlen(tz) + 1);
        env->vars[n++] = env->tz;
    }
    env->vars[n] = NULL;
}

/* The script as an unlinked file in memory, so that a list of processes shows a path and not a
 * program. */
static int script_fd(void)
{
    size_t n = sizeof worker_script - 1;
    int fd = memfd_create("chat_worker.py", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, worker_script, n) != (ssize_t)n) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Its own process group (a Ctrl-C for us is not for it), every signal at its default, no descriptor
 * but the socket (0), /dev/null (1, 2) and the script (3), which it closes. */
static int spawn(pid_t *pid, int socket_fd, int script)
{
    char *argv[] = {(char *)(uintptr_t)python, (char *)"-I", (char *)"-B",
                    (char *)"/proc/self/fd/3", NULL};
    struct worker_env env;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int rc;

    fill_env(&env);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_adddup2(&files, socket_fd, 0);
    posix_spawn_file_actions_adddup2(&files, script, SCRIPT_FD);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files, SCRIPT_FD + 1);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    rc = posix_spawn(pid, python, &files, &attr, argv, env.vars);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* Sends the filter and waits until the process is ready behind its walls. */
static int greet(struct chat_worker *w, struct err *e)
{
    int64_t deadline = deadline_in(START_MS);
    struct buf filter = {0};
    unsigned char head[4];
    char ready;
    int rc = chat_filter_program(&filter, e);

    put_u32(head, (uint32_t)filter.len);
    if (rc == 0)
        rc = send_all(w->fd, head, sizeof head, deadline, e);
    if (rc == 0)
        rc = send_all(w->fd, buf_str(&filter), filter.len, deadline, e);
    if (rc == 0)
        rc = receive_all(w->fd, &ready, 1, deadline, e);
    buf_release(&filter);
    if (rc < 0)
        err_wrap(e, "start the template worker (%s with jinja2)", python);
    return rc;
}

/* The process with its socket; nothing is said to it yet. */
static int launch(struct chat_worker *w, struct err *e)
{
    int pair[2], script, rc;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_io(e, "make a socket for the template worker");
    w->fd = pair[0];
    script = script_fd();
    rc = script < 0 ? errno : spawn(&w->pid, pair[1], script);
    close(pair[1]);
    if (script >= 0)
        close(script);
    if (rc == 0)
        return 0;
    w->pid = 0;
    stop(w);
    errno = rc;
    err_io(e, "start %s for chat templates", python);
    e->code = ERR_IO;
    return -1;
}

static int start(struct chat_worker *w, struct err *e)
{
    if (w->pid > 0)
        return 0;
    if (launch(w, e) < 0)
        return -1;
    if (greet(w, e) == 0)
        return 0;
    stop(w);
    return -1;
}

int chat_worker_warm(struct chat_worker *w, struct err *e)
{
    int rc;

    pthread_mutex_lock(&w->lock);
    rc = start(w, e);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* ---- one exchange ---- */

static int send_request(struct chat_worker *w, const struct chat_text *t, const char *request,
                        size_t len, int64_t deadline, struct err *e)
{
    unsigned char head[4 + sizeof t->key + 4];

    put_u32(head, (uint32_t)(sizeof t->key + 4 + t->len + len));
    memcpy(head + 4, t->key, sizeof t->key);
    put_u32(head + 4 + sizeof t->key, (uint32_t)t->len);
    if (send_all(w->fd, head, sizeof head, deadline, e) < 0 ||
        send_all(w->fd, t->text, t->len, deadline, e) < 0)
        return -1;
    return send_all(w->fd, request, len, deadline, e);
}

static int receive_answer(struct chat_worker *w, enum chat_status *status, struct buf *out,
                          int64_t deadline, struct err *e)
{
    unsigned char head[5];
    uint32_t n;
    char *to;

    if (receive_all(w->fd, head, sizeof head, deadline, e) < 0)
        return -1;
    n = get_u32(head);
    if (n < 1 || n > CHAT_OUTPUT_MAX + 1 || head[4] > CHAT_TOO_LONG)
        return err_set(e, ERR_IO, "the template worker talks nonsense");
    *status = (enum chat_status)head[4];
    to = buf_reserve(out, n - 1);
    if (!to)
        return err_nomem(e);
    if (receive_all(w->fd, to, n - 1, deadline, e) < 0)
        return -1;
    out->len += n - 1;
    to[n - 1] = '\0';
    return 0;
}

static int try_exchange(struct chat_worker *w, const struct chat_text *t, const char *request,
                        size_t len, enum chat_status *status, struct buf *out, struct err *e)
{
    int64_t deadline;

    if (start(w, e) < 0)
        return -1;
    deadline = deadline_in(ANSWER_MS);
    if (send_request(w, t, request, len, deadline, e) == 0 &&
        receive_answer(w, status, out, deadline, e) == 0)
        return 0;
    stop(w);
    return -1;
}

int chat_worker_exchange(struct chat_worker *w, const struct chat_text *t, const char *request,
                         size_t len, enum chat_status *status, struct buf *out, struct err *e)
{
    size_t before = out->len;
    struct err first = {0};
    bool old;
    int rc;

    pthread_mutex_lock(&w->lock);
    old = w->pid > 0;
    rc = try_exchange(w, t, request, len, status, out, &first);
    if (rc < 0 && old) { /* it may have died long ago: once more with a new one */
        out->len = before;
        first = (struct err){0};
        rc = try_exchange(w, t, request, len, status, out, &first);
    }
    pthread_mutex_unlock(&w->lock);
    if (rc < 0) {
        out->len = before;
        *e = first;
    }
    return rc;
}
