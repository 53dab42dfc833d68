/* service/batch_close.c - how a batch ends: results for the lines that did not run, the files, the
 * last status. All of it can be done again after a crash: what was appended behind the recorded
 * bytes is cut off, and the files' rows appear together with the status. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "service/batch_impl.h"
#include "service/batch_input.h"
#include "service/refusal.h"
#include "service/service.h"

enum { DAY_S = 86400, FLUSH_BYTES = 256 << 10, HASH_BLOCK = 1 << 20 };

/* ---- the input ---- */

static int check_sha256(int fd, const struct file_row *file, struct err *e)
{
    struct sha256 *h = sha256_new();
    struct buf block = {0};
    char hex[SHA256_HEX] = "";
    char *to = buf_reserve(&block, HASH_BLOCK);
    int rc = h && to ? 0 : err_nomem(e);

    for (int64_t at = 0; rc == 0 && at < file->bytes; at += HASH_BLOCK) {
        size_t n = file->bytes - at < HASH_BLOCK ? (size_t)(file->bytes - at) : HASH_BLOCK;

        rc = fs_read_at(fd, to, n, at, e);
        if (rc == 0)
            sha256_update(h, to, n);
    }
    if (rc == 0)
        sha256_hex(h, hex);
    if (rc == 0 && strcmp(hex, file->sha256) != 0)
        rc = err_set(e, ERR_FORMAT, "the input file is not the one that was uploaded");
    sha256_free(h);
    buf_release(&block);
    return rc;
}

int batch_open_input(struct batches *b, const struct batch_row *row, bool check_hash, struct err *e)
{
    struct file_row file;
    struct refusal r = {0};
    int fd;

    if (batch_files_find(b->files, row->input_file_id, "", &file, &r) < 0) {
        bool gone = r.code == REFUSAL_V1_FILE_NOT_FOUND;

        refusal_clear(&r);
        return gone ? err_set(e, ERR_NOT_FOUND, "the input file is gone")
                    : err_set(e, ERR_IO, "the input file could not be looked up");
    }
    fd = batch_files_read(b->files, &file, e);
    if (fd >= 0 && check_hash && check_sha256(fd, &file, e) < 0) {
        fs_close(fd);
        return -1;
    }
    return fd;
}

/* ---- the lines that are left ---- */

static int add_left(struct batches *b, struct batch_row *row, const struct batch_raw *raw,
                    const char *code, const char *message, struct buf *out, struct err *e)
{
    int bad = batch_rows_find_bad(b->s->db, row->seq, raw->line, out, e);
    struct batch_line l;

    if (bad < 0)
        return -1;
    if (bad == 0) {
        batch_line_judge(&l, raw, row->endpoint, NULL);
        batch_write_error(out, &l, code, message, NULL);
        batch_line_release(&l);
    }
    row->failed++;
    row->next_offset = raw->next_offset;
    row->next_line = raw->next_line;
    return 0;
}

static int write_left(struct batches *b, struct batch_row *row, struct batch_results *x, int fd,
                      const char *code, const char *message, struct err *e)
{
    struct batch_reader rd = {0};
    struct batch_raw raw;
    struct buf out = {0};
    const struct buf none = {0};
    int rc = batch_reader_begin(&rd, fd, (size_t)b->s->settings->batch_max_line_bytes,
                                row->next_offset, row->next_line, e);

    while (rc >= 0 && (rc = batch_reader_next(&rd, &raw, e)) > 0) {
        rc = add_left(b, row, &raw, code, message, &out, e);
        if (rc == 0 && out.len > FLUSH_BYTES) {
            rc = batch_results_add(x, row, &none, &out, e);
            buf_reset(&out);
        }
    }
    if (rc >= 0)
        rc = batch_results_add(x, row, &none, &out, e);
    buf_release(&out);
    batch_reader_end(&rd);
    return rc;
}

/* ---- publishing ---- */

static void result_file(struct file_row *file, struct batches *b, const struct batch_row *row,
                        bool is_error)
{
    int64_t now = time(NULL);
    int64_t after = row->output_expires_s ? row->output_expires_s
                                          : (int64_t)b->s->settings->batch_retention_days * DAY_S;

    *file = (struct file_row){.purpose = PURPOSE_BATCH_OUTPUT,
                              .bytes = is_error ? row->error_bytes : row->output_bytes,
                              .created_s = now,
                              .expires_s = now + after};
    memcpy(file->id, is_error ? row->error_file_id : row->output_file_id, sizeof file->id);
    snprintf(file->filename, sizeof file->filename, "%s_%s.jsonl", row->id,
             is_error ? "error" : "output");
}

static int publish(struct batches *b, struct batch_row *row, enum batch_status from,
                   enum batch_status to, struct err *e)
{
    static const enum batch_time times[BATCH_STATUSES] = {
        [BATCH_COMPLETED] = AT_COMPLETED,
        [BATCH_FAILED] = AT_FAILED,
        [BATCH_EXPIRED] = AT_EXPIRED,
        [BATCH_CANCELLED] = AT_CANCELLED,
    };
    const char *const ids[] = {row->output_file_id, row->error_file_id};
    const bool keep[] = {row->output_bytes > 0, row->error_bytes > 0};
    struct file_row files[2];
    int n = 0;

    if (batch_files_publish(b->files, ids, keep, 2, e) < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (keep[i])
            result_file(&files[n++], b, row, i == 1);
    row->status = to;
    row->at[times[to]] = time(NULL);
    if (row->total == 0)
        row->total = row->completed + row->failed;
    return batch_rows_end(b->s->db, row, from, files, n, e);
}

/* Recorded results are not there any more: every line is told so. */
static void forget_results(struct batch_row *row)
{
    row->output_bytes = row->error_bytes = 0;
    row->completed = row->failed = 0;
    row->next_offset = 0;
    row->next_line = 1;
}

static int write_results(struct batches *b, struct batch_row *row, const char *code,
                         const char *message, struct err *e)
{
    struct batch_results x;
    int fd = -1, rc;

    if (code && (fd = batch_open_input(b, row, false, e)) < 0)
        log_ev(LOG_WARNING, "batch_input", "batch=%s cause=\"%s\"", row->id, e->msg);
    rc = batch_results_open(&x, b, row, e);
    if (rc == 0 && fd >= 0)
        rc = write_left(b, row, &x, fd, code, message, e);
    batch_results_close(&x);
    fs_close(fd);
    return rc;
}

int batch_close(struct batches *b, struct batch_row *row, enum batch_status to, const char *code,
                const char *message)
{
    enum batch_status from = row->status;
    struct err e = {0};
    int rc = write_results(b, row, code, message, &e);

    if (rc < 0 && e.code == ERR_FORMAT) {
        log_ev(LOG_ERROR, "batch_results_lost", "batch=%s cause=\"%s\"", row->id, e.msg);
        forget_results(row);
        to = BATCH_FAILED;
        rc = write_results(b, row, "batch_failed", "The results of the batch were lost.", &e);
    }
    if (rc == 0)
        rc = publish(b, row, from, to, &e);
    if (rc < 0) {
        log_ev(LOG_ERROR, "batch_end_failed", "batch=%s cause=\"%s\"", row->id, e.msg);
        return -1;
    }
    log_ev(LOG_INFO, "batch_ended", "batch=%s status=%s completed=%" PRId64 " failed=%" PRId64,
           row->id, batch_status_name(to), row->completed, row->failed);
    batch_forget_note(b, row->id);
    return 0;
}

json_t *batch_error(const char *code, json_t *line, const char *message, const char *param)
{
    return json_pack("{s:s, s:o, s:s, s:s?}", "code", code, "line", line, "message", message,
                     "param", param);
}

int batch_fail_input(struct batches *b, struct batch_row *row, const struct err *e)
{
    const char *code = e->code == ERR_NOT_FOUND ? "input_file_missing" : "input_file_changed";

    return batch_fail(b, row, batch_error(code, json_null(), e->msg, "input_file_id"), NULL);
}

static char *errors_text(json_t *first, json_t *others)
{
    json_t *all = json_array();
    struct buf text = {0};

    if (first)
        json_array_append_new(all, first);
    if (others)
        json_array_extend(all, others);
    json_decref(others);
    if (json_array_size(all))
        json_write(&text, all);
    json_decref(all);
    return text.len ? buf_take(&text) : NULL;
}

int batch_fail(struct batches *b, struct batch_row *row, json_t *first, json_t *others)
{
    free(row->errors);
    row->errors = errors_text(first, others);
    return batch_close(b, row, BATCH_FAILED, "batch_failed",
                       "The batch failed before this row ran; its errors say why.");
}
