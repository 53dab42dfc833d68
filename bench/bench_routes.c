/* bench/bench_routes.c - a cheap client of small routes: N connections kept alive, one thread.
 *
 *   bench_routes HOST PORT PATH N SECONDS [PAUSE_MS]
 *
 * Each connection asks GET PATH again as soon as its answer is whole, or PAUSE_MS later. Prints
 * "requests_per_s", "p50_ms", "p99_ms" and "max_ms", one a line; ends with status 1 when an answer
 * is not 200. */
#include "dial.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 256, ANSWER_MAX = 1 << 20, TIMES_MAX = 1 << 23 };

struct connection {
    int fd;
    bool waiting; /* for an answer */
    double at_ms; /* when the request went out, or is to go out */
    char *got;
    size_t len;
};

struct times {
    float *ms;
    size_t n;
};

static void ask(struct connection *c, const char *request, size_t n)
{
    if (send(c->fd, request, n, MSG_NOSIGNAL) != (ssize_t)n)
        die("send");
    c->waiting = true;
    c->at_ms = now_ms();
    c->len = 0;
}

/* The length of the whole answer, 0: its header is not all there. */
static size_t answer_length(struct connection *c)
{
    char *end, *field;

    c->got[c->len] = '\0';
    end = strstr(c->got, "\r\n\r\n");
    if (!end)
        return 0;
    field = strcasestr(c->got, "\r\nContent-Length:");
    if (!field || field > end || strncmp(c->got, "HTTP/1.1 200", 12) != 0) {
        fprintf(stderr, "an answer that is not 200 with a length:\n%.300s\n", c->got);
        exit(1);
    }
    return (size_t)(end + 4 - c->got) + strtoul(field + strlen("\r\nContent-Length:"), NULL, 10);
}

static void take(struct connection *c, struct times *t, double pause_ms)
{
    ssize_t n = recv(c->fd, c->got + c->len, ANSWER_MAX - 1 - c->len, 0);
    size_t whole;

    if (n <= 0)
        die("recv");
    c->len += (size_t)n;
    whole = answer_length(c);
    if (whole == 0 || c->len < whole)
        return;
    if (t->n < TIMES_MAX)
        t->ms[t->n++] = (float)(now_ms() - c->at_ms);
    c->waiting = false;
    c->at_ms = now_ms() + pause_ms;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void report(struct times *t, double seconds)
{
    if (t->n == 0)
        exit(1);
    qsort(t->ms, t->n, sizeof *t->ms, by_size);
    printf("requests_per_s %.1f\n", (double)t->n / seconds);
    printf("p50_ms %.3f\n", (double)t->ms[t->n / 2]);
    printf("p99_ms %.3f\n", (double)t->ms[t->n * 99 / 100]);
    printf("max_ms %.3f\n", (double)t->ms[t->n - 1]);
}

/* Sends what is due; the time until the next one is. */
static int send_due(struct connection *all, int n, const char *request)
{
    double now = now_ms(), next = now + 100;

    for (int i = 0; i < n; i++) {
        if (all[i].waiting)
            continue;
        if (all[i].at_ms <= now)
            ask(&all[i], request, strlen(request));
        else if (all[i].at_ms < next)
            next = all[i].at_ms;
    }
    return next > now ? (int)(next - now) + 1 : 0;
}

int main(int argc, char **argv)
{
    static struct connection all[CONNECTIONS_MAX];
    static struct pollfd fds[CONNECTIONS_MAX];
    struct times t = {.ms = malloc(TIMES_MAX * sizeof(float))};
    int n = argc > 5 ? atoi(argv[4]) : 0;
    double seconds = argc > 5 ? atof(argv[5]) : 0, pause_ms = argc > 6 ? atof(argv[6]) : 0, start;
    char request[1024];

    if (n < 1 || n > CONNECTIONS_MAX || seconds <= 0 || !t.ms) {
        fprintf(stderr, "usage: bench_routes HOST PORT PATH N SECONDS [PAUSE_MS]\n");
        return 2;
    }
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", argv[3], argv[1]);
    start = now_ms();
    for (int i = 0; i < n; i++) {
        all[i] = (struct connection){.fd = dial(argv[1], argv[2]),
                                     .at_ms = start + pause_ms * i / n,
                                     .got = malloc(ANSWER_MAX)};
        fds[i] = (struct pollfd){.fd = all[i].fd, .events = POLLIN};
    }
    while (now_ms() - start < seconds * 1e3) {
        int wait = send_due(all, n, request);

        if (poll(fds, (nfds_t)n, wait) < 0 && errno != EINTR)
            die("poll");
        for (int i = 0; i < n; i++)
            if (fds[i].revents)
                take(&all[i], &t, pause_ms);
    }
    report(&t, seconds);
    return 0;
}
