/* base/json_load.c - jansson, watched for want of memory.
 *
 * jansson 2.14 (src/load.c, lex_save) passes over the failure of its token buffer to grow, and then
 * looks for the closing quote behind the end of what it has. So a text is fed to it in pieces, and
 * when an allocation fails, that one and the few until the next piece are served from memory that
 * was set aside for it; then the text ends, and what was made of it is dropped. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "base/json.h"
#include "base/nomem.h"

/* jansson reads pieces of 1,024 bytes. Beside its token buffer, a piece makes less than 220 bytes
 * of values for two of text (JSON_NESTS_MAX). */
enum { PIECE_MOST = 128 << 10, ALIGN = 16, SMALL_TEXT = 16 << 10 };
static const size_t small_size = 4 * (size_t)SMALL_TEXT + PIECE_MOST;

/* Of a thread, while it reads a text. */
static _Thread_local struct {
    unsigned char *aside; /* or NULL */
    size_t size, used;
    bool failed;
} memory;

static void *watched_malloc(size_t n)
{
    void *p = n ? nomem_malloc(n) : NULL;

    if (p || n == 0)
        return p;
    memory.failed = true;
    if (!memory.aside || n > memory.size || n + ALIGN > memory.size - memory.used)
        return NULL;
    p = memory.aside + memory.used;
    memory.used += (n + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void watched_free(void *p)
{
    const unsigned char *at = p;

    if (!memory.aside || at < memory.aside || at >= memory.aside + memory.size)
        free(p);
}

void json_memory_watch(void)
{
    json_set_alloc_funcs(watched_malloc, watched_free);
}

/* ---- what is set aside ---- */

/* One for small texts lies ready for whoever comes next: to map it takes longer than to parse a
 * manifest. */
static _Atomic(void *) ready;

static void *map(size_t size)
{
    void *p = size == small_size ? atomic_exchange(&ready, NULL) : NULL;

    if (p)
        return p;
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    return p == MAP_FAILED ? NULL : p;
}

/* The token buffer doubles: all its sizes together are less than four times the longest token. It
 * is only touched when it is needed. */
static int set_aside(size_t len)
{
    size_t size = small_size;

    if (len > SMALL_TEXT && (__builtin_mul_overflow(len, (size_t)4, &size) ||
                             __builtin_add_overflow(size, (size_t)PIECE_MOST, &size)))
        return -1;
    memory.aside = map(size);
    memory.size = size;
    memory.used = 0;
    return memory.aside ? 0 : -1;
}

static void put_back(void)
{
    void *p = memory.aside;

    if (memory.size == small_size)
        p = atomic_exchange(&ready, p);
    if (p)
        munmap(p, memory.size);
    memory.aside = NULL;
}

/* ---- a text ---- */

struct text {
    const char *at;
    size_t left;
};

static size_t feed(void *to, size_t n, void *arg)
{
    struct text *t = arg;

    if (memory.failed)
        return (size_t)-1;
    if (n > t->left)
        n = t->left;
    memcpy(to, t->at, n);
    t->at += n;
    t->left -= n;
    return n;
}

json_t *json_load_text(const char *text, size_t len, size_t flags, json_error_t *at, struct err *e)
{
    struct text t = {text, len};
    json_t *v;

    *at = (json_error_t){0};
    if (set_aside(len) < 0) {
        nomem_note();
        err_nomem(e);
        return NULL;
    }
    memory.failed = false;
    v = json_load_callback(feed, &t, flags, at);
    if (memory.failed || (!v && json_error_code(at) == json_error_out_of_memory)) {
        json_decref(v);
        v = NULL;
        err_nomem(e);
    } else if (!v) {
        err_set(e, ERR_FORMAT, "malformed JSON at line %d, column %d: %s", at->line, at->column,
                at->text);
    }
    put_back();
    return v;
}
