/* tests/unit/http/wire.h - raw sockets for the tests of this room: send bytes, read what comes. */
#ifndef TESTS_HTTP_WIRE_H
#define TESTS_HTTP_WIRE_H

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"

static inline int wire_connect(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval wait = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    assert_int_equal(connect(fd, (void *)&a, sizeof a), 0);
    return fd;
}

static inline void wire_send(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);

        if (sent <= 0)
            return; /* the server may answer and close before it has read everything */
        bytes += sent;
        n -= (size_t)sent;
    }
}

static inline void wire_say(int fd, const char *text)
{
    wire_send(fd, text, strlen(text));
}

/* Everything until the server closes. true: it closed; false: it said nothing for 20 s or reset. */
static inline bool wire_read_all(int fd, struct buf *got)
{
    ssize_t n;

    while ((n = recv(fd, buf_reserve(got, 65536), 65536, 0)) > 0) {
        got->len += (size_t)n;
        got->data[got->len] = 0;
    }
    return n == 0;
}

/* Until `text` has come. */
static inline bool wire_read_until(int fd, struct buf *got, const char *text)
{
    while (!strstr(buf_str(got), text)) {
        ssize_t n = recv(fd, buf_reserve(got, 65536), 65536, 0);

        if (n <= 0)
            return false;
        got->len += (size_t)n;
        got->data[got->len] = 0;
    }
    return true;
}

static inline int wire_count(const char *text, const char *what)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

static inline int wire_status(const char *answer)
{
    return strncmp(answer, "HTTP/1.", 7) == 0 ? atoi(answer + 9) : -1;
}

static inline void wire_reset(int fd)
{
    struct linger hard = {.l_onoff = 1};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
}

static inline void wire_wait_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}
#endif
