#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"

enum { STOP_WAIT_S = 2 };

struct line {
    struct line *next;
    uint64_t number; /* of put */
    size_t len;
    char text[];
};

/* The one log of the process. */
static struct {
    enum log_level least; /* set by log_setup before threads start, read-only afterwards */
    bool as_json;

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t more, written;
    bool started, direct, writing, stopping, ended, no_waits;
    struct line *first, **last;
    size_t bytes;             /* of the queued lines */
    uint64_t put, out;        /* lines that were queued, and written */
    uint64_t dropped, untold; /* lines; those that no log_dropped line has told yet */
    pthread_t thread;
} the = {.least = LOG_INFO,
         .lock = PTHREAD_MUTEX_INITIALIZER,
         .more = PTHREAD_COND_INITIALIZER,
         .written = PTHREAD_COND_INITIALIZER};

void log_setup(enum log_level least, bool json)
{
    the.least = least;
    the.as_json = json;
}

/* ---- a line ---- */

static void format(struct buf *b, enum log_level level, const char *event, const char *text)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    char now[32];

    clock_iso8601(clock_wall_ms(), now);
    if (the.as_json) {
        buf_printf(b, "{\"ts\":\"%s\",\"level\":\"%s\",\"event\":\"%s\",\"text\":", now,
                   names[level], event);
        json_write_str(b, text, strlen(text));
        buf_add_char(b, '}');
    } else {
        buf_printf(b, "%s %-7s %s %s", now, names[level], event, text);
    }
    buf_add_char(b, '\n');
}

/* ---- the sink ---- */

/* Writes what the sink takes now: how much; all of it where the sink fails, because a log that
 * fails never fails the operation. */
static size_t write_some(const char *text, size_t n)
{
    ssize_t wrote = write(STDERR_FILENO, text, n);

    if (wrote >= 0)
        return (size_t)wrote;
    return errno == EINTR || errno == EAGAIN ? 0 : n;
}

/* Waits for a slow reader. */
static void write_all(const char *text, size_t n)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t at = write_some(text, n);

    while (at < n) {
        poll(&p, 1, -1);
        at += write_some(text + at, n - at);
    }
}

/* A pipe or socket that says it is writable takes PIPE_BUF bytes without waiting. */
static bool takes_now(size_t n)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    return the.direct && !the.first && !the.writing && n <= PIPE_BUF && poll(&p, 1, 0) > 0;
}

/* ---- the queue; the lock is held ---- */

/* The number of the line; 0: there is no memory for it. */
static uint64_t append(const char *text, size_t n)
{
    struct line *l = malloc(sizeof *l + n);

    if (!l)
        return 0;
    *l = (struct line){.number = ++the.put, .len = n};
    memcpy(l->text, text, n);
    if (!the.first)
        the.last = &the.first;
    *the.last = l;
    the.last = &l->next;
    the.bytes += n;
    pthread_cond_signal(&the.more);
    return l->number;
}

static void drop(void)
{
    the.dropped++;
    the.untold++;
}

/* Tells at its place in the queue how many lines are missing there. */
static void append_dropped(void)
{
    struct buf b = {0};
    char text[96];

    snprintf(text, sizeof text, "lines=%llu cause=\"standard error was not read\"",
             (unsigned long long)the.untold);
    format(&b, LOG_WARNING, "log_dropped", text);
    if (!b.failed && append(b.data, b.len))
        the.untold = 0;
    buf_release(&b);
}

static uint64_t queue(const char *text, size_t n, bool may_drop)
{
    uint64_t number = 0;

    if (may_drop && the.bytes + n > LOG_QUEUE_BYTES) {
        drop();
        return 0;
    }
    if (the.untold)
        append_dropped();
    number = append(text, n);
    if (!number)
        drop();
    return number;
}

/* ---- the thread ---- */

static struct line *take(void)
{
    struct line *l;

    if (!the.first && the.untold)
        append_dropped();
    l = the.first;
    if (l) {
        the.first = l->next;
        the.bytes -= l->len;
        the.writing = true;
    }
    return l;
}

static void *writer(void *arg)
{
    struct line *l;

    (void)arg;
    pthread_mutex_lock(&the.lock);
    for (;;) {
        while (!(l = take()) && !the.stopping)
            pthread_cond_wait(&the.more, &the.lock);
        if (!l)
            break;
        pthread_mutex_unlock(&the.lock);
        write_all(l->text, l->len);
        pthread_mutex_lock(&the.lock);
        the.writing = false;
        the.out = l->number;
        free(l);
        pthread_cond_broadcast(&the.written);
    }
    the.ended = true;
    pthread_cond_broadcast(&the.written);
    pthread_mutex_unlock(&the.lock);
    return NULL;
}

int log_start(struct err *e)
{
    int rc;

    pthread_mutex_lock(&the.lock);
    the.direct = !isatty(STDERR_FILENO); /* a terminal that takes one byte may stop at the next */
    the.stopping = the.ended = the.no_waits = false;
    the.dropped = the.untold = 0;
    rc = pthread_create(&the.thread, NULL, writer, NULL);
    the.started = rc == 0;
    pthread_mutex_unlock(&the.lock);
    return rc == 0 ? 0 : err_set(e, ERR_IO, "no thread for the log: %s", strerror(rc));
}

void log_end_waits(void)
{
    pthread_mutex_lock(&the.lock);
    the.no_waits = true;
    pthread_cond_broadcast(&the.written);
    pthread_mutex_unlock(&the.lock);
}

void log_stop(void)
{
    struct timespec until;
    bool ended;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_S;
    pthread_mutex_lock(&the.lock);
    the.stopping = the.no_waits = true;
    pthread_cond_broadcast(&the.more);
    pthread_cond_broadcast(&the.written);
    while (the.started && !the.ended)
        if (pthread_cond_timedwait(&the.written, &the.lock, &until) != 0)
            break;
    ended = the.started && the.ended;
    the.started = the.started && !ended;
    pthread_mutex_unlock(&the.lock);
    if (ended)
        pthread_join(the.thread, NULL);
}

/* ---- the callers ---- */

enum urgency { MAY_BE_DROPPED, KEPT, WAITED_FOR };

static void wait_for(uint64_t number)
{
    while (the.out < number && !the.no_waits)
        pthread_cond_wait(&the.written, &the.lock);
}

static void emit(const struct buf *line, enum urgency how)
{
    size_t at = 0;
    uint64_t number;

    if (line->failed)
        return;
    pthread_mutex_lock(&the.lock);
    if (!the.started)
        write_all(line->data, line->len);
    else if (takes_now(line->len))
        at = write_some(line->data, line->len);
    if (the.started && at < line->len) {
        number = queue(line->data + at, line->len - at, how == MAY_BE_DROPPED && at == 0);
        if (how == WAITED_FOR)
            wait_for(number);
    }
    pthread_mutex_unlock(&the.lock);
}

void log_ev(enum log_level level, const char *event, const char *fmt, ...)
{
    struct buf b = {0};
    char text[1024];
    va_list ap;

    if (level < the.least)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    utf8_repair(text); /* names of any bytes, cut anywhere */
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    format(&b, level, event, text);
    emit(&b, MAY_BE_DROPPED);
    buf_release(&b);
}

static void emit_as_it_is(const char *line, enum urgency how)
{
    struct buf b = {0};

    buf_add_str(&b, line);
    buf_add_char(&b, '\n');
    emit(&b, how);
    buf_release(&b);
}

void log_audit(const char *line)
{
    emit_as_it_is(line, WAITED_FOR);
}

void log_audit_later(const char *line)
{
    emit_as_it_is(line, KEPT);
}

uint64_t log_dropped(void)
{
    uint64_t n;

    pthread_mutex_lock(&the.lock);
    n = the.dropped;
    pthread_mutex_unlock(&the.lock);
    return n;
}
