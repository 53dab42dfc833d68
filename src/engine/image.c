#include "engine/image.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "engine/bus_guard.h"
#include "engine/companions.h"
#include "engine/image_bank.h"
#include "model/config.h"
#include "model/model.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

/* ---- counting ---- */

void image_files_unref(struct image_files *f)
{
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1)
        return;
    tokenizer_unref(f->tokenizer);
    companions_free(f->companions);
    free(f->config);
    chat_source_unref(f->chat);
    free(f);
}

struct image_files *image_files_ref(struct image_files *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

bool image_files_same(const struct image_files *a, const struct image_files *b)
{
    return a == b || (strcmp(a->dir, b->dir) == 0 && companions_same(a->companions, b->companions));
}

static void memory_release(struct image *im)
{
    if (im->memory == IMAGE_PRIVATE) {
        image_bank_give(im->bank, im->block, im->block_bytes);
        return;
    }
    bus_guard_remove(im->guard);
    if (im->block)
        munmap(im->block, im->block_bytes);
    if (im->shm_name[0])
        shm_unlink(im->shm_name);
    if (im->shared_fd >= 0)
        close(im->shared_fd);
}

static void image_free(struct image *im)
{
    image_bank_forget(im->bank, im);
    model_free(im->model);
    weights_free(im->weights);
    memory_release(im);
    image_files_unref(im->files);
    image_bank_count(im->bank, -1);
    image_bank_unref(im->bank);
    free(im);
}

struct image *image_ref(struct image *im)
{
    atomic_fetch_add_explicit(&im->refs, 1, memory_order_relaxed);
    return im;
}

void image_unref(struct image *im)
{
    if (im && atomic_fetch_sub_explicit(&im->refs, 1, memory_order_acq_rel) == 1)
        image_free(im);
}

bool image_damaged(const struct image *im)
{
    return bus_guard_hit(im->guard);
}

static struct image *image_new(struct image_bank *bank, enum image_memory memory, struct err *e)
{
    struct image *im = calloc(1, sizeof *im);

    if (!im) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&im->refs, 1);
    im->bank = image_bank_ref(bank);
    image_bank_count(bank, 1);
    im->epoch = image_bank_next_epoch(bank);
    im->memory = memory;
    im->shared_fd = -1;
    im->guard = -1;
    return im;
}

/* ---- loading ---- */

static struct image_files *files_read(const struct model_config *config, int dir_fd,
                                      const char *path, bool with_code, const char **reason,
                                      struct err *e)
{
    struct image_files *f = calloc(1, sizeof *f);
    struct err none = {0};

    if (!f || !(f->config = malloc(sizeof *f->config))) {
        free(f);
        err_nomem(e);
        return NULL;
    }
    atomic_init(&f->refs, 1);
    *f->config = *config;
    snprintf(f->dir, sizeof f->dir, "%s", path);
    f->companions = companions_read(dir_fd, with_code, e);
    if (!f->companions) {
        *reason = "companions";
        goto fail;
    }
    f->tokenizer = tokenizer_open(dir_fd, &none);
    if (!f->tokenizer && none.code != ERR_NOT_FOUND) {
        *e = none;
        *reason = "tokenizer";
        goto fail;
    }
    f->chat = chat_source_open(dir_fd, e);
    if (f->chat)
        return f;
    *reason = "chat_template";

fail:
    image_files_unref(f);
    return NULL;
}

struct image_files *image_files_read(int dir_fd, const char *path, bool with_code,
                                     const char **reason, struct err *e)
{
    struct model_config *config = malloc(sizeof *config);
    struct image_files *f = NULL;

    if (!config) {
        err_nomem(e);
        return NULL;
    }
    if (model_config_load(config, dir_fd, reason, e) == 0)
        f = files_read(config, dir_fd, path, with_code, reason, e);
    free(config);
    return f;
}

/* Reads the opened weight files into a block of the bank. */
static struct weights *read_weights(struct image_bank *bank, const struct model_dir *md,
                                    struct image_load *opt, unsigned char **block,
                                    size_t *block_bytes, struct err *e)
{
    struct weights_read how = {.progress = opt->progress, .arg = opt->arg, .hash = opt->hash};
    size_t bytes = weights_bytes(&md->all, e);

    if (bytes == 0)
        return NULL;
    *block = image_bank_take_for(bank, bytes, block_bytes, opt->progress, opt->arg, e);
    if (!*block)
        return NULL;
    struct weights *w = weights_read(md, *block, *block_bytes, &how, e);

    if (!w) {
        image_bank_give(bank, *block, *block_bytes);
        *block = NULL;
        return NULL;
    }
    memcpy(opt->sha256, how.sha256, sizeof opt->sha256);
    return w;
}

struct image *image_load_opened(struct image_bank *bank, const struct model_dir *md,
                                const struct model_config *config, int dir_fd, const char *path,
                                struct image_load *opt, struct err *e)
{
    struct image_load plain = {0};
    struct image *im = image_new(bank, IMAGE_PRIVATE, e);

    if (!im)
        return NULL;
    opt = opt ? opt : &plain;
    im->files =
        files_read(config, dir_fd, path, opt->with_code, &opt->reason, e); /* before memory */
    if (!im->files)
        goto fail;
    im->weights = read_weights(bank, md, opt, &im->block, &im->block_bytes, e);
    if (!im->weights)
        goto fail;
    im->model = model_bind(config, im->weights, &opt->reason, e);
    if (!im->model)
        goto fail;
    return im;

fail:
    image_unref(im);
    return NULL;
}

struct image *image_load_dir(struct image_bank *bank, const char *path, struct image_load *opt,
                             struct err *e)
{
    struct image_load plain = {.f32_ok = true};
    struct model_config *config = malloc(sizeof *config);
    struct model_dir md = {0};
    char real[PATH_MAX];
    struct image *im = NULL;
    int fd = -1;

    opt = opt ? opt : &plain;
    struct model_dir_rules rules = {.f32_ok = opt->f32_ok};

    if (!config) {
        err_nomem(e);
        goto done;
    }
    if (!realpath(path, real) || (fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        err_io(e, "open the model directory %s", path);
        goto done;
    }
    if (model_open_dir(fd, &rules, &md, config, &opt->reason, e) < 0)
        goto done;
    im = image_load_opened(bank, &md, config, fd, real, opt, e);

done:
    model_dir_close(&md);
    if (fd >= 0)
        close(fd);
    free(config);
    return im;
}

int image_stage(struct image_staging *st, struct image_bank *bank, const struct model_dir *md,
                struct image_load *opt, struct err *e)
{
    struct image_load plain = {0};

    *st = (struct image_staging){0};
    st->weights = read_weights(bank, md, opt ? opt : &plain, &st->block, &st->block_bytes, e);
    if (!st->weights)
        return -1;
    st->bank = image_bank_ref(bank);
    return 0;
}

int image_stage_empty(struct image_staging *st, struct image_bank *bank,
                      const struct st_index *index, const struct image_load *opt, struct err *e)
{
    const struct image_load plain = {0};
    size_t bytes = weights_bytes(index, e);

    *st = (struct image_staging){0};
    if (bytes == 0)
        return -1;
    opt = opt ? opt : &plain;
    st->block = image_bank_take_for(bank, bytes, &st->block_bytes, opt->progress, opt->arg, e);
    if (!st->block)
        return -1;
    st->bank = image_bank_ref(bank);
    st->weights = weights_new(index, st->block, st->block_bytes, e);
    if (st->weights)
        return 0;
    image_staging_release(st);
    return -1;
}

struct image *image_adopt(struct image_staging *st, struct image_files *files, const char **reason,
                          struct err *e)
{
    struct image *im = image_new(st->bank, IMAGE_PRIVATE, e);

    if (!im)
        return NULL;
    im->files = image_files_ref(files);
    im->model = model_bind(files->config, st->weights, reason, e);
    if (!im->model) {
        image_unref(im);
        return NULL;
    }
    im->weights = st->weights;
    im->block = st->block;
    im->block_bytes = st->block_bytes;
    image_bank_unref(st->bank);
    *st = (struct image_staging){0};
    return im;
}

void image_staging_release(struct image_staging *st)
{
    if (!st->bank)
        return;
    weights_free(st->weights);
    image_bank_give(st->bank, st->block, st->block_bytes);
    image_bank_unref(st->bank);
    *st = (struct image_staging){0};
}

/* ---- copies ---- */

/* Lays the same tensors out in the block of `im`, copies all bytes and binds the model to them. */
static int fill_copy(struct image *im, struct image *from, struct err *e)
{
    const char *reason = NULL;

    im->files = image_files_ref(from->files);
    im->weights = weights_new(&from->weights->index, im->block, im->block_bytes, e);
    if (!im->weights)
        return -1;
    memcpy(im->weights->base, from->weights->base, from->weights->bytes);
    im->model = model_bind(im->files->config, im->weights, &reason, e);
    return im->model ? 0 : -1;
}

struct image *image_copy_private(struct image *from, struct err *e)
{
    struct image *im = image_new(from->bank, IMAGE_PRIVATE, e);

    if (!im)
        return NULL;
    im->block = image_bank_take(im->bank, from->weights->bytes, &im->block_bytes, e);
    if (!im->block || fill_copy(im, from, e) < 0) {
        image_unref(im);
        return NULL;
    }
    return im;
}

static int make_memfd(struct image *im, struct err *e)
{
    im->shared_fd = memfd_create("cairn-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (im->shared_fd < 0)
        return err_io(e, "make shared memory");
    return 0;
}

/* A shared lock, for as long as the descriptor lives: what nobody has locked is left over and may
 * be removed, by another process in the moment before the lock too. */
static int mark_in_use(int fd, const char *name, struct err *e)
{
    struct stat st;

    if (flock(fd, LOCK_SH | LOCK_NB) < 0 || fstat(fd, &st) < 0)
        return err_io(e, "mark shared memory %s as in use", name);
    return st.st_nlink > 0 ? 0 : err_set(e, ERR_CONFLICT, "%s was taken for a leftover", name);
}

static int make_posix(struct image *im, const char *name, struct err *e)
{
    int n = name ? snprintf(im->shm_name, sizeof im->shm_name, "%s", name) : 0;

    if (n < 2 || n >= (int)sizeof im->shm_name || name[0] != '/') {
        im->shm_name[0] = '\0';
        return err_set(e, ERR_ARG, "'%s' cannot name shared memory", name ? name : "");
    }
    im->shared_fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (im->shared_fd < 0) {
        im->shm_name[0] = '\0'; /* not ours to unlink */
        return err_io(e, "make shared memory %s", name);
    }
    return mark_in_use(im->shared_fd, name, e);
}

/* Reserves every page, so that a full file system shows now. */
static int size_and_map(struct image *im, size_t bytes, struct err *e)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    int rc = 0;

    do
        rc = fallocate(im->shared_fd, 0, 0, (off_t)whole);
    while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return err_io(e, "reserve %zu bytes of shared memory", whole);
    void *m = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, im->shared_fd, 0);

    if (m == MAP_FAILED)
        return err_io(e, "map %zu bytes of shared memory", whole);
    im->block = m;
    im->block_bytes = whole;
    return 0;
}

/* Nobody can change the size of a sealed memfd; of a POSIX object anybody with the name can. */
static int protect(struct image *im, struct err *e)
{
    if (im->memory == IMAGE_POSIX_SHM) {
        im->guard = bus_guard_add(im->block, im->block_bytes, e);
        return im->guard < 0 ? -1 : 0;
    }
    if (fcntl(im->shared_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_io(e, "seal shared memory");
    return 0;
}

struct image *image_copy_shared(struct image *from, enum image_memory memory, const char *name,
                                struct err *e)
{
    struct image *im = image_new(from->bank, memory, e);

    if (!im)
        return NULL;
    if ((memory == IMAGE_MEMFD ? make_memfd(im, e) : make_posix(im, name, e)) < 0 ||
        size_and_map(im, from->weights->bytes, e) < 0 || protect(im, e) < 0 ||
        fill_copy(im, from, e) < 0) {
        image_unref(im);
        return NULL;
    }
    return im;
}
