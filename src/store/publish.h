/* store/publish.h - put one directory of files into the store, in one step.
 *
 * A reader sees the whole directory or none of it, also after a crash or a power cut, and a
 * published directory never changes. The stages, in this order (docs/formats/store.md,
 * "Publishing"): prepare      run directory, temporary directory .tmp-<final>-<boot>-<random>
 *     weights      the streamed files: copied block by block, hashed and written in one pass
 *     companions   small files from memory
 *     manifest     the file that names the hash
 *     sync         fsync of every file, then of the temporary directory
 *     rename       no-replace rename to the final name
 *     sync_parent  fsync of the run directory, and of the root when the run directory is new
 *     latest       a new link, renamed over `latest`, fsync of the run directory
 * A failure up to `rename` leaves nothing behind; later the directory is published and stays.
 *
 * Threads: several calls may run at once, also for one run. The calling thread hashes (it may sit
 * on a lent core, which the helpers then share); a helper thread for each of at most two files that
 * are under way copies from its source and writes, asleep in the disk most of the time. On a single
 * CPU the calling thread copies too, a piece at a time, so that the hash finds it in the cache.
 * Memory: PUBLISH_BUFFERS x PUBLISH_BLOCK for each of the two. A file-size limit must not kill the
 * process: SIGXFSZ is ignored by the program. */
#ifndef STORE_PUBLISH_H
#define STORE_PUBLISH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct buf;
struct err;
struct faults;
struct leftovers;

enum { PUBLISH_BLOCK = 4 << 20, PUBLISH_BUFFERS = 4 };

enum publish_stage {
    PUBLISH_PREPARE,
    PUBLISH_WEIGHTS,
    PUBLISH_COMPANIONS,
    PUBLISH_MANIFEST,
    PUBLISH_SYNC,
    PUBLISH_RENAME,
    PUBLISH_SYNC_PARENT,
    PUBLISH_LATEST,
    PUBLISH_N_STAGES,
};
const char *publish_stage_name(enum publish_stage s); /* "prepare" ... "latest" */

/* Where the bytes of a streamed file come from. `read` copies n bytes from offset to `to`. It is
 * called by one thread a file at a time, a helper's or the one that called publish, with rising
 * offsets, at most PUBLISH_BLOCK at a time, and once for each byte: what it hands out is what is
 * hashed and written, even if the source changes afterwards. */
struct ckpt_source {
    int64_t bytes;
    int (*read)(void *arg, void *to, size_t offset, size_t n, struct err *e);
    void *arg;
};
/* Of memory that stays as it is until publish returns; borrowed. */
struct ckpt_source ckpt_source_memory(const void *bytes, size_t n);

struct publish_file {
    const char *name; /* one path segment */
    const void *bytes;
    size_t n;
};

/* A further streamed file, written in the stage `weights` beside the first one: by any order of
 * them. sha256 is filled in before the manifest is asked for. */
struct publish_stream {
    const char *name;
    struct ckpt_source source;
    char sha256[SHA256_HEX];
};

/* Everything is borrowed until publish returns. */
struct publish_req {
    int root_fd;              /* directory that holds the run directories */
    const char *run_dir;      /* one segment, created when missing */
    const char *final_name;   /* one segment: "step-000500" */
    const char *weights_name; /* "model.safetensors" */
    struct ckpt_source weights;
    struct publish_stream *more; /* or NULL */
    int n_more;
    const struct publish_file *files; /* companions */
    int n_files;
    const char *manifest_name; /* "manifest.json" */
    /* Appends the manifest's bytes; called once, after the hash is known. NULL: no manifest. */
    int (*manifest)(void *arg, const char weights_sha256[SHA256_HEX], struct buf *out,
                    struct err *e);
    void *manifest_arg;
    bool move_latest; /* false: the stage `latest` is left out */
    /* May be NULL. Called at the start of every stage (done = 0) and in `weights` after every
     * SHA256_PIECE, by the publishing thread, outside of any lock; it may block for a while (to
     * give a lent core back). */
    void (*progress)(void *arg, enum publish_stage stage, int64_t done, int64_t total);
    void *progress_arg;
    const atomic_bool *stop;     /* once true it fails, up to the rename: ERR_CANCELLED; or NULL */
    struct leftovers *leftovers; /* takes what a failure could not remove; or NULL */
    struct faults *faults;       /* test builds; NULL */
};

struct publish_result {
    enum publish_stage stage; /* the stage that failed; PUBLISH_N_STAGES: none did */
    bool published;           /* the directory is there, whole (also on a failure after `rename`) */
    bool left;                /* of what was written a part could not be removed */
    bool exists;              /* the final name was taken: nothing was changed */
    int64_t bytes;            /* size of the streamed file */
    char weights_sha256[SHA256_HEX];
    char manifest_sha256[SHA256_HEX]; /* "" without a manifest */
};

/* 0: all stages done. -1: *e, with e->sys the errno, and *out says how far it came. */
int publish(const struct publish_req *req, struct publish_result *out, struct err *e);
#endif
