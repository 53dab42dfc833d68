/* http/framing.c - which request headers leave no doubt about where a request ends (RFC 9112,
 * sections 5 and 6).
 *
 * The library accepts some of these and picks one meaning; another program on the way may pick the
 * other, and a second request hides between the two. All doubt is refused. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/call.h"

static bool is_token(const char *s)
{
    static const char ok[] = "!#$%&'*+-.^_`|~0123456789"
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

    return *s && s[strspn(s, ok)] == 0;
}

static bool has_control(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7f)
            return true;
    return false;
}

static int count(const struct http_req *req, const char *name)
{
    int n = 0;

    for (int i = 0; i < req->n_headers; i++)
        n += strcasecmp(req->headers[i].name, name) == 0;
    return n;
}

static bool is_length(const char *s)
{
    size_t digits = strspn(s, "0123456789");

    return digits >= 1 && digits <= 18 && s[digits] == 0;
}

static const char *fields_fault(const struct http_req *req)
{
    for (int i = 0; i < req->n_headers; i++) {
        if (!is_token(req->headers[i].name))
            return "A header name holds a character that is not allowed.";
        if (has_control(req->headers[i].value))
            return "A header value holds a control character.";
    }
    return NULL;
}

static const char *length_fault(const struct http_req *req, bool http_1_1)
{
    const char *length = http_req_header(req, "Content-Length");
    const char *coding = http_req_header(req, "Transfer-Encoding");

    if (length && coding)
        return "Content-Length and Transfer-Encoding exclude each other.";
    if (count(req, "Content-Length") > 1 || count(req, "Transfer-Encoding") > 1)
        return "The length of the body is given more than once.";
    if (length && !is_length(length))
        return "Content-Length must be a decimal number of at most 18 digits.";
    if (coding && (!http_1_1 || strcasecmp(coding, "chunked") != 0))
        return "Only Transfer-Encoding: chunked is understood, and only in HTTP/1.1.";
    return NULL;
}

/* The library cuts lines in place: behind a value stand only what ended it and its line. A NUL
 * inside a value, and a folded line, which the library glues to the wrong place, leave something
 * else there. */
static bool only_line_end(const char *from, const char *to)
{
    for (; from < to; from++)
        if (*from && !strchr(" \t\r\n", *from))
            return false;
    return true;
}

void framing_see_line(struct line_order *o, const char *name, const char *value)
{
    enum { GAP_MAX = 256 };

    if (o->end && (name < o->end || name - o->end > GAP_MAX || !only_line_end(o->end, name)))
        o->broken = true;
    o->end = value ? value + strlen(value) : NULL;
}

/* The last line's end and the empty line behind it have become NULs, at least two of them. */
void framing_see_end(struct line_order *o)
{
    if (o->end && o->end[1] != 0)
        o->broken = true;
}

bool framing_line_whole(const char *method, const char *uri, const char *uri_end,
                        const char *version)
{
    return method + strlen(method) + 1 == uri && uri_end + 1 == version &&
           !memchr(uri, ' ', (size_t)(uri_end - uri));
}

const char *framing_fault(const struct http_req *req, const char *version)
{
    bool http_1_1 = strcmp(version, "HTTP/1.1") == 0;
    const char *fault;

    if (!http_1_1 && strcmp(version, "HTTP/1.0") != 0)
        return "Only HTTP/1.1 and HTTP/1.0 are spoken here.";
    if (has_control(req->raw_path) || has_control(req->query) || req->raw_path[0] != '/')
        return "The address must be a path that begins with a slash.";
    if ((fault = fields_fault(req)) || (fault = length_fault(req, http_1_1)))
        return fault;
    if (count(req, "Host") > 1 || (http_1_1 && count(req, "Host") == 0))
        return "HTTP/1.1 needs exactly one Host header.";
    return NULL;
}

bool framing_has_body(const struct http_req *req)
{
    return framing_length(req) > 0 || http_req_header(req, "Transfer-Encoding");
}

int64_t framing_length(const struct http_req *req)
{
    const char *length = http_req_header(req, "Content-Length");

    return length && is_length(length) ? (int64_t)strtoll(length, NULL, 10) : -1;
}
