/* text/chat_filter.h - the system calls that a rendering process may make.
 *
 * The list is compiled by libseccomp here and installed by the process itself (PR_SET_SECCOMP),
 * after it has imported what it needs: reading and writing its socket, memory, time, and its own
 * end. Anything else, opening a file and making a socket or a process among it, fails with EPERM.
 */
#ifndef TEXT_CHAT_FILTER_H
#define TEXT_CHAT_FILTER_H

struct buf;
struct err;

/* The filter as an array of struct sock_filter, appended to *out. */
int chat_filter_program(struct buf *out, struct err *e);
#endif
