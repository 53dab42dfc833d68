/* http/own_pages.c - what the library answers itself, said in our form.
 *
 * A request that the library cannot read it answers with a page in HTML, through its own public
 * MHD_queue_response. Symbols of a program win over those of its libraries, so the function below
 * is what the library then calls. Our own answers go to the library's function directly: whoever
 * comes here is the library. The refusal is written to the socket in the form of the route's face,
 * and nothing can be sent after it. The library still queues its page: some of its parsers go on
 * after an error, in memory that a closed connection has given back. It gives up when it sends.
 * docs/decisions/0019-own-error-pages.md tells what else there is. */
#include <dlfcn.h>
#include <stdio.h>

#include "http/call.h"

queue_response_fn *own_pages_library(void)
{
    return (queue_response_fn *)dlsym(RTLD_NEXT, "MHD_queue_response");
}

/* The library's statuses, and what they mean by how far the request was read. */
struct page {
    unsigned status;
    enum http_refusal kind;
    const char *in_head, *in_body;
};
static const struct page pages[] = {
    {MHD_HTTP_URI_TOO_LONG, HTTP_LONG_ADDRESS, "The request line is too long", NULL},
    {MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, HTTP_LONG_HEADER,
     "The header is too large, or has too many parts", "The trailer of the body is too large"},
    {MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED, HTTP_BAD_VERSION,
     "Only HTTP/1.1 and HTTP/1.0 are spoken here.", NULL},
    {MHD_HTTP_CONTENT_TOO_LARGE, HTTP_BAD_REQUEST,
     "Content-Length must be a decimal number of at most 18 digits.",
     "A chunk of the body has a size of more than 64 bits."},
    {0, HTTP_BAD_REQUEST, "The request line, a header line or a length is malformed.",
     "The chunks of the body are malformed, or one of their lines is too long."},
};

static const struct page *find_page(unsigned status)
{
    const struct page *p = pages;

    while (p->status && p->status != status)
        p++;
    return p;
}

static void refuse(struct http_call *call, unsigned status)
{
    const struct page *p = find_page(status);
    const char *text = call->phase == CALL_READING && p->in_body ? p->in_body : p->in_head;
    char message[160];

    if (p->kind == HTTP_LONG_ADDRESS || p->kind == HTTP_LONG_HEADER)
        snprintf(message, sizeof message, "%s: at most %zu bytes are read.", text,
                 call->srv->c.max_header_bytes);
    else
        snprintf(message, sizeof message, "%s", text);
    if (call->phase == CALL_NEW)
        call_identify(call);
    refuse_midway(call, p->kind, 0, message);
    call->phase = CALL_SENT;
}

/* The request line itself could not be read: there is no call yet, and no path. */
static void refuse_unread(struct conn *conn, struct MHD_Connection *c, unsigned status)
{
    struct http_call *call = call_new(conn_server(conn), "");

    if (!call)
        return;
    call->mhd = c;
    refuse(call, status);
    call_unref(call);
}

__attribute__((visibility("default"))) enum MHD_Result
MHD_queue_response(struct MHD_Connection *c, unsigned int status, struct MHD_Response *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *conn = info ? info->socket_context : NULL;
    struct http_call *call = conn ? conn_reading(conn) : NULL;
    queue_response_fn *library = conn ? conn_server(conn)->queue_response : own_pages_library();
    enum MHD_Result rc = library ? library(c, status, r) : MHD_NO;

    if (call && call->phase < CALL_COMPLETE)
        refuse(call, status);
    else if (conn && !call)
        refuse_unread(conn, c, status);
    return rc;
}
