#include "store/lineage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/sha256.h"
#include "store/manifest.h"
#include "store/resolve.h"
#include "store/roots.h"
#include "store/schema.h"

enum { KEY_BYTES = 16, SEEN_FIRST = 64 };

struct seen_slot {
    bool used;
    unsigned char key[KEY_BYTES];
};

/* Names already walked, as the first half of their SHA-256: open addressing, at most half full. */
struct seen {
    struct seen_slot *slot;
    size_t n, cap; /* cap is a power of two */
};

static int seen_init(struct seen *s, size_t cap, struct err *e)
{
    *s = (struct seen){.slot = calloc(cap, sizeof *s->slot), .cap = cap};
    return s->slot ? 0 : err_nomem(e);
}

static void seen_release(struct seen *s)
{
    free(s->slot);
}

/* False: it was there. */
static bool seen_put(struct seen *s, const unsigned char key[KEY_BYTES])
{
    size_t at;

    memcpy(&at, key, sizeof at);
    for (at &= s->cap - 1; s->slot[at].used; at = (at + 1) & (s->cap - 1))
        if (memcmp(s->slot[at].key, key, KEY_BYTES) == 0)
            return false;
    memcpy(s->slot[at].key, key, KEY_BYTES);
    s->slot[at].used = true;
    s->n++;
    return true;
}

static int seen_grow(struct seen *s, struct err *e)
{
    struct seen big;

    if (seen_init(&big, s->cap * 2, e) < 0)
        return -1;
    for (size_t i = 0; i < s->cap; i++)
        if (s->slot[i].used)
            seen_put(&big, s->slot[i].key);
    seen_release(s);
    *s = big;
    return 0;
}

/* 1 new, 0 seen before, -1 no memory. */
static int seen_add(struct seen *s, const char *name, struct err *e)
{
    unsigned char digest[SHA256_BYTES];

    if (s->n * 2 >= s->cap && seen_grow(s, e) < 0)
        return -1;
    sha256_of(name, strlen(name), digest);
    return seen_put(s, digest);
}

const char *lineage_break_name(enum lineage_break b)
{
    static const char *const names[] = {
        [LINEAGE_COMPLETE] = NULL,
        [LINEAGE_MANIFEST_MISSING] = "manifest_missing",
        [LINEAGE_MANIFEST_INVALID] = "manifest_invalid",
        [LINEAGE_NAME_MISMATCH] = "name_mismatch",
        [LINEAGE_CYCLE] = "cycle",
        [LINEAGE_DEPTH_LIMIT] = "depth_limit",
        [LINEAGE_AMBIGUOUS] = "ambiguous",
    };

    return names[b];
}

/* How a place that could not be opened reads in a lineage; -1: the walk itself failed. */
static int break_of_outcome(enum resolve_outcome o)
{
    switch (o) {
    case RESOLVE_OK:
        return LINEAGE_COMPLETE;
    case RESOLVE_NOT_FOUND:
        return LINEAGE_MANIFEST_MISSING;
    case RESOLVE_AMBIGUOUS:
        return LINEAGE_AMBIGUOUS;
    case RESOLVE_FAILED:
        return -1;
    default:
        return LINEAGE_MANIFEST_INVALID;
    }
}

/* Compared before anything else of the manifest: another name is another checkpoint at this place.
 */
static int break_of_fault(enum manifest_fault f)
{
    switch (f) {
    case MANIFEST_OK:
        return LINEAGE_COMPLETE;
    case MANIFEST_MISSING:
        return LINEAGE_MANIFEST_MISSING;
    case MANIFEST_NAME_MISMATCH:
        return LINEAGE_NAME_MISMATCH;
    case MANIFEST_FAILED:
        return -1;
    default:
        return LINEAGE_MANIFEST_INVALID;
    }
}

/* The manifest of the checkpoint `name`; where it does not open at once, the slower way that tells
 * why. */
static int find(const struct roots *r, const struct schema *s, const char *name,
                struct resolved *at, struct manifest *m, struct err *e)
{
    int b, fd = resolve_open_file(r, name, strlen(name), MANIFEST_FILE, at);

    if (fd >= 0) {
        b = break_of_fault(manifest_read_open(fd, s, NULL, m, NULL, e));
        fs_close(fd);
        return b;
    }
    b = break_of_outcome(resolve_name(r, name, strlen(name), at, e));
    return b == LINEAGE_COMPLETE ? break_of_fault(manifest_read(at->dir_fd, s, NULL, m, NULL, e))
                                 : b;
}

/* Opens the checkpoint `name`; its manifest goes to *m, its place to *at (release both). */
static int look(const struct roots *r, const struct schema *s, const char *name,
                struct resolved *at, struct manifest *m, struct err *e)
{
    int b = find(r, s, name, at, m, e);

    if (b == LINEAGE_COMPLETE && strcmp(m->name, name) != 0)
        return LINEAGE_NAME_MISMATCH;
    return b;
}

struct walk {
    const struct roots *roots;
    const struct schema *schema;
    int max_depth;
    int (*on_entry)(void *arg, const struct lineage_entry *entry, struct err *e);
    void *arg;
    struct seen seen;
    bool more; /* the last manifest names a parent, be it an empty text */
};

/* One step: hands out the entry `end->at`, and puts its parent there. LINEAGE_COMPLETE with
 * w->more: go on. */
static int step(struct walk *w, struct lineage_end *end, struct err *e)
{
    struct manifest m = {0};
    struct resolved at = {.dir_fd = -1};
    int b = look(w->roots, w->schema, buf_str(&end->at), &at, &m, e);

    if (b == LINEAGE_COMPLETE) {
        struct lineage_entry entry = {
            .manifest = &m, .path = at.path, .root = roots_path(w->roots, at.root)};

        if (w->on_entry && w->on_entry(w->arg, &entry, e) < 0)
            b = -1;
        end->depth++;
        buf_reset(&end->at);
        w->more = m.parent != NULL;
        if (m.parent)
            buf_add_str(&end->at, m.parent);
        if (end->at.failed)
            b = err_nomem(e);
    }
    manifest_release(&m);
    resolved_release(&at);
    return b;
}

static int walk_on(struct walk *w, struct lineage_end *end, struct err *e)
{
    int b = LINEAGE_COMPLETE;

    do {
        int fresh = seen_add(&w->seen, buf_str(&end->at), e);

        if (fresh <= 0)
            return fresh < 0 ? -1 : LINEAGE_CYCLE;
        if (end->depth >= w->max_depth)
            return LINEAGE_DEPTH_LIMIT;
        b = step(w, end, e);
    } while (b == LINEAGE_COMPLETE && w->more);
    return b;
}

int lineage_walk(const struct roots *r, const struct schema *s, const char *name, int max_depth,
                 int (*on_entry)(void *arg, const struct lineage_entry *entry, struct err *e),
                 void *arg, struct lineage_end *out, struct err *e)
{
    struct walk w = {
        .roots = r, .schema = s, .max_depth = max_depth, .on_entry = on_entry, .arg = arg};
    int b = -1;

    *out = (struct lineage_end){0};
    if (seen_init(&w.seen, SEEN_FIRST, e) < 0)
        return -1;
    buf_add_str(&out->at, name);
    if (out->at.failed)
        err_nomem(e);
    else
        b = walk_on(&w, out, e);
    seen_release(&w.seen);
    if (b < 0) {
        lineage_end_release(out);
        return -1;
    }
    out->reason = (enum lineage_break)b;
    return 0;
}

void lineage_end_release(struct lineage_end *end)
{
    buf_release(&end->at);
    *end = (struct lineage_end){0};
}

/* ---- JSON ---- */

/* "key":, with the comma that belongs before it. The text of a long chain is made of these: no
 * format is read again and again. */
static void write_key(struct buf *b, const char *key)
{
    if (b->data[b->len - 1] != '{')
        buf_add_char(b, ',');
    buf_add_char(b, '"');
    buf_add_str(b, key);
    buf_add_str(b, "\":");
}

static void write_member(struct buf *b, const char *key, const char *value)
{
    write_key(b, key);
    if (value)
        json_write_str(b, value, strlen(value));
    else
        buf_add_str(b, "null");
}

void lineage_write_entry(struct buf *b, const struct lineage_entry *entry)
{
    const struct manifest *m = entry->manifest;

    buf_add_char(b, '{');
    if (b->failed)
        return;
    write_member(b, "name", m->name);
    write_member(b, "run_id", m->run_id);
    write_key(b, "step");
    buf_printf(b, "%" PRId64, m->step);
    write_member(b, "path", entry->path);
    write_member(b, "root", entry->root);
    write_member(b, "manifest_sha256", m->sha256);
    write_member(b, "weights_sha256", m->weights_sha256);
    write_member(b, "parent", m->parent);
    write_member(b, "merged_adapter", NULL);
    buf_add_char(b, '}');
}

void lineage_write_break(struct buf *b, const struct lineage_end *end)
{
    if (end->reason == LINEAGE_COMPLETE) {
        buf_add_str(b, "null");
        return;
    }
    buf_add_char(b, '{');
    if (b->failed)
        return;
    write_member(b, "at", buf_str(&end->at));
    write_member(b, "reason", lineage_break_name(end->reason));
    buf_add_char(b, '}');
}
