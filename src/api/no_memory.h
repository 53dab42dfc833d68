/* api/no_memory.h - the one answer of all faces when there is no memory for another.
 *
 * What a request says that met a failed allocation cannot be trusted: a part of it may be missing,
 * or what it refuses may be what there was no memory for (base/nomem.h). A refusal of 500 and more
 * says itself that the server could not; so api_refusal_status lets its text be built anew. */
#ifndef API_NO_MEMORY_H
#define API_NO_MEMORY_H

struct api_call;
struct refusal;

/* 500, with a text that takes no memory to make, in the form of the face of the address. */
void api_no_memory(struct api_call *call);

/* The status of a refusal that is about to be told, in full where there is memory for that. */
int api_refusal_status(const struct refusal *r);
#endif
