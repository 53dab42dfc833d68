/* engine/image.h - the weights of one model in memory: immutable to readers, counted.
 *
 * An image owns a weights mapping (tensor/weights.h), the model bound to it (model/model.h) and the files
 * that a save copies along. Requests, saves and loads hold references; the last one gives the memory to
 * the spare slot or frees it. Only the engine thread makes an image resident; the only writers in place
 * are an attached process (shared arena) and an in-place load, both between commit states that the
 * service keeps, and both only after snapshot_detach_all (engine/snapshot.h). */
#ifndef ENGINE_IMAGE_H
#define ENGINE_IMAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct model;
struct model_config;
struct weights;
struct companions; /* engine/companions.h: config.json, tokenizer files, ... read at load time */
struct tokenizer;
struct chat_template;

enum image_memory { IMAGE_PRIVATE, IMAGE_MEMFD, IMAGE_POSIX_SHM };

struct image {
    atomic_int refs;
    uint64_t epoch;         /* unique in this process, never reused */
    struct weights *weights; /* owned: header and data as in one canonical model.safetensors */
    struct model *model;     /* owned: views into weights */
    struct image_files *files; /* counted: companions, tokenizer, template source; shared by copies */
    enum image_memory memory;
    int shared_fd;      /* IMAGE_MEMFD, IMAGE_POSIX_SHM: the arena; else -1 */
    char shm_name[64];  /* IMAGE_POSIX_SHM: name for shm_open, else "" */
};

/* What a load reads beside the weights; immutable after image_load. Counted with the image. */
struct image_files {
    atomic_int refs;
    struct tokenizer *tokenizer;     /* owned; NULL when the directory has none */
    struct companions *companions;   /* owned: name -> bytes of the files that a save copies */
    struct model_config *config;     /* owned */
    char *chat_template;             /* owned source text, or NULL */
    char dir[4096];                  /* real path the files came from */
};

struct image *image_ref(struct image *im);
void image_unref(struct image *im); /* NULL is allowed; any thread */
#endif
