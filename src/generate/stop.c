#include "generate/stop.h"

#include <stdint.h>
#include <string.h>

void stop_init(struct stop_search *s, const struct stop_string *strings, int n)
{
    *s = (struct stop_search){.strings = strings, .n = n};
}

/* Where the stop string begins that is complete first; of two that end together, the longer.
 * held.len when there is none. So the cuts between pieces do not matter. */
static size_t find_first(const struct stop_search *s)
{
    size_t at = s->held.len, end = SIZE_MAX;

    for (int i = 0; i < s->n; i++) {
        const char *found =
            memmem(s->held.data, s->held.len, s->strings[i].text, s->strings[i].len);
        size_t start = found ? (size_t)(found - s->held.data) : 0;

        if (!found || start + s->strings[i].len > end)
            continue;
        if (start + s->strings[i].len < end || start < at)
            at = start;
        end = start + s->strings[i].len;
    }
    return at;
}

/* Where the longest end of the held text begins that is the beginning of a stop string. */
static size_t find_beginning(const struct stop_search *s)
{
    size_t longest = 0;

    for (int i = 0; i < s->n; i++) {
        size_t n = s->strings[i].len - 1 < s->held.len ? s->strings[i].len - 1 : s->held.len;

        while (n > longest && memcmp(s->held.data + s->held.len - n, s->strings[i].text, n) != 0)
            n--;
        if (n > longest)
            longest = n;
    }
    return s->held.len - longest;
}

static void let_go(struct stop_search *s, size_t n, struct buf *out)
{
    buf_add(out, s->held.data, n);
    s->held.len -= n;
    memmove(s->held.data, s->held.data + n, s->held.len + 1);
}

bool stop_push(struct stop_search *s, const char *text, size_t len, struct buf *out)
{
    size_t at;

    if (s->found || len == 0)
        return s->found;
    if (s->n == 0) {
        buf_add(out, text, len);
        return false;
    }
    buf_add(&s->held, text, len);
    if (s->held.failed) {
        out->failed = true;
        return false;
    }
    at = find_first(s);
    s->found = at < s->held.len;
    let_go(s, s->found ? at : find_beginning(s), out);
    if (s->found)
        buf_reset(&s->held);
    return s->found;
}

void stop_flush(struct stop_search *s, struct buf *out)
{
    if (!s->found && s->held.len)
        let_go(s, s->held.len, out);
}

void stop_release(struct stop_search *s)
{
    buf_release(&s->held);
}
