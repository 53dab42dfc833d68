/* base/nomem.h - that memory was short while a thread worked on something.
 *
 * A text or a value for which there is no memory is often shorter, empty or NULL, and nobody who
 * only reads it could tell: jansson passes over a NULL that is appended to a list. So what builds
 * texts and values (buffers, arenas, jansson) notes a failure for its thread, and whoever answers
 * looks whether there was one: nomem_forget where a request begins, nomem_noted where it ends. What
 * has another way without the memory does not note it. */
#ifndef BASE_NOMEM_H
#define BASE_NOMEM_H

#include <stdbool.h>

void nomem_note(void);
void nomem_forget(void);
bool nomem_noted(void); /* since the last nomem_forget of this thread */
#endif
