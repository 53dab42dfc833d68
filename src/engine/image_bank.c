#include "engine/image_bank.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/err.h"
#include "base/str.h"
#include "engine/image.h"

enum {
    HUGE_PAGE = 2 << 20,
    TOUCH_THREADS = 4,
    TOUCH_ALONE = 32 << 20, /* smaller blocks are touched by one thread */
    TOUCH_PIECE = 16 << 20, /* after each a load may be cut short: a whole number of huge pages */
};

struct image_bank {
    atomic_int refs;
    atomic_int alive;
    _Atomic uint64_t epoch;

    pthread_mutex_t lock; /* guards what follows */
    bool keep;
    unsigned char *spare;
    size_t spare_bytes;
    struct image *known; /* linked by next_known */
};

struct image_bank *image_bank_new(struct err *e)
{
    struct image_bank *b = calloc(1, sizeof *b);

    if (!b) {
        err_nomem(e);
        return NULL;
    }
    atomic_init(&b->refs, 1);
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

struct image_bank *image_bank_ref(struct image_bank *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void image_bank_unref(struct image_bank *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (b->spare)
        munmap(b->spare, b->spare_bytes);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void image_bank_keep_spare(struct image_bank *b)
{
    pthread_mutex_lock(&b->lock);
    b->keep = true;
    pthread_mutex_unlock(&b->lock);
}

/* The spare leaves the bank: the caller owns it. */
static unsigned char *detach_spare(struct image_bank *b, size_t *bytes)
{
    pthread_mutex_lock(&b->lock);
    unsigned char *spare = b->spare;

    *bytes = b->spare_bytes;
    b->spare = NULL;
    b->spare_bytes = 0;
    pthread_mutex_unlock(&b->lock);
    return spare;
}

void image_bank_drop_spare(struct image_bank *b)
{
    size_t bytes;
    unsigned char *spare = detach_spare(b, &bytes);

    if (spare)
        munmap(spare, bytes);
}

/* One block whose pages are being made. */
struct touching {
    int (*progress)(void *arg, uint64_t done, uint64_t total); /* NULL: goes on to the end */
    void *arg;
    size_t bytes;
    atomic_bool cut;
};

struct touch {
    struct touching *all;
    unsigned char *from;
    size_t bytes;
    bool asks; /* it is the caller's thread that may ask whether to go on */
    bool failed;
};

static bool touch_piece(unsigned char *from, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (madvise(from, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL) /* EINVAL: a kernel before 5.14 */
        return false;
    for (size_t i = 0; i < bytes; i += page)
        ((volatile unsigned char *)from)[i] = 0;
    return true;
}

static void *touch(void *arg)
{
    struct touch *t = arg;
    struct touching *all = t->all;

    for (size_t at = 0; at < t->bytes && !t->failed; at += TOUCH_PIECE) {
        size_t left = t->bytes - at;

        if (t->asks && all->progress && all->progress(all->arg, 0, all->bytes))
            atomic_store(&all->cut, true);
        if (atomic_load(&all->cut))
            break;
        t->failed = !touch_piece(t->from + at, left < TOUCH_PIECE ? left : TOUCH_PIECE);
    }
    return NULL;
}

/* Faults in every page, a part per thread: parts are whole huge pages. False: the system has no
 * memory for them, or it was cut short. */
static bool touch_all(unsigned char *block, struct touching *all)
{
    size_t bytes = all->bytes;
    struct touch parts[TOUCH_THREADS];
    pthread_t threads[TOUCH_THREADS];
    bool started[TOUCH_THREADS] = {false};
    int n = bytes < TOUCH_ALONE ? 1 : cpus_usable();

    if (n > TOUCH_THREADS)
        n = TOUCH_THREADS;
    size_t share = (bytes / (size_t)n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;

    for (int i = 0; i < n; i++) {
        size_t from = (size_t)i * share < bytes ? (size_t)i * share : bytes;
        size_t to = i == n - 1 || from + share > bytes ? bytes : from + share;

        parts[i] =
            (struct touch){.all = all, .from = block + from, .bytes = to - from, .asks = i == 0};
        if (i > 0)
            started[i] = pthread_create(&threads[i], NULL, touch, &parts[i]) == 0;
    }
    for (int i = 0; i < n; i++)
        if (!started[i])
            touch(&parts[i]);
    bool ok = true;

    for (int i = 0; i < n; i++) {
        if (started[i])
            pthread_join(threads[i], NULL);
        ok = ok && !parts[i].failed;
    }
    return ok && !atomic_load(&all->cut);
}

/* mmap gives page alignment; huge pages want 2 MiB, so the ends of a longer mapping are cut off. */
static unsigned char *map_aligned(size_t bytes)
{
    size_t longer;

    if (__builtin_add_overflow(bytes, (size_t)HUGE_PAGE, &longer))
        return NULL;
    unsigned char *m = mmap(NULL, longer, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (m == MAP_FAILED)
        return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)m % HUGE_PAGE) % HUGE_PAGE;

    if (head)
        munmap(m, head);
    if (longer - head > bytes)
        munmap(m + head + bytes, longer - head - bytes);
    madvise(m + head, bytes, MADV_HUGEPAGE);
    return m + head;
}

/* The spare serves when it is large enough and wastes at most an eighth. */
static unsigned char *take_spare(struct image_bank *b, size_t bytes, size_t *block_bytes)
{
    size_t have;
    unsigned char *spare = detach_spare(b, &have);

    if (spare && have >= bytes && have - bytes <= bytes / 8 + HUGE_PAGE) {
        *block_bytes = have;
        return spare;
    }
    if (spare)
        munmap(spare, have);
    return NULL;
}

unsigned char *image_bank_take_resident(struct image_bank *b, size_t bytes, size_t *block_bytes)
{
    unsigned char *spare = NULL;

    pthread_mutex_lock(&b->lock);
    if (b->spare && b->spare_bytes >= bytes) {
        spare = b->spare;
        *block_bytes = b->spare_bytes;
        b->spare = NULL;
        b->spare_bytes = 0;
    }
    pthread_mutex_unlock(&b->lock);
    return spare;
}

unsigned char *image_bank_take(struct image_bank *b, size_t bytes, size_t *block_bytes,
                               struct err *e)
{
    return image_bank_take_for(b, bytes, block_bytes, NULL, NULL, e);
}

unsigned char *image_bank_take_for(struct image_bank *b, size_t bytes, size_t *block_bytes,
                                   int (*progress)(void *arg, uint64_t done, uint64_t total),
                                   void *arg, struct err *e)
{
    struct touching all = {.progress = progress, .arg = arg};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = 0;
    unsigned char *block = take_spare(b, bytes, block_bytes);

    if (block)
        return block;
    if (!__builtin_add_overflow(bytes, page - 1, &whole)) {
        whole = whole / page * page;
        block = map_aligned(whole);
    }
    all.bytes = whole;
    if (block && !touch_all(block, &all)) {
        munmap(block, whole);
        block = NULL;
    }
    if (!block && atomic_load(&all.cut))
        err_set(e, ERR_CANCELLED, "making memory for the weights was cancelled");
    else if (!block)
        err_set(e, ERR_NOMEM, "no memory for %zu bytes of weights", bytes);
    if (!block)
        return NULL;
    *block_bytes = whole;
    return block;
}

void image_bank_give(struct image_bank *b, unsigned char *block, size_t block_bytes)
{
    if (!block)
        return;
    pthread_mutex_lock(&b->lock);
    if (b->keep) { /* the newer block stays: the next one asked for is most likely of its size */
        unsigned char *older = b->spare;
        size_t older_bytes = b->spare_bytes;

        b->spare = block;
        b->spare_bytes = block_bytes;
        block = older;
        block_bytes = older_bytes;
    }
    pthread_mutex_unlock(&b->lock);
    if (block)
        munmap(block, block_bytes);
}

size_t image_bank_spare_bytes(struct image_bank *b)
{
    pthread_mutex_lock(&b->lock);
    size_t n = b->spare_bytes;

    pthread_mutex_unlock(&b->lock);
    return n;
}

uint64_t image_bank_next_epoch(struct image_bank *b)
{
    return atomic_fetch_add_explicit(&b->epoch, 1, memory_order_relaxed) + 1;
}

void image_bank_count(struct image_bank *b, int change)
{
    atomic_fetch_add_explicit(&b->alive, change, memory_order_relaxed);
}

int image_bank_alive(struct image_bank *b)
{
    return atomic_load_explicit(&b->alive, memory_order_relaxed);
}

/* ---- images that are known by their file ---- */

static void unlink_known(struct image_bank *b, struct image *im)
{
    for (struct image **at = &b->known; *at; at = &(*at)->next_known)
        if (*at == im) {
            *at = im->next_known;
            break;
        }
    im->file_sha256[0] = '\0';
    im->next_known = NULL;
}

void image_bank_know(struct image_bank *b, struct image *im, const char *sha256)
{
    pthread_mutex_lock(&b->lock);
    unlink_known(b, im);
    str_copy(im->file_sha256, sizeof im->file_sha256, sha256);
    im->next_known = b->known;
    b->known = im;
    pthread_mutex_unlock(&b->lock);
}

void image_bank_forget(struct image_bank *b, struct image *im)
{
    pthread_mutex_lock(&b->lock);
    unlink_known(b, im);
    pthread_mutex_unlock(&b->lock);
}

/* Not of an image whose last reference has just gone: it waits for the lock to be forgotten. */
static bool ref_if_alive(struct image *im)
{
    int refs = atomic_load_explicit(&im->refs, memory_order_relaxed);

    while (refs > 0)
        if (atomic_compare_exchange_weak_explicit(&im->refs, &refs, refs + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

struct image *image_bank_find(struct image_bank *b, const char *sha256,
                              const struct image_files *files, const struct image *except)
{
    struct image *im;

    pthread_mutex_lock(&b->lock);
    for (im = b->known; im; im = im->next_known)
        if (im != except && strcmp(im->file_sha256, sha256) == 0 &&
            image_files_same(im->files, files) && ref_if_alive(im))
            break;
    pthread_mutex_unlock(&b->lock);
    return im;
}
