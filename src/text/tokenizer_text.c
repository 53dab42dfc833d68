#include "text/tokenizer_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/json_scan.h"
#include "text/utf8.h"

/* Where the value of model.`key` lies; NULL when there is none (or the text is no JSON, which the
 * parser of the rest will tell better). */
static const char *find_member(const char *text, size_t len, const char *key, size_t *value_len)
{
    struct json_scan s;
    const char *start;

    json_scan_init(&s, text, len);
    if (json_scan_member(&s, "model") != 1 || json_scan_member(&s, key) != 1)
        return NULL;
    json_scan_peek(&s);
    start = s.p;
    if (json_scan_skip(&s) < 0)
        return NULL;
    *value_len = (size_t)(s.p - start);
    return start;
}

struct cut {
    const char *start;
    size_t len;
    const char *instead;
};

/* The text with both cuts replaced. */
static void append_rest(struct buf *out, const char *text, size_t len, const struct cut cuts[2])
{
    int first = cuts[1].start && (!cuts[0].start || cuts[1].start < cuts[0].start);
    const char *at = text;

    for (int i = 0; i < 2; i++) {
        const struct cut *c = &cuts[first ^ i];

        if (!c->start)
            continue;
        buf_add(out, at, (size_t)(c->start - at));
        buf_add_str(out, c->instead);
        at = c->start + c->len;
    }
    buf_add(out, at, (size_t)(text + len - at));
}

int tokenizer_text_parse(struct tokenizer_text *out, const char *text, size_t len, struct err *e)
{
    size_t good = utf8_check(text, len);
    struct buf rest = {0};

    *out = (struct tokenizer_text){0};
    if (good != len)
        return err_set(e, ERR_FORMAT, "not UTF-8 at byte %zu", good);
    out->vocab = find_member(text, len, "vocab", &out->vocab_len);
    out->merges = find_member(text, len, "merges", &out->merges_len);
    const struct cut cuts[2] = {{out->vocab, out->vocab_len, "{}"},
                                {out->merges, out->merges_len, "[]"}};

    append_rest(&rest, text, len, cuts);
    if (rest.failed)
        err_nomem(e);
    else
        out->rest = json_parse(buf_str(&rest), rest.len, e);
    buf_release(&rest);
    return out->rest ? 0 : -1;
}

void tokenizer_text_release(struct tokenizer_text *t)
{
    json_decref(t->rest);
    *t = (struct tokenizer_text){0};
}

static int read_open(int fd, const char *name, size_t max_bytes, struct buf *out, struct err *e)
{
    size_t before = out->len;
    struct stat st;
    ssize_t n = 0;

    if (fstat(fd, &st) < 0)
        return err_io(e, "stat %s", name);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "%s is not a regular file", name);
    if ((uint64_t)st.st_size > max_bytes)
        return err_set(e, ERR_FORMAT, "%s has %lld bytes, of at most %zu", name,
                       (long long)st.st_size, max_bytes);
    do {
        size_t want = (size_t)st.st_size - (out->len - before);
        char *to = buf_reserve(out, want + 1);

        if (!to)
            return err_nomem(e);
        n = want ? read(fd, to, want) : 0;
        out->len += n > 0 ? (size_t)n : 0;
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0)
        return err_io(e, "read %s", name);
    out->data[out->len] = '\0';
    return 0;
}

int text_read_file(int dir_fd, const char *name, size_t max_bytes, struct buf *out, struct err *e)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;

    if (fd < 0)
        return err_io(e, "open %s", name);
    rc = read_open(fd, name, max_bytes, out, e);
    close(fd);
    return rc;
}
