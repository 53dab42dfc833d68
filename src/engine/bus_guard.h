/* engine/bus_guard.h - a client that cuts a POSIX arena short must not end the server.
 *
 * Touching a mapped page beyond the end of its object raises SIGBUS. A sealed memfd cannot shrink,
 * a POSIX shared-memory object can. For a guarded range the handler puts a page of zeros in the
 * place of the lost one and sets the range's mark, so the computation goes on and the service finds
 * the weights torn. A SIGBUS elsewhere ends the process as it always would.
 *
 * A signal handler finds nothing but statics: the table of ranges is the one mutable global of this
 * program. */
#ifndef ENGINE_BUS_GUARD_H
#define ENGINE_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* A slot >= 0, or -1 with ERR_SPACE: all are taken. The range is page-aligned and mapped. */
int bus_guard_add(void *base, size_t bytes, struct err *e);
bool bus_guard_hit(int slot);    /* false for slot -1 */
void bus_guard_remove(int slot); /* before the range is unmapped; -1 is allowed */
#endif
