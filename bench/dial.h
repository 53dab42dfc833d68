/* bench/dial.h - what the clients of the benches share: a clock, and a connection. */
#ifndef BENCH_DIAL_H
#define BENCH_DIAL_H

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

static inline double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

static inline int dial(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    int fd, one = 1;

    if (getaddrinfo(host, port, &hints, &list) != 0)
        die(host);
    fd = socket(list->ai_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen) < 0)
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(list);
    return fd;
}
#endif
