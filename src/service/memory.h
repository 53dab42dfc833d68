/* service/memory.h - refuse before memory runs out. */
#ifndef SERVICE_MEMORY_H
#define SERVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct refusal;
struct service;

/* INSUFFICIENT_MEMORY when less than ceil(bytes x 1.10) is free, the spare block counted as free;
 * when that cannot be measured, a warning in the log only. `tests`: WEIGHTS_TEST_MEM_AVAILABLE of a
 * test build replaces the figure. */
int memory_refuse(struct service *s, size_t bytes, bool tests, struct refusal *r);

/* Bytes of the resident's weights; 0: none is resident. */
size_t memory_resident_bytes(struct service *s);

/* The same for weights that are read after the resident is gone: its memory comes free first. */
int memory_refuse_instead(struct service *s, size_t bytes, bool tests, struct refusal *r);

/* Only the figure of WEIGHTS_TEST_MEM_AVAILABLE, where one is set: for bytes that are in memory
 * already. */
int memory_refuse_test(struct service *s, size_t bytes, struct refusal *r);

/* The same refusal after an allocation failed with *e. */
int memory_refuse_failed(size_t bytes, const struct err *e, struct refusal *r);
#endif
