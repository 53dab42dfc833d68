#include "text/piece_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/bpe.h"
#include "text/hash.h"
#include "text/json_scan.h"
#include "text/vocab.h"

static const char *spelling(const struct piece_table *t, const struct piece_entry *p)
{
    return buf_str(&t->text) + p->start;
}

/* The slot that holds the spelling's entry, or the empty one where it would be. */
static uint32_t *slot_of(const struct piece_table *t, const char *text, size_t len)
{
    size_t at = (size_t)hash_bytes(text, len) & t->mask;

    for (; t->slots[at]; at = (at + 1) & t->mask) {
        const struct piece_entry *p = &t->entries[t->slots[at] - 1];

        if (p->len == len && memcmp(spelling(t, p), text, len) == 0)
            break;
    }
    return &t->slots[at];
}

int32_t piece_table_find(const struct piece_table *t, const char *text, size_t len)
{
    uint32_t slot = t->slots ? *slot_of(t, text, len) : 0;

    return slot ? t->entries[slot - 1].id : -1;
}

static int append(struct piece_table *t, const struct buf *text, int64_t id, struct err *e)
{
    if (id < 0 || id > VOCAB_MAX_ID)
        return err_set(e, ERR_FORMAT, "model.vocab: the id %" PRId64 " is not in [0, %d]", id,
                       VOCAB_MAX_ID);
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 1024;
        struct piece_entry *grown = reallocarray(t->entries, cap, sizeof *grown);

        if (!grown)
            return err_nomem(e);
        t->entries = grown;
        t->cap = cap;
    }
    t->entries[t->n++] = (struct piece_entry){t->text.len, (uint32_t)text->len, (int32_t)id};
    buf_add(&t->text, buf_str(text), text->len);
    if (t->max_id < id)
        t->max_id = (int32_t)id;
    return t->text.failed || text->failed ? err_nomem(e) : 0;
}

static int read_entries(struct piece_table *t, struct json_scan *s, struct err *e)
{
    static const char what[] = "model.vocab";
    struct buf text = {0};
    int64_t id;
    int more = json_scan_take(s, '{');

    if (more == 0 && json_scan_peek(s) != '}')
        more = 1;
    while (more > 0) {
        if (json_scan_string(s, &text) < 0 || json_scan_take(s, ':') < 0) {
            more = json_scan_fail(s, what, e);
        } else if (json_scan_int(s, &id) < 0) {
            more = err_set(e, ERR_FORMAT, "model.vocab: the id of \"%.40s\" is not a whole number",
                           buf_str(&text));
        } else if (append(t, &text, id, e) < 0) {
            more = -1;
        } else {
            more = json_scan_next(s, '}');
            if (more < 0)
                json_scan_fail(s, what, e);
        }
    }
    buf_release(&text);
    return more;
}

static int index_entries(struct piece_table *t, struct err *e)
{
    size_t n = 16;

    while (n < t->n * 2)
        n *= 2;
    t->slots = calloc(n, sizeof *t->slots);
    if (!t->slots)
        return err_nomem(e);
    t->mask = n - 1;
    for (size_t i = 0; i < t->n; i++) {
        const struct piece_entry *p = &t->entries[i];
        uint32_t *slot = slot_of(t, spelling(t, p), p->len);

        if (*slot)
            return err_set(e, ERR_FORMAT, "model.vocab has \"%.*s\" twice",
                           (int)(p->len < 40 ? p->len : 40), spelling(t, p));
        *slot = (uint32_t)i + 1;
    }
    return 0;
}

int piece_table_read(struct piece_table *t, const char *json, size_t len, struct err *e)
{
    struct json_scan s;

    *t = (struct piece_table){.max_id = -1};
    json_scan_init(&s, json, len);
    if (json_scan_peek(&s) != '{')
        return err_set(e, ERR_FORMAT, "model.vocab is not an object of pieces");
    if (read_entries(t, &s, e) < 0)
        return -1;
    if (s.p != s.end)
        return json_scan_fail(&s, "model.vocab", e);
    if (t->n == 0)
        return err_set(e, ERR_FORMAT, "model.vocab has no pieces");
    return index_entries(t, e);
}

void piece_table_release(struct piece_table *t)
{
    buf_release(&t->text);
    free(t->entries);
    free(t->slots);
    *t = (struct piece_table){0};
}

/* ---- merges ---- */

struct merge_text {
    struct buf left, right; /* right is used by the list form only */
};

/* "a b": the parts lie in m->left, cut at the first space. */
static int split_merge(const struct merge_text *m, const char **left, size_t *left_len,
                       const char **right, size_t *right_len)
{
    const char *text = buf_str(&m->left), *space = memchr(text, ' ', m->left.len);

    if (!space)
        return -1;
    *left = text;
    *left_len = (size_t)(space - text);
    *right = space + 1;
    *right_len = m->left.len - *left_len - 1;
    return 0;
}

static int read_pair(struct json_scan *s, struct merge_text *m)
{
    if (json_scan_take(s, '[') < 0 || json_scan_string(s, &m->left) < 0 ||
        json_scan_take(s, ',') < 0 || json_scan_string(s, &m->right) < 0 ||
        json_scan_take(s, ']') < 0)
        return -1;
    return 0;
}

static int read_merge(struct bpe *b, const struct piece_table *t, struct json_scan *s,
                      struct merge_text *m, size_t rank, struct err *e)
{
    const char *left, *right;
    size_t left_len, right_len;
    int32_t l, r, id;

    if (json_scan_peek(s) == '[') {
        if (read_pair(s, m) < 0)
            return err_set(e, ERR_FORMAT, "model.merges[%zu] is not a pair of strings", rank);
        left_len = m->left.len;
        right_len = m->right.len;
        buf_add(&m->left, buf_str(&m->right), right_len);
        left = buf_str(&m->left);
        right = left + left_len;
        id = piece_table_find(t, left, m->left.len);
    } else {
        if (json_scan_string(s, &m->left) < 0 ||
            split_merge(m, &left, &left_len, &right, &right_len) < 0)
            return err_set(e, ERR_FORMAT, "model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]",
                           rank);
        buf_reset(&m->right);
        buf_add(&m->right, left, left_len);
        buf_add(&m->right, right, right_len);
        id = piece_table_find(t, buf_str(&m->right), m->right.len);
    }
    if (m->left.failed || m->right.failed)
        return err_nomem(e);
    l = piece_table_find(t, left, left_len);
    r = piece_table_find(t, right, right_len);
    if (l < 0 || r < 0 || id < 0)
        return err_set(e, ERR_FORMAT, "model.merges[%zu] names a piece that model.vocab lacks",
                       rank);
    bpe_add(b, l, r, id);
    return 0;
}

/* How many elements the list has, so that the table of merges is made once. */
static int count_elements(struct json_scan s, size_t *n)
{
    int more = json_scan_take(&s, '[');

    *n = 0;
    if (more == 0 && json_scan_peek(&s) != ']')
        more = 1;
    for (; more > 0; ++*n)
        more = json_scan_skip(&s) < 0 ? -1 : json_scan_next(&s, ']');
    return more;
}

int merges_read(struct bpe *b, const struct piece_table *t, const char *json, size_t len,
                struct err *e)
{
    struct merge_text m = {0};
    struct json_scan s;
    size_t n, rank = 0;
    int more = 0;

    json_scan_init(&s, json, len);
    if (json_scan_peek(&s) != '[')
        return err_set(e, ERR_FORMAT, "model.merges is not a list");
    if (count_elements(s, &n) < 0)
        return json_scan_fail(&s, "model.merges", e);
    if (bpe_init(b, n, e) < 0)
        return -1;
    json_scan_take(&s, '[');
    for (; rank < n && more >= 0; rank++) {
        more = read_merge(b, t, &s, &m, rank, e);
        if (more == 0 && (more = json_scan_next(&s, ']')) < 0)
            json_scan_fail(&s, "model.merges", e);
    }
    if (n == 0)
        json_scan_take(&s, ']');
    if (more >= 0 && s.p != s.end)
        more = json_scan_fail(&s, "model.merges", e);
    buf_release(&m.left);
    buf_release(&m.right);
    return more < 0 ? -1 : 0;
}
