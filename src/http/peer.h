/* http/peer.h - has the other end closed its socket, or only its sending side?
 *
 * A FIN says both. For a client on this machine the kernel's socket table tells them apart
 * (sock_diag(7)): a closed socket belongs to no file any more. For others only an answer to bytes
 * of ours will tell. */
#ifndef HTTP_PEER_H
#define HTTP_PEER_H

enum peer_state { PEER_OPEN, PEER_CLOSED, PEER_UNKNOWN };

int peer_diag_open(void); /* a descriptor for peer_look, or -1: every look is then PEER_UNKNOWN */
enum peer_state peer_look(int diag_fd, int fd);
#endif
