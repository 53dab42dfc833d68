/* service/arena.h - what an attached client is told about the shared memory. */
#ifndef SERVICE_ARENA_H
#define SERVICE_ARENA_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct image;
struct served;
struct service;
struct settings;

/* Mode and group of the shared object, as configured. */
int arena_permit(const struct image *im, const struct settings *set, struct err *e);

/* [engine] The answer of attach: identity, timers, arena, one entry a parameter in the order of the
 * safetensors header; a tied lm_head that has no bytes of its own is listed with shared_with.
 * Owned; NULL: out of memory. */
json_t *arena_answer(struct service *s, const struct image *im, const struct served *served,
                     const char *attachment_id);

/* Removes shared objects that servers of this user left behind when they died. */
void arena_sweep(const char *boot_id);
#endif
