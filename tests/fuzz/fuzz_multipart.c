/* Foreign bytes as an upload: the first line is the Content-Type, the rest the body.
 *
 * What must hold: no crash; every part lies inside the body, in order and without overlap; names
 * are UTF-8 within their bounds, and a filename is no path. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(c)     \
    do {             \
        if (!(c))    \
            abort(); \
    } while (0)

static void check_part(const struct multipart_part *p, const char *from, const char *end)
{
    CHECK(p->data >= from && p->data <= end && p->len <= (size_t)(end - p->data));
    CHECK(p->name[0] && utf8_valid(p->name, strlen(p->name)));
    CHECK(utf8_valid(p->filename, strlen(p->filename)) && !strpbrk(p->filename, "/\\"));
    CHECK(p->has_filename || !p->filename[0]);
}

static void parse(const char *type, const char *body, size_t len)
{
    struct multipart m;
    struct multipart_part p;
    struct err e = {0};
    const char *from = body;
    int rc = multipart_begin(&m, type, body, len, &e);

    if (rc == 0)
        while ((rc = multipart_next(&m, &p, &e)) > 0) {
            check_part(&p, from, body + len);
            from = p.data + p.len;
        }
    CHECK(rc == 0 || e.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = memchr(data, '\n', size);
    size_t n = line ? (size_t)(line - data) : size;
    char *type = strndup((const char *)data, n);
    size_t left = line ? size - n - 1 : 0;
    char *body = malloc(left ? left : 1); /* its end is where a sanitizer looks */

    if (type && body) {
        if (left)
            memcpy(body, line + 1, left);
        parse(type, body, left);
    }
    free(type);
    free(body);
    return 0;
}
