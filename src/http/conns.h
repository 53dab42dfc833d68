/* http/conns.h - every open connection: its deadline, and whether its client is still there.
 *
 * The library does not look at a connection that is parked, so a watcher thread has an epoll of its
 * own. It sees resets and closes, tells a client that only closed its sending side from one that
 * left, and shuts connections whose deadline has passed. */
#ifndef HTTP_CONNS_H
#define HTTP_CONNS_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct conns;
struct err;
struct http_call;
struct http_server;

/* Beyond `high` connections, each new one ends the oldest that waits for a request. */
struct conns *conns_start(int high, struct err *e);
void conns_stop(struct conns *cs); /* after the last connection was removed; NULL is allowed */
int conns_count(struct conns *cs);

/* A connection of server `s`. NULL: out of memory; it is then unwatched. */
struct conn *conns_add(struct conns *cs, struct http_server *s, int fd);
void conns_remove(struct conns *cs,
                  struct conn *conn); /* before its descriptor is closed; frees it */

/* The server it came in at, and the request that is being read on it; NULL: none yet. Epoll thread
 * only. */
struct http_server *conn_server(const struct conn *conn);
void conn_set_reading(struct conn *conn, struct http_call *call); /* conn NULL is allowed */
struct http_call *conn_reading(const struct conn *conn);

/* The call that runs on the connection now; NULL: none. The watcher may mark it gone until it is
 * replaced. Where `may_probe`, it may send "100 Continue" to find out whether a half-closed client
 * is there, until conns_answer_begins. */
void conns_set_call(struct conns *cs, struct conn *conn, struct http_call *call, bool may_probe);
void conns_answer_begins(struct conns *cs, struct conn *conn);
int conns_busy(struct conns *cs); /* connections with a call */
/* When to shut the connection (monotonic ns); 0: never. */
void conns_set_deadline(struct conns *cs, struct conn *conn, int64_t at_ns);
/* The same for a connection that waits for a request. */
void conns_set_idle(struct conns *cs, struct conn *conn, int64_t until_ns);
void conns_gone_all(struct conns *cs); /* marks every running call as gone */
void conns_shut_all(struct conns *cs); /* nothing comes or goes on any connection any more */
int conns_open(struct conns *cs);      /* connections that the library has not closed yet */

/* Reads and drops what the client still sends, for two seconds or 8 MiB, then closes: an answer
 * that was sent before the whole request was read would else be lost to a reset. Takes a duplicate
 * of fd. */
void conns_linger(struct conns *cs, int fd);
#endif
