/* engine/image.h - the weights of one model in memory: immutable to readers, counted.
 *
 * An image owns a block of memory that is one canonical model.safetensors (tensor/weights.h), the
 * model bound to it (model/model.h), and shares the files that a save copies along. Requests, saves
 * and loads hold references; the last one gives the memory back to the bank (engine/image_bank.h),
 * where it becomes the spare or is unmapped. Only the engine thread makes an image resident; the
 * only writers in place are an attached process (shared arena) and an in-place load, both between
 * commit states that the service keeps, and both only after snapshot_detach_all
 * (engine/snapshot.h).
 *
 * Making an image (image_load_*, image_copy_*) runs on the caller's thread, may take seconds, and
 * never touches the engine: make it, then hand it over in one message. A copy must not run while
 * somebody writes in place. */
#ifndef ENGINE_IMAGE_H
#define ENGINE_IMAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct chat_source;
struct companions; /* engine/companions.h: config.json, tokenizer files, ... read at load time */
struct err;
struct image_bank;
struct model;
struct model_config;
struct st_index;
struct model_dir;
struct tokenizer;
struct weights;

enum image_memory { IMAGE_PRIVATE, IMAGE_MEMFD, IMAGE_POSIX_SHM };

struct image {
    atomic_int refs;
    uint64_t epoch;          /* unique in this bank, never reused */
    struct image_bank *bank; /* counted */
    struct weights *weights; /* owned: header and data as in one canonical model.safetensors */
    struct model *model;     /* owned: views into weights */
    struct image_files
        *files; /* counted: companions, tokenizer, template source; shared by copies */
    enum image_memory memory;
    unsigned char *block; /* the memory that weights->base lies in */
    size_t block_bytes;
    int shared_fd;     /* IMAGE_MEMFD, IMAGE_POSIX_SHM: the arena; else -1 */
    char shm_name[64]; /* IMAGE_POSIX_SHM: name for shm_open, else "" */
    int guard;         /* engine/bus_guard.h slot of a POSIX arena, else -1 */

    /* The bank's own, under its lock: image_bank_know. */
    char file_sha256[SHA256_HEX]; /* "": not known by a file */
    struct image *next_known;
};

/* What a load reads beside the weights; immutable after the load. */
struct image_files {
    atomic_int refs;
    struct tokenizer *tokenizer;   /* counted; NULL when the directory has none */
    struct companions *companions; /* owned: name -> bytes of the files that a save copies */
    struct model_config *config;   /* owned */
    struct chat_source *chat;      /* counted: the chat template, if there is one */
    char dir[4096];                /* real path the files came from */
};

struct image *image_ref(struct image *im);
void image_unref(struct image *im); /* NULL is allowed; any thread */

struct image_load {
    /* Called with the bytes done and to do, with 0 done while memory is made; nonzero stops with
     * ERR_CANCELLED. NULL: no calls. */
    int (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
    bool hash;      /* of a single model.safetensors, in the same pass: the bytes of the image */
    bool f32_ok;    /* a catalogue model may be F32, a checkpoint may not */
    bool with_code; /* keep *.py among the companions (trust_remote_code) */
    /* filled in */
    char sha256[SHA256_HEX]; /* "" when not hashed */
    const char
        *reason; /* static word of the weights API when the directory is refused, else NULL */
};

/* Reads a model directory: weights, config, tokenizer, companions. Takes the spare's memory when it
 * fits. Owned, or NULL with ERR_FORMAT (opt->reason is set), ERR_NOT_FOUND, ERR_IO, ERR_NOMEM,
 * ERR_CANCELLED. */
struct image *image_load_dir(struct image_bank *bank, const char *path, struct image_load *opt,
                             struct err *e);
/* The same after model_open_dir (model/model.h), so that what was checked is what is read. All
 * borrowed; `path` is the real path of dir_fd. */
struct image *image_load_opened(struct image_bank *bank, const struct model_dir *md,
                                const struct model_config *config, int dir_fd, const char *path,
                                struct image_load *opt, struct err *e);

/* A copy with other memory and a new epoch; files are shared. Shared: a memfd sealed against
 * shrinking and growing (name is ignored), or a POSIX object made anew under `name` with mode 0600,
 * whole size reserved, so that a full file system is ERR_SPACE now and no signal later, and
 * marked as in use (flock) while the image lives. */
struct image *image_copy_shared(struct image *from, enum image_memory memory, const char *name,
                                struct err *e);
struct image *image_copy_private(struct image *from, struct err *e);

/* True when a client cut a POSIX arena short: what was behind the cut reads as zeros, and the
 * weights are torn. */
bool image_damaged(const struct image *im);

/* Weights of a checkpoint that wait to be copied into an image of the same layout (in-place load).
 */
struct image_staging {
    struct image_bank *bank;
    unsigned char *block;
    size_t block_bytes;
    struct weights *weights;
};

/* Reads the opened weight files into the spare or fresh memory. 0 or -1. */
int image_stage(struct image_staging *st, struct image_bank *bank, const struct model_dir *md,
                struct image_load *opt, struct err *e);
/* Memory laid out for the tensors of `index`, to be filled by the caller (weights_place, or read
 * into base when the index is canonical). Of `opt` (may be NULL) only progress counts. 0 or -1. */
int image_stage_empty(struct image_staging *st, struct image_bank *bank,
                      const struct st_index *index, const struct image_load *opt, struct err *e);
void image_staging_release(struct image_staging *st); /* a zeroed one is allowed */

/* An image of staged weights: takes the memory, *st is empty after success. `files` gets one more
 * reference; its config must fit the tensors (-1 as NULL with ERR_FORMAT and *reason, as
 * model_bind). */
struct image *image_adopt(struct image_staging *st, struct image_files *files, const char **reason,
                          struct err *e);

/* The small files of a model directory without its weights: config, companions, tokenizer, chat
 * template. Owned (image_files_unref). ERR_FORMAT with *reason as model_config_load, or
 * "companions", "tokenizer", "chat_template". */
struct image_files *image_files_read(int dir_fd, const char *path, bool with_code,
                                     const char **reason, struct err *e);
struct image_files *image_files_ref(struct image_files *f);
void image_files_unref(struct image_files *f); /* NULL is allowed */
/* Of one directory with the same bytes: a model with either answers alike. */
bool image_files_same(const struct image_files *a, const struct image_files *b);
#endif
