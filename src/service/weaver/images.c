#include "service/weaver/images.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/faults.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/image.h"
#include "engine/served.h"
#include "service/memory.h"
#include "service/refusal.h"
#include "service/service.h"
#include "store/catalogue.h"
#include "store/reader.h"
#include "tensor/model_dir.h"
#include "tensor/weights.h"

enum { KEY_MAX = 64 };
static const int64_t keep_unused_ms = 30000;

struct entry {
    char key[KEY_MAX];
    struct image *image; /* one reference is ours */
    int64_t used_ns;     /* when somebody last took it */
    bool hashed;
    char sha256[SHA256_HEX]; /* once it is hashed: of the row's file, "" for none */
    struct entry *next;
};

struct image_cache {
    struct service *s;
    pthread_mutex_t lock;    /* the list */
    pthread_mutex_t loading; /* one load at a time */
    struct entry *entries;
};

struct image_cache *images_new(struct service *s, struct err *e)
{
    struct image_cache *c = calloc(1, sizeof *c);

    if (!c) {
        err_nomem(e);
        return NULL;
    }
    c->s = s;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->loading, NULL);
    return c;
}

static void drop(struct entry **at)
{
    struct entry *x = *at;

    *at = x->next;
    image_unref(x->image);
    free(x);
}

void images_free(struct image_cache *c)
{
    if (!c)
        return;
    while (c->entries)
        drop(&c->entries);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->loading);
    free(c);
}

static bool unused(const struct entry *x)
{
    return atomic_load(&x->image->refs) == 1;
}

/* The lock is held. */
static struct entry *entry_of(const struct image_cache *c, const char *key)
{
    struct entry *x = c->entries;

    while (x && strcmp(x->key, key) != 0)
        x = x->next;
    return x;
}

static struct image *find(struct image_cache *c, const char *key)
{
    struct image *im = NULL;
    struct entry *x;

    pthread_mutex_lock(&c->lock);
    x = entry_of(c, key);
    if (x) {
        x->used_ns = clock_mono_ns();
        im = image_ref(x->image);
    }
    pthread_mutex_unlock(&c->lock);
    return im;
}

/* Consumes nothing: the cache takes a reference of its own. */
static int keep(struct image_cache *c, const char *key, struct image *im, struct err *e)
{
    struct entry *x = calloc(1, sizeof *x);

    if (!x)
        return err_nomem(e);
    str_copy(x->key, sizeof x->key, key);
    x->image = image_ref(im);
    x->used_ns = clock_mono_ns();
    pthread_mutex_lock(&c->lock);
    if (!entry_of(c, key)) { /* two may have asked for it at once */
        x->next = c->entries;
        c->entries = x;
        x = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    if (x) {
        image_unref(x->image);
        free(x);
    }
    return 0;
}

/* ---- room ---- */

/* Lets go of what was unused for the longest time. False: nothing is unused. */
static bool drop_oldest(struct image_cache *c)
{
    struct entry **oldest = NULL;

    pthread_mutex_lock(&c->lock);
    for (struct entry **at = &c->entries; *at; at = &(*at)->next)
        if (unused(*at) && (!oldest || (*at)->used_ns < (*oldest)->used_ns))
            oldest = at;
    if (oldest)
        drop(oldest);
    pthread_mutex_unlock(&c->lock);
    return oldest != NULL;
}

static size_t bytes_held(struct image_cache *c)
{
    size_t bytes = 0;

    pthread_mutex_lock(&c->lock);
    for (const struct entry *x = c->entries; x; x = x->next)
        bytes += x->image->block_bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

static bool over_budget(struct image_cache *c, size_t bytes)
{
    size_t budget = (size_t)c->s->settings->memory_mb << 20;

    return budget && bytes_held(c) + bytes > budget;
}

int images_make_way(struct image_cache *c, size_t bytes, struct refusal *r)
{
    while (memory_refuse(c->s, bytes, false, r) < 0) {
        if (!drop_oldest(c))
            return -1;
        refusal_clear(r);
    }
    return 0;
}

static int make_room(struct image_cache *c, size_t bytes, struct err *e)
{
    struct refusal r = {0};
    int rc = 0;

    while (rc == 0 && over_budget(c, bytes))
        rc = drop_oldest(c) ? 0 : -1;
    if (rc == 0)
        rc = images_make_way(c, bytes, &r);
    refusal_clear(&r);
    return rc == 0 ? 0
                   : err_set(e, ERR_NOMEM, "%zu bytes of weights do not fit beside what is held",
                             bytes);
}

void images_sweep(struct image_cache *c)
{
    int64_t before = clock_mono_ns() - 1000000 * faults_idle_ms(c->s->faults, keep_unused_ms);

    pthread_mutex_lock(&c->lock);
    for (struct entry **at = &c->entries; *at;)
        if (unused(*at) && (*at)->used_ns < before)
            drop(at);
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&c->lock);
}

bool images_row_held(struct image_cache *c, int64_t row_id)
{
    const struct entry *x;
    char key[KEY_MAX];
    bool held;

    snprintf(key, sizeof key, "row-%" PRId64, row_id);
    pthread_mutex_lock(&c->lock);
    x = entry_of(c, key);
    held = x && !unused(x);
    pthread_mutex_unlock(&c->lock);
    return held;
}

/* ---- which base ---- */

static void hash_file(const char *dir, char out[SHA256_HEX])
{
    struct ckpt_reader *reader = NULL;
    struct err e = {0};
    int fd = fs_open_dir(dir, &e);

    *out = '\0';
    if (fd >= 0 && ckpt_reader_open(fd, "model.safetensors", &reader, &e) == READER_OK &&
        ckpt_reader_hash(reader, NULL, NULL, NULL, out, &e) < 0)
        *out = '\0';
    ckpt_reader_close(reader);
    fs_close(fd);
}

/* The image under a key, counted, and its hash where it is known. */
static struct image *look(struct image_cache *c, const char *key, bool *hashed,
                          char out[SHA256_HEX])
{
    struct image *im = NULL;
    const struct entry *x;

    pthread_mutex_lock(&c->lock);
    x = entry_of(c, key);
    if (x) {
        im = image_ref(x->image);
        *hashed = x->hashed;
        memcpy(out, x->sha256, SHA256_HEX);
    }
    pthread_mutex_unlock(&c->lock);
    return im;
}

static void remember(struct image_cache *c, const struct image *im, const char *sha256)
{
    pthread_mutex_lock(&c->lock);
    for (struct entry *x = c->entries; x; x = x->next)
        if (x->image == im) {
            x->hashed = true;
            memcpy(x->sha256, sha256, SHA256_HEX);
        }
    pthread_mutex_unlock(&c->lock);
}

void images_row_sha256(struct image_cache *c, int64_t row_id, char out[SHA256_HEX])
{
    char key[KEY_MAX];
    bool hashed = false;
    struct image *im;

    *out = '\0';
    snprintf(key, sizeof key, "row-%" PRId64, row_id);
    im = look(c, key, &hashed, out);
    if (im && !hashed) {
        hash_file(im->files->dir, out);
        remember(c, im, out);
    }
    image_unref(im);
}

/* ---- loading ---- */

static size_t bytes_in(int dir_fd, struct err *e)
{
    enum model_dir_reason why;
    struct model_dir md;
    size_t bytes;

    if (model_dir_open(&md, dir_fd, &why, e) < 0)
        return 0;
    bytes = weights_bytes(&md.all, e);
    model_dir_close(&md);
    return bytes;
}

/* What is read for a server that is being stopped is of no use. */
static int piece_read(void *arg, uint64_t done, uint64_t total)
{
    struct service *s = arg;

    (void)total;
    if (done > 0)
        faults_read_delay(s->faults, &s->stopping);
    return atomic_load(&s->stopping);
}

static struct image *load(struct image_cache *c, int dir_fd, const char *sha256, struct err *e)
{
    struct image_load how = {
        .progress = piece_read, .arg = c->s, .f32_ok = true, .hash = sha256 != NULL};
    size_t bytes = bytes_in(dir_fd, e);
    struct image *im = NULL;
    char *path;

    if (!bytes || make_room(c, bytes, e) < 0)
        return NULL;
    path = fs_path_of(dir_fd, e);
    if (path)
        im = image_load_dir(engine_bank(c->s->engine), path, &how, e);
    free(path);
    if (im && sha256 && strcmp(sha256, how.sha256) != 0) {
        err_set(e, ERR_FORMAT, "model.safetensors has the sha256 %.16s..., recorded is %.16s...",
                how.sha256, sha256);
        image_unref(im);
        im = NULL;
    }
    return im;
}

static struct image *find_or_load(struct image_cache *c, const char *key, int dir_fd,
                                  const char *sha256, struct err *e)
{
    struct image *im;

    pthread_mutex_lock(&c->loading);
    im = find(c, key);
    if (!im) {
        im = load(c, dir_fd, sha256, e);
        if (im && keep(c, key, im, e) < 0) {
            image_unref(im);
            im = NULL;
        }
    }
    pthread_mutex_unlock(&c->loading);
    return im;
}

/* The resident, where it is this row's own files and nobody has written into it. */
static struct image *resident_of(struct image_cache *c, int64_t row_id)
{
    struct image *im;
    struct served *served = engine_peek(c->s->engine, &im);

    if (im && (!served || served->row_id != row_id || served->checkpoint || served->commits > 0 ||
               *served->manifest_sha256 || im->memory != IMAGE_PRIVATE)) {
        image_unref(im);
        im = NULL;
    }
    served_unref(served);
    return im;
}

bool images_at_hand(struct image_cache *c, const char *key)
{
    bool there;

    pthread_mutex_lock(&c->lock);
    there = entry_of(c, key) != NULL;
    pthread_mutex_unlock(&c->lock);
    return there;
}

bool images_row_at_hand(struct image_cache *c, int64_t row_id, bool checked)
{
    char key[KEY_MAX], sha[SHA256_HEX];
    bool hashed = false;
    struct image *im;

    snprintf(key, sizeof key, "row-%" PRId64, row_id);
    im = look(c, key, &hashed, sha);
    if (!im && !checked)
        im = resident_of(c, row_id);
    image_unref(im);
    return im && (hashed || !checked);
}

struct image *images_of_row(struct image_cache *c, const struct model_row *row, struct err *e)
{
    char key[KEY_MAX];
    struct image *im;
    int fd;

    snprintf(key, sizeof key, "row-%" PRId64, row->id);
    if ((im = find(c, key)))
        return im;
    if ((im = resident_of(c, row->id))) {
        if (keep(c, key, im, e) == 0)
            return im;
        image_unref(im);
        return NULL;
    }
    fd = fs_open_dir(row->local_path ? row->local_path : "", e);
    if (fd < 0)
        return NULL;
    im = find_or_load(c, key, fd, NULL, e);
    fs_close(fd);
    return im;
}

struct image *images_of_dir(struct image_cache *c, const char *key, int dir_fd, const char *sha256,
                            struct err *e)
{
    return find_or_load(c, key, dir_fd, sha256, e);
}
