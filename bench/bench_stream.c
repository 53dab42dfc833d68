/* bench/bench_stream.c - a cheap client of streamed completions: N connections, one thread, one
 * poll.
 *
 *   bench_stream HOST PORT PATH N [STAGGER_MS] < BODY
 *
 * Posts BODY on N connections (STAGGER_MS between their starts) and notes when each server-sent
 * event with text arrives. Prints one line a connection: "stream I STATUS FIRST_MS EVENTS NAME
 * GAP_MS ...": time to the first event, number of events, the X-miLLM-Model header's text or -, and
 * the gaps between events; at the end "total EVENTS SECONDS". A client in Python would take a core
 * from the server that it measures. */
#include "dial.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_MAX = 65536, LINE_MAX_BYTES = 1 << 20 };

struct stream {
    int fd, status;
    double sent_ms, *times; /* arrival of each event with text */
    int events;
    char name[1200];
    char *line; /* the line being received */
    size_t len;
    bool open;
};

static void post(struct stream *s, const char *host, const char *path, const char *body, size_t n)
{
    char head[512];
    int len = snprintf(head, sizeof head,
                       "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                       path, host, n);

    if (write(s->fd, head, (size_t)len) != len || write(s->fd, body, n) != (ssize_t)n)
        die("send");
    s->sent_ms = now_ms();
    s->open = true;
}

/* An event counts when it carries text: "text":"x" or "content":"x", not empty. */
static bool has_text(const char *line)
{
    static const char *const keys[] = {"\"text\":\"", "\"content\":\"", NULL};

    for (int i = 0; keys[i]; i++) {
        const char *at = strstr(line, keys[i]);

        if (at && at[strlen(keys[i])] != '"')
            return true;
    }
    return false;
}

static void take_line(struct stream *s)
{
    s->line[s->len] = 0;
    if (!strncmp(s->line, "HTTP/1.1 ", 9))
        s->status = atoi(s->line + 9);
    else if (!strncasecmp(s->line, "x-millm-model: ", 15))
        snprintf(s->name, sizeof s->name, "%s", s->line + 15);
    else if (!strncmp(s->line, "data:", 5) && has_text(s->line) && s->events < EVENTS_MAX)
        s->times[s->events++] = now_ms();
    s->len = 0;
}

static void receive(struct stream *s)
{
    char bytes[65536];
    ssize_t n = read(s->fd, bytes, sizeof bytes);

    if (n <= 0) {
        s->open = false;
        close(s->fd);
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == '\n')
            take_line(s);
        else if (bytes[i] != '\r' && s->len < LINE_MAX_BYTES - 1)
            s->line[s->len++] = bytes[i];
    }
}

static void report(const struct stream *s, int i)
{
    printf("stream %d %d %.3f %d %s", i, s->status, s->events ? s->times[0] - s->sent_ms : -1.0,
           s->events, s->name[0] ? s->name : "-");
    for (int k = 1; k < s->events; k++)
        printf(" %.3f", s->times[k] - s->times[k - 1]);
    printf("\n");
}

int main(int argc, char **argv)
{
    int n = argc > 4 ? atoi(argv[4]) : 0, stagger = argc > 5 ? atoi(argv[5]) : 0, open = 0;
    struct stream *all = calloc((size_t)(n > 0 ? n : 1), sizeof *all);
    struct pollfd *fds = calloc((size_t)(n > 0 ? n : 1), sizeof *fds);
    char *body = malloc(1 << 22);
    size_t body_len;
    double start, last = 0;
    long total = 0;

    if (n < 1 || !all || !fds || !body) {
        fprintf(stderr, "usage: bench_stream HOST PORT PATH N [STAGGER_MS] < BODY\n");
        return 2;
    }
    body_len = fread(body, 1, 1 << 22, stdin);
    start = now_ms();
    for (int i = 0; i < n; i++) {
        all[i].times = calloc(EVENTS_MAX, sizeof(double));
        all[i].line = malloc(LINE_MAX_BYTES);
        all[i].fd = dial(argv[1], argv[2]);
        post(&all[i], argv[1], argv[3], body, body_len);
        if (stagger)
            usleep((useconds_t)stagger * 1000);
    }
    do {
        open = 0;
        for (int i = 0; i < n; i++) {
            fds[i] = (struct pollfd){.fd = all[i].open ? all[i].fd : -1, .events = POLLIN};
            open += all[i].open;
        }
        if (open && poll(fds, (nfds_t)n, -1) < 0 && errno != EINTR)
            die("poll");
        for (int i = 0; i < n; i++)
            if (all[i].open && fds[i].revents)
                receive(&all[i]);
    } while (open);
    for (int i = 0; i < n; i++) {
        report(&all[i], i);
        total += all[i].events;
        if (all[i].events && all[i].times[all[i].events - 1] > last)
            last = all[i].times[all[i].events - 1];
    }
    printf("total %ld %.4f\n", total, (last - start) / 1e3);
    return 0;
}
