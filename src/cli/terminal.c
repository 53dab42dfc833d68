/* Output to a terminal: names come from manifests and answers, and may hold what moves a cursor. */
#include <stdlib.h>

#include "cli/cli.h"

enum { C1_LEAD = 0xc2 }; /* U+0080 to U+009F are this byte and 0x80 to 0x9f */

struct terminal {
    FILE *to;
    bool held; /* a C1_LEAD has come, and what belongs to it not yet */
};

static bool is_control(unsigned char c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
}

static void put(struct terminal *t, unsigned char c)
{
    if (t->held) {
        t->held = false;
        if (c >= 0x80 && c <= 0x9f) {
            fputc('?', t->to);
            return;
        }
        fputc(C1_LEAD, t->to);
    }
    t->held = c == C1_LEAD;
    if (!t->held)
        fputc(is_control(c) ? '?' : c, t->to);
}

static ssize_t write_plain(void *cookie, const char *bytes, size_t n)
{
    struct terminal *t = cookie;

    for (size_t i = 0; i < n; i++)
        put(t, (unsigned char)bytes[i]);
    return fflush(t->to) == 0 ? (ssize_t)n : 0;
}

static int close_plain(void *cookie)
{
    free(cookie);
    return 0;
}

FILE *cli_terminal(FILE *to)
{
    const cookie_io_functions_t io = {.write = write_plain, .close = close_plain};
    struct terminal *t = calloc(1, sizeof *t);
    FILE *plain = t ? fopencookie(t, "w", io) : NULL;

    if (!plain) {
        free(t);
        return to;
    }
    t->to = to;
    setvbuf(plain, NULL, _IOLBF, BUFSIZ);
    return plain;
}
