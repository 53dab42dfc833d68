/* base/nomem.h - that memory was short while a thread worked on something, and memory set aside.
 *
 * A text or a value for which there is no memory is often shorter, empty or NULL, and nobody who
 * only reads it could tell: jansson passes over a NULL that is appended to a list. So what builds
 * texts and values (buffers, arenas, jansson) notes a failure for its thread, and whoever answers
 * looks whether there was one: nomem_forget where a request begins, nomem_noted where it ends. What
 * has another way without the memory does not note it.
 *
 * What has been done has to be told. So whoever is about to change something first sets memory
 * aside (nomem_set_aside, before the last refusal), and lets go of it when the answer is built: in
 * between, texts and values for which there is no memory are made of that. Of each thread its own.
 */
#ifndef BASE_NOMEM_H
#define BASE_NOMEM_H

#include <stdbool.h>
#include <stddef.h>

void nomem_note(void);
void nomem_forget(void);
bool nomem_noted(void); /* since the last nomem_forget of this thread */

/* An answer about a model, a lease or a batch, as values and as a text that grows. */
enum { NOMEM_ANSWER = 256 << 10 };

/* True: so many bytes are set aside (again, where they were used up), and nothing is noted. */
bool nomem_set_aside(size_t bytes);
void nomem_let_go(void);

/* For what builds texts and values: as malloc and realloc, but what is set aside is given up before
 * they fail, and a failure is noted. */
void *nomem_malloc(size_t n);
void *nomem_realloc(void *p, size_t n);
#endif
