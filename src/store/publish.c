#include "store/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/stopping.h"
#include "store/leftovers.h"
#include "store/stream.h"

enum { PREPARE_TRIES = 8, TEMP_MAX = 320 };

/* What one call holds while it walks the stages. */
struct job {
    const struct publish_req *req;
    struct publish_result *out;
    int run_fd;
    int tmp_fd;
    struct stream_file stream[STREAMS_MAX]; /* the weights, then what else is streamed */
    int n_streams;
    int64_t bytes;    /* of all of them */
    bool run_created; /* by this call */
    bool run_new;     /* its name may not be on disk yet */
    char tag[32];     /* "<boot>-<random>" */
    char tmp[TEMP_MAX];
};

static const char latest_link[] = "latest";

/* ---- memory as a source ---- */

static int read_memory(void *arg, void *to, size_t offset, size_t n, struct err *e)
{
    (void)e;
    memcpy(to, (const char *)arg + offset, n);
    return 0;
}

struct ckpt_source ckpt_source_memory(const void *bytes, size_t n)
{
    return (struct ckpt_source){(int64_t)n, read_memory, (void *)(uintptr_t)bytes};
}

/* ---- names of temporary entries ---- */

static void read_boot_id(char out[9])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    memcpy(out, "00000000", 9);
    if (fd >= 0 && read(fd, out, 8) != 8)
        memset(out, '0', 8);
    fs_close(fd);
}

static int make_names(struct job *j, struct err *e)
{
    char boot[9];
    unsigned random;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return err_io(e, "draw a random name");
    read_boot_id(boot);
    snprintf(j->tag, sizeof j->tag, "%s-%08x", boot, random);
    if (snprintf(j->tmp, sizeof j->tmp, ".tmp-%s-%s", j->req->final_name, j->tag) >= TEMP_MAX)
        return err_set(e, ERR_ARG, "the name %s is too long", j->req->final_name);
    return 0;
}

/* ---- stages ---- */

static int open_run(struct job *j, struct err *e)
{
    struct stat st;

    if (mkdirat(j->req->root_fd, j->req->run_dir, 0755) == 0)
        j->run_created = true;
    else if (errno != EEXIST)
        return err_io(e, "create run directory %s", j->req->run_dir);
    j->run_fd = fs_open_beneath(j->req->root_fd, j->req->run_dir, O_RDONLY | O_DIRECTORY, 0,
                                FS_LINKS_INSIDE, e);
    if (j->run_fd < 0)
        return -1;
    j->run_new = j->run_created || fstatat(j->run_fd, latest_link, &st, AT_SYMLINK_NOFOLLOW) < 0;
    return 0;
}

static int taken(struct job *j, struct err *e)
{
    j->out->exists = true;
    return err_set(e, ERR_CONFLICT, "%s/%s exists already", j->req->run_dir, j->req->final_name);
}

/* 1: made; 0: a failed save of the same run has just removed it, try again. */
static int make_temporary(struct job *j, struct err *e)
{
    struct err why = {0};
    struct stat st;

    fs_close(j->run_fd);
    if (open_run(j, &why) < 0) {
        *e = why;
        return why.sys == ENOENT ? 0 : -1;
    }
    if (fstatat(j->run_fd, j->req->final_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return taken(j, e);
    if (mkdirat(j->run_fd, j->tmp, 0755) < 0) {
        err_io(&why, "create temporary directory in %s", j->req->run_dir);
        *e = why;
        return why.sys == ENOENT ? 0 : -1;
    }
    j->tmp_fd = fs_open_beneath(j->run_fd, j->tmp, O_RDONLY | O_DIRECTORY, 0, FS_LINKS_NONE, e);
    return j->tmp_fd < 0 ? -1 : 1;
}

static int prepare(struct job *j, struct err *e)
{
    struct err why = {0};
    int rc = 0;

    if (make_names(j, e) < 0)
        return -1;
    for (int i = 0; i < PREPARE_TRIES && rc == 0; i++)
        rc = make_temporary(j, &why);
    if (rc > 0)
        return 0;
    *e = why;
    return -1;
}

static void tell(const struct job *j, enum publish_stage stage, int64_t done)
{
    if (j->req->progress)
        j->req->progress(j->req->progress_arg, stage, done, j->bytes);
}

static int tell_block(void *arg, int64_t done, struct err *e)
{
    const struct job *j = arg;

    tell(j, PUBLISH_WEIGHTS, done);
    return stopping_check(j->req->stop, e);
}

static void add_stream(struct job *j, const char *name, const struct ckpt_source *source,
                       char *sha256)
{
    j->stream[j->n_streams++] =
        (struct stream_file){.name = name, .source = source, .sha256 = sha256, .fd = -1};
    j->bytes += source->bytes;
}

static int write_weights(struct job *j, struct err *e)
{
    faults_write_delay(j->req->faults);
    return stream_write_all(j->tmp_fd, j->stream, j->n_streams, tell_block, j, e);
}

static int write_companions(struct job *j, struct err *e)
{
    for (int i = 0; i < j->req->n_files; i++) {
        const struct publish_file *f = &j->req->files[i];

        if (fs_create_file(j->tmp_fd, f->name, f->bytes, f->n, 0644, e) < 0)
            return -1;
    }
    return 0;
}

static int write_manifest(struct job *j, struct err *e)
{
    struct buf text = {0};
    int rc = -1;

    if (!j->req->manifest)
        return 0;
    if (j->req->manifest(j->req->manifest_arg, j->out->weights_sha256, &text, e) < 0)
        goto done;
    sha256_hex_of(buf_str(&text), text.len, j->out->manifest_sha256);
    rc = fs_create_file(j->tmp_fd, j->req->manifest_name, buf_str(&text), text.len, 0644, e);

done:
    buf_release(&text);
    return rc;
}

static int sync_stream(struct stream_file *s, struct err *e)
{
    int fd = s->fd;

    if (fs_sync(fd, s->name, e) < 0)
        return -1;
    s->fd = -1;
    return close(fd) == 0 ? 0 : err_io(e, "close %s", s->name);
}

/* The data of every file first, then the directory that names them. */
static int sync_files(struct job *j, struct err *e)
{
    for (int i = 0; i < j->n_streams; i++)
        if (sync_stream(&j->stream[i], e) < 0)
            return -1;
    for (int i = 0; i < j->req->n_files; i++)
        if (fs_sync_name(j->tmp_fd, j->req->files[i].name, e) < 0)
            return -1;
    if (j->req->manifest && fs_sync_name(j->tmp_fd, j->req->manifest_name, e) < 0)
        return -1;
    return fs_sync(j->tmp_fd, j->tmp, e);
}

/* Not plain rename: that would replace an empty directory of the same name. */
static int rename_to_final(struct job *j, struct err *e)
{
    if (renameat2(j->run_fd, j->tmp, j->run_fd, j->req->final_name, RENAME_NOREPLACE) == 0) {
        j->out->published = true;
        return 0;
    }
    if (errno == EEXIST)
        return taken(j, e);
    return err_io(e, "rename to %s/%s", j->req->run_dir, j->req->final_name);
}

static int sync_parent(struct job *j, struct err *e)
{
    if (fs_sync(j->run_fd, j->req->run_dir, e) < 0)
        return -1;
    return j->run_new ? fs_sync(j->req->root_fd, "the checkpoint root", e) : 0;
}

/* A new link under another name, renamed over the old one: there is no moment without `latest`. */
static int move_latest(struct job *j, struct err *e)
{
    char link[64];

    if (!j->req->move_latest)
        return 0;
    snprintf(link, sizeof link, ".tmp-%s-%s", latest_link, j->tag);
    if (symlinkat(j->req->final_name, j->run_fd, link) < 0)
        return err_io(e, "create a link in %s", j->req->run_dir);
    if (renameat(j->run_fd, link, j->run_fd, latest_link) < 0) {
        err_io(e, "move %s/%s", j->req->run_dir, latest_link);
        unlinkat(j->run_fd, link, 0);
        return -1;
    }
    return fs_sync(j->run_fd, j->req->run_dir, e);
}

/* ---- the walk ---- */

static const struct {
    const char *name;
    int (*run)(struct job *j, struct err *e);
} stages[PUBLISH_N_STAGES] = {
    [PUBLISH_PREPARE] = {"prepare", prepare},
    [PUBLISH_WEIGHTS] = {"weights", write_weights},
    [PUBLISH_COMPANIONS] = {"companions", write_companions},
    [PUBLISH_MANIFEST] = {"manifest", write_manifest},
    [PUBLISH_SYNC] = {"sync", sync_files},
    [PUBLISH_RENAME] = {"rename", rename_to_final},
    [PUBLISH_SYNC_PARENT] = {"sync_parent", sync_parent},
    [PUBLISH_LATEST] = {"latest", move_latest},
};

const char *publish_stage_name(enum publish_stage s)
{
    return s < PUBLISH_N_STAGES ? stages[s].name : "done";
}

static int run_stage(struct job *j, enum publish_stage s, struct err *e)
{
    tell(j, s, 0);
    if (s <= PUBLISH_RENAME && stopping_check(j->req->stop, e) < 0)
        return -1;
    if (faults_take(j->req->faults, stages[s].name)) {
        errno = EIO;
        return err_io(e, "stage %s fails on request", stages[s].name);
    }
    return stages[s].run(j, e);
}

static void clean_up(struct job *j)
{
    struct err ignored = {0};

    for (int i = 0; i < j->n_streams; i++)
        fs_close(j->stream[i].fd);
    fs_close(j->tmp_fd);
    if (!j->out->published && j->tmp[0] && j->run_fd >= 0)
        j->out->left = leftovers_remove(j->req->leftovers, j->run_fd, j->tmp, &ignored) < 0;
    fs_close(j->run_fd);
    if (!j->out->published && j->run_created)
        unlinkat(j->req->root_fd, j->req->run_dir, AT_REMOVEDIR); /* only if it is empty */
}

int publish(const struct publish_req *req, struct publish_result *out, struct err *e)
{
    struct job j = {.req = req, .out = out, .run_fd = -1, .tmp_fd = -1};
    int rc = 0;

    *out = (struct publish_result){.bytes = req->weights.bytes};
    if (req->n_more < 0 || req->n_more >= STREAMS_MAX)
        return err_set(e, ERR_ARG, "%d further streams, of at most %d", req->n_more,
                       STREAMS_MAX - 1);
    add_stream(&j, req->weights_name, &req->weights, out->weights_sha256);
    for (int i = 0; i < req->n_more; i++)
        add_stream(&j, req->more[i].name, &req->more[i].source, req->more[i].sha256);
    for (int s = 0; s < PUBLISH_N_STAGES && rc == 0; s++) {
        out->stage = (enum publish_stage)s;
        rc = run_stage(&j, out->stage, e);
    }
    if (rc == 0)
        out->stage = PUBLISH_N_STAGES;
    clean_up(&j);
    return rc;
}
