/* service/batch_results.c - the two files of results of a batch, and their lines. */
#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/ids.h"
#include "base/json.h"
#include "service/batch_impl.h"
#include "service/batch_input.h"

void batch_answer_release(struct batch_answer *a)
{
    json_decref(a->body);
    json_decref(a->headers);
    *a = (struct batch_answer){0};
}

/* ---- lines ---- */

static json_t *response_object(const struct batch_answer *a)
{
    return json_pack("{s:i, s:s, s:O}", "status_code", a->status, "request_id", a->request_id,
                     "body", a->body);
}

/* `line` is consumed; without memory the buffer fails. */
static void add_line(struct buf *out, json_t *line)
{
    char id[sizeof "batch_req_" + ID_DIGITS];
    json_t *whole;

    new_id("batch_req_", id, sizeof id);
    whole = line ? json_pack("{s:s}", "id", id) : NULL;
    if (!whole || json_object_update(whole, line) < 0)
        out->failed = true;
    else
        json_write(out, whole);
    buf_add_char(out, '\n');
    json_decref(whole);
    json_decref(line);
}

void batch_write_answer(struct buf *out, const json_t *id, const struct batch_answer *a)
{
    json_t *response = response_object(a);

    if (response)
        json_object_set_new(response, "millm",
                            json_pack("{s:b, s:O}", "packed", 0, "headers", a->headers));
    add_line(out, json_pack("{s:O, s:o, s:n}", "custom_id", id, "response", response, "error"));
}

void batch_write_error(struct buf *out, const struct batch_line *l, const char *code,
                       const char *message, const struct batch_answer *a)
{
    json_t *id = l->id ? json_incref((json_t *)l->id) : json_null();

    add_line(out, json_pack("{s:o, s:I, s:o, s:{s:s, s:s}}", "custom_id", id, "line",
                            (json_int_t)l->number, "response", a ? response_object(a) : json_null(),
                            "error", "code", code, "message", message));
}

/* ---- files ---- */

int batch_results_open(struct batch_results *x, struct batches *b, const struct batch_row *row,
                       struct err *e)
{
    *x = (struct batch_results){.output = -1, .error = -1};
    x->output = batch_files_partial(b->files, row->output_file_id, row->output_bytes, e);
    if (x->output >= 0)
        x->error = batch_files_partial(b->files, row->error_file_id, row->error_bytes, e);
    if (x->error >= 0)
        return 0;
    batch_results_close(x);
    return -1;
}

static int append(int fd, const struct buf *text, int64_t *at, struct err *e)
{
    if (text->failed)
        return err_nomem(e);
    if (text->len == 0)
        return 0;
    if (fs_write_at(fd, text->data, text->len, *at, e) < 0 ||
        fs_sync(fd, "the results of a batch", e) < 0)
        return -1;
    *at += (int64_t)text->len;
    return 0;
}

int batch_results_add(struct batch_results *x, struct batch_row *row, const struct buf *output,
                      const struct buf *error, struct err *e)
{
    int64_t output_bytes = row->output_bytes;

    if (append(x->output, output, &output_bytes, e) < 0 ||
        append(x->error, error, &row->error_bytes, e) < 0)
        return -1;
    row->output_bytes = output_bytes;
    return 0;
}

void batch_results_close(struct batch_results *x)
{
    fs_close(x->output);
    fs_close(x->error);
    *x = (struct batch_results){.output = -1, .error = -1};
}
