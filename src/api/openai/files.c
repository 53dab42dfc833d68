/* api/openai/files.c
 * POST   /v1/files               multipart: file, purpose=batch, expires_after[anchor],
 *                                expires_after[seconds]; 200 file
 * GET    /v1/files               ?purpose&limit&after&order; 200 a page of files
 * GET    /v1/files/{id}          200 file
 * GET    /v1/files/{id}/content  200 the bytes, application/jsonl
 * DELETE /v1/files/{id}          200 {"id", "object": "file", "deleted": true}
 * Refusals: docs/api/batches.md. What a file is: service/batch_files.h. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/envelope.h"
#include "api/openai/errors.h"
#include "api/openai/pages.h"
#include "api/openai/routes.h"
#include "base/err.h"
#include "base/str.h"
#include "http/multipart.h"
#include "http/request.h"
#include "http/response.h"
#include "service/batch_files.h"
#include "service/batches.h"
#include "service/identity.h"
#include "service/refusal.h"
#include "service/service.h"

enum { PAGE_MOST = 10000, PAGE_DEFAULT = 100, EXPIRES_LEAST = 3600, EXPIRES_MOST = 2592000 };

static struct batch_files *files_of(const struct api_call *call)
{
    return batches_files(call->api->service->batches);
}

static json_t *file_object(const struct file_row *row)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:n}", "id", row->id, "object",
                     "file", "bytes", (json_int_t)row->bytes, "created_at",
                     (json_int_t)row->created_s, "expires_at", (json_int_t)row->expires_s,
                     "filename", row->filename, "purpose", file_purpose_name(row->purpose),
                     "status", file_status_name(row->status), "status_details");
}

/* ---- upload ---- */

struct upload {
    struct multipart_part file;
    bool has_file, has_purpose, has_anchor, has_seconds;
    char purpose[32], anchor[32], seconds[32];
};

static int refuse_part(struct refusal *r, const char *param, const char *what)
{
    return refuse_param(r, REFUSAL_V1_INVALID_BATCH_REQUEST, param, "%s %s", param, what);
}

static void take_text(const struct multipart_part *p, char to[32])
{
    size_t n = p->len < 31 ? p->len : 31;

    memcpy(to, p->data, n);
    to[n] = '\0';
}

static int take_part(struct upload *u, const struct multipart_part *p, struct refusal *r)
{
    const struct {
        const char *name;
        bool *has;
        char *text; /* NULL: the file */
    } known[] = {{"file", &u->has_file, NULL},
                 {"purpose", &u->has_purpose, u->purpose},
                 {"expires_after[anchor]", &u->has_anchor, u->anchor},
                 {"expires_after[seconds]", &u->has_seconds, u->seconds}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(p->name, known[i].name) != 0)
            continue;
        if (*known[i].has)
            return refuse_part(r, p->name, "is given twice.");
        *known[i].has = true;
        if (known[i].text)
            take_text(p, known[i].text);
        else
            u->file = *p;
        return 0;
    }
    return refuse_part(r, p->name, "is no part of an upload that this server knows.");
}

static int read_parts(const struct http_req *req, struct upload *u, struct refusal *r)
{
    struct multipart m;
    struct multipart_part p;
    struct err e = {0};
    int rc =
        multipart_begin(&m, http_req_header(req, "Content-Type"), req->body, req->body_len, &e);

    while (rc == 0 && (rc = multipart_next(&m, &p, &e)) > 0)
        if ((rc = take_part(u, &p, r)) < 0)
            return -1;
    return rc < 0 ? refuse_param(r, REFUSAL_V1_INVALID_BATCH_REQUEST, "file",
                                 "The upload cannot be read: %s.", e.msg)
                  : 0;
}

static int read_expiry(const struct upload *u, int64_t *seconds, struct refusal *r)
{
    char *end;

    *seconds = 0;
    if (!u->anchor[0] && !u->seconds[0])
        return 0;
    if (strcmp(u->anchor, "created_at") != 0)
        return refuse_part(r, "expires_after[anchor]", "must be created_at.");
    *seconds = strtoll(u->seconds, &end, 10);
    if (*end || *seconds < EXPIRES_LEAST || *seconds > EXPIRES_MOST)
        return refuse_part(r, "expires_after[seconds]",
                           "must be a whole number from 3600 to 2592000.");
    return 0;
}

static int store(struct api_call *call, struct file_row *row, struct refusal *r)
{
    struct upload u = {0};
    int64_t seconds;

    if (identity_refuse_torn(call->api->service, r) < 0 || read_parts(call->req, &u, r) < 0)
        return -1;
    if (!u.has_file)
        return refuse_part(r, "file", "is missing.");
    if (!u.has_purpose || strcmp(u.purpose, "batch") != 0)
        return refuse_part(r, "purpose", "must be batch.");
    if (read_expiry(&u, &seconds, r) < 0)
        return -1;
    return batch_files_add(files_of(call), u.file.filename, u.file.data, u.file.len, seconds, row,
                           r);
}

void openai_upload_file(struct api_call *call)
{
    struct file_row row = {0};
    struct refusal r = {0};
    int rc = store(call, &row, &r);

    openai_end(call, rc, rc == 0 ? file_object(&row) : NULL, &r);
}

/* ---- look ---- */

static int find(struct api_call *call, struct file_row *row, struct refusal *r)
{
    if (identity_refuse_torn(call->api->service, r) < 0)
        return -1;
    return batch_files_find(files_of(call), call->key, "file_id", row, r);
}

void openai_get_file(struct api_call *call)
{
    struct file_row row = {0};
    struct refusal r = {0};
    int rc = find(call, &row, &r);

    openai_end(call, rc, rc == 0 ? file_object(&row) : NULL, &r);
}

static int read_order(const char *order, bool *ascending, struct refusal *r)
{
    *ascending = order && strcmp(order, "asc") == 0;
    if (!order || *ascending || strcmp(order, "desc") == 0)
        return 0;
    return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "order", "order must be asc or desc.");
}

static int list(struct api_call *call, struct file_query *q, const char *order, json_t **data,
                bool *more, struct refusal *r)
{
    struct file_row *rows;
    int n;

    if (identity_refuse_torn(call->api->service, r) < 0 ||
        page_limit(call, PAGE_MOST, PAGE_DEFAULT, &q->limit, r) < 0 ||
        read_order(order, &q->ascending, r) < 0 ||
        batch_files_list(files_of(call), q, &rows, &n, more, r) < 0)
        return -1;
    *data = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(*data, file_object(&rows[i]));
    free(rows);
    return 0;
}

void openai_list_files(struct api_call *call)
{
    char *purpose = http_req_query(call->req, "purpose"), *order;
    char *after = http_req_query(call->req, "after");
    struct file_query q = {.purpose = purpose, .after = after};
    struct refusal r = {0};
    json_t *data = NULL;
    bool more;

    order = http_req_query(call->req, "order");
    if (list(call, &q, order, &data, &more, &r) < 0)
        openai_fail(call, &r);
    else
        page_answer(call, data, more);
    refusal_clear(&r);
    free(purpose);
    free(after);
    free(order);
}

static int open_content(struct api_call *call, struct file_row *row, int *fd, struct refusal *r)
{
    struct err e = {0};

    if (identity_refuse_torn(call->api->service, r) < 0 ||
        batch_files_find_whole(files_of(call), call->key, "file_id", row, r) < 0)
        return -1;
    *fd = batch_files_read(files_of(call), row, &e);
    return *fd < 0 ? refuse_internal(r, &e) : 0;
}

void openai_file_content(struct api_call *call)
{
    struct file_row row = {0};
    struct refusal r = {0};
    int fd;

    if (open_content(call, &row, &fd, &r) < 0)
        openai_fail(call, &r);
    else
        http_resp_file(call->resp, "application/jsonl", fd, (size_t)row.bytes);
    refusal_clear(&r);
}

/* ---- delete ---- */

void openai_delete_file(struct api_call *call)
{
    struct refusal r = {0};
    int rc = identity_refuse_torn(call->api->service, &r);

    if (rc == 0)
        rc = batch_files_delete(files_of(call), call->key, &r);
    openai_end(call, rc,
               rc == 0
                   ? json_pack("{s:s, s:s, s:b}", "id", call->key, "object", "file", "deleted", 1)
                   : NULL,
               &r);
}
