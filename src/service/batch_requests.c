/* service/batch_requests.c - what requests do with batches: create, look, cancel, lend a lease. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/ids.h"
#include "base/json.h"
#include "base/str.h"
#include "service/batch_impl.h"
#include "service/leases.h"
#include "service/refusal.h"
#include "service/service.h"

enum {
    HOUR_S = 3600,
    EXPIRES_LEAST = 3600,
    EXPIRES_MOST = 2592000,
    METADATA_PAIRS = 16,
    METADATA_KEY_BYTES = 4 * 64, /* 64 and 512 characters, at least */
    METADATA_VALUE_BYTES = 4 * 512,
};

/* ---- a batch as an object ---- */

static json_t *parsed(const char *text)
{
    struct err ignored = {0};
    json_t *v = text ? json_parse(text, strlen(text), &ignored) : NULL;

    return v ? v : json_null();
}

static json_t *errors_object(const char *text)
{
    json_t *list = parsed(text);

    return json_is_array(list) ? json_pack("{s:s, s:o}", "object", "list", "data", list) : list;
}

static json_t *result_id(const struct batch_row *row, const char *id, int64_t bytes)
{
    return row->status >= BATCH_COMPLETED && bytes > 0 ? json_string(id) : json_null();
}

static json_t *time_or_null(int64_t at)
{
    return at ? json_integer(at) : json_null();
}

static json_t *expires_object(const struct batch_row *row)
{
    if (!row->output_expires_s)
        return json_null();
    return json_pack("{s:s, s:I}", "anchor", "created_at", "seconds",
                     (json_int_t)row->output_expires_s);
}

static json_t *extension(struct batches *b, const struct batch_row *row)
{
    const struct batch_note *note;
    const char *waits = NULL, *mode = "own";

    pthread_mutex_lock(&b->lock);
    note = row->status < BATCH_COMPLETED ? batch_note_locked(b, row->id) : NULL;
    if (note) {
        waits = note->waits;
        mode = note->lease[0] ? "caller" : "own";
    }
    pthread_mutex_unlock(&b->lock);
    return json_pack("{s:b, s:s?, s:s, s:b, s:o}", "pack", row->pack, "waiting_reason", waits,
                     "lease_mode", mode, "completion_window_extension", row->window_hours != 24,
                     "output_expires_after", expires_object(row));
}

static json_t *batch_object(struct batches *b, const struct batch_row *row)
{
    static const char *const times[BATCH_TIMES] = {
        [AT_CREATED] = "created_at",     [AT_IN_PROGRESS] = "in_progress_at",
        [AT_EXPIRES] = "expires_at",     [AT_FINALIZING] = "finalizing_at",
        [AT_COMPLETED] = "completed_at", [AT_FAILED] = "failed_at",
        [AT_EXPIRED] = "expired_at",     [AT_CANCELLING] = "cancelling_at",
        [AT_CANCELLED] = "cancelled_at",
    };
    json_t *o = json_pack("{s:s, s:s, s:s, s:s?, s:o, s:s, s:o, s:s, s:o, s:o}", "id", row->id,
                          "object", "batch", "endpoint", row->endpoint, "model", row->model,
                          "errors", errors_object(row->errors), "input_file_id", row->input_file_id,
                          "completion_window", json_sprintf("%dh", row->window_hours), "status",
                          batch_status_name(row->status), "output_file_id",
                          result_id(row, row->output_file_id, row->output_bytes), "error_file_id",
                          result_id(row, row->error_file_id, row->error_bytes));

    for (int i = 0; o && i < BATCH_TIMES; i++)
        json_object_set_new(o, times[i], time_or_null(row->at[i]));
    if (o) {
        json_object_set_new(o, "request_counts",
                            json_pack("{s:I, s:I, s:I}", "total", (json_int_t)row->total,
                                      "completed", (json_int_t)row->completed, "failed",
                                      (json_int_t)row->failed));
        json_object_set_new(o, "metadata", parsed(row->metadata));
        json_object_set_new(o, "millm", extension(b, row));
    }
    return o;
}

/* ---- create: the body ---- */

static int refuse_request(struct refusal *r, const char *param, const char *what)
{
    return refuse_param(r, REFUSAL_V1_INVALID_BATCH_REQUEST, param, "%s %s", param, what);
}

static int read_input(struct batches *b, const json_t *body, struct batch_row *row,
                      struct refusal *r)
{
    const char *id = json_text_or(body, "input_file_id", "");
    struct file_row file;

    if (!*id)
        return refuse_request(r, "input_file_id", "must be the id of an uploaded file.");
    if (batch_files_find_whole(b->files, id, "input_file_id", &file, r) < 0)
        return -1;
    if (file.purpose != PURPOSE_BATCH)
        return refuse_request(r, "input_file_id", "names a file whose purpose is not batch.");
    str_copy(row->input_file_id, sizeof row->input_file_id, id);
    return 0;
}

static int read_endpoint(const json_t *body, struct batch_row *row, struct refusal *r)
{
    static const char *const known[] = {"/v1/chat/completions", "/v1/completions",
                                        "/v1/embeddings"};
    const char *endpoint = json_text_or(body, "endpoint", "");

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], endpoint) == 0) {
            str_copy(row->endpoint, sizeof row->endpoint, endpoint);
            return 0;
        }
    return refuse_request(r, "endpoint",
                          "must be /v1/chat/completions, /v1/completions or /v1/embeddings.");
}

/* ^([1-9][0-9]*)h$ */
static int read_window(const struct settings *set, const json_t *body, struct batch_row *row,
                       struct refusal *r)
{
    const char *window = json_text_or(body, "completion_window", "");
    size_t digits = strspn(window, "0123456789");
    char what[64];

    if (digits >= 1 && digits <= 4 && *window != '0' && strcmp(window + digits, "h") == 0)
        row->window_hours = (int)strtol(window, NULL, 10);
    if (row->window_hours >= 1 && row->window_hours <= set->batch_max_window_h)
        return 0;
    snprintf(what, sizeof what, "must be whole hours from 1h to %dh, like 24h.",
             set->batch_max_window_h);
    return refuse_request(r, "completion_window", what);
}

static int read_expiry(const json_t *body, struct batch_row *row, struct refusal *r)
{
    const json_t *v = json_object_get(body, "output_expires_after");
    int64_t seconds;

    if (!v || json_is_null(v))
        return 0;
    if (strcmp(json_text_or(v, "anchor", ""), "created_at") != 0)
        return refuse_request(r, "output_expires_after.anchor", "must be created_at.");
    if (!json_is_whole(json_object_get(v, "seconds"), &seconds) || seconds < EXPIRES_LEAST ||
        seconds > EXPIRES_MOST)
        return refuse_request(r, "output_expires_after.seconds",
                              "must be a whole number from 3600 to 2592000.");
    row->output_expires_s = seconds;
    return 0;
}

static bool is_metadata(const json_t *v)
{
    const char *key;
    json_t *value;

    if (!json_is_object(v) || json_object_size(v) > METADATA_PAIRS)
        return false;
    json_object_foreach ((json_t *)v, key, value)
        if (!json_is_string(value) || strlen(key) > METADATA_KEY_BYTES ||
            json_string_length(value) > METADATA_VALUE_BYTES)
            return false;
    return true;
}

static int read_metadata(const json_t *body, struct batch_row *row, struct refusal *r)
{
    const json_t *v = json_object_get(body, "metadata");
    struct buf text = {0};

    if (!v || json_is_null(v))
        return 0;
    if (!is_metadata(v))
        return refuse_request(r, "metadata",
                              "must be an object of at most 16 short texts under short names.");
    json_write(&text, v);
    row->metadata = buf_take(&text);
    return row->metadata ? 0 : refuse(r, REFUSAL_V1_SERVER_ERROR, "Out of memory.");
}

static int read_pack(const struct settings *set, const json_t *body, struct batch_row *row,
                     struct refusal *r)
{
    const json_t *v = json_object_get(body, "pack");

    row->pack = v && !json_is_null(v) ? json_is_true(v) : set->batch_pack_default;
    return !v || json_is_null(v) || json_is_boolean(v)
               ? 0
               : refuse_request(r, "pack", "must be true or false.");
}

static int read_body(struct batches *b, const json_t *body, struct batch_row *row,
                     struct refusal *r)
{
    const struct settings *set = b->s->settings;

    if (read_input(b, body, row, r) < 0 || read_endpoint(body, row, r) < 0 ||
        read_window(set, body, row, r) < 0 || read_expiry(body, row, r) < 0)
        return -1;
    return read_metadata(body, row, r) < 0 ? -1 : read_pack(set, body, row, r);
}

/* ---- create ---- */

/* A live lease stands in the way, unless it is presented, or another batch holds it. */
static int check_lease(struct batches *b, const char *lease, struct refusal *r)
{
    const struct lease_ask ask = {
        .id = lease, .for_batch = true, .operation = "batch", .code = REFUSAL_V1_MODEL_LEASED};

    return leases_refuse(b->s->leases, &ask, r);
}

static int refuse_insert(const struct batch_row *row, const struct err *e, struct refusal *r)
{
    if (e->code != ERR_NOT_FOUND)
        return refuse_internal(r, e);
    return refuse_param(r, REFUSAL_V1_FILE_DELETED, "input_file_id", "The file '%s' was deleted.",
                        row->input_file_id);
}

static int insert(struct batches *b, struct batch_row *row, const char *lease, struct refusal *r)
{
    struct err e = {0};

    new_id("batch_", row->id, sizeof row->id);
    batch_files_new_id(row->output_file_id);
    batch_files_new_id(row->error_file_id);
    memcpy(row->boot, b->s->boot_id, sizeof row->boot);
    row->at[AT_CREATED] = time(NULL);
    row->at[AT_EXPIRES] = row->at[AT_CREATED] + (int64_t)row->window_hours * HOUR_S;
    if (lease)
        batch_lease_lend(b, row->id, lease);
    if (batch_rows_insert(b->s->db, row, &e) < 0) {
        batch_forget_note(b, row->id);
        return refuse_insert(row, &e, r);
    }
    return 0;
}

int batches_create(struct service *s, const json_t *body, const char *lease, json_t **data,
                   struct refusal *r)
{
    struct batches *b = s->batches;
    struct batch_row row = {.status = BATCH_VALIDATING};
    int rc = -1;

    if (read_body(b, body, &row, r) == 0 && check_lease(b, lease, r) == 0 &&
        insert(b, &row, lease, r) == 0) {
        *data = batch_object(b, &row);
        batch_poke(b);
        rc = 0;
    }
    batch_row_release(&row);
    return rc;
}

/* ---- look ---- */

static int find(struct batches *b, const char *id, struct batch_row *row, struct refusal *r)
{
    struct err e = {.code = ERR_NOT_FOUND};

    *row = (struct batch_row){0};
    if (is_id("batch_", id) && batch_rows_get(b->s->db, id, row, &e) == 0)
        return 0;
    if (e.code != ERR_NOT_FOUND)
        return refuse_internal(r, &e);
    return refuse_param(r, REFUSAL_V1_BATCH_NOT_FOUND, "batch_id",
                        "The batch '%.64s' does not exist.", id);
}

int batches_get(struct service *s, const char *id, json_t **data, struct refusal *r)
{
    struct batch_row row;

    if (find(s->batches, id, &row, r) < 0)
        return -1;
    *data = batch_object(s->batches, &row);
    batch_row_release(&row);
    return 0;
}

int batches_list(struct service *s, const char *after, int limit, json_t **data, bool *more,
                 struct refusal *r)
{
    struct batch_row from = {0}, *rows;
    struct err e = {0};
    int n;

    if (after && find(s->batches, after, &from, r) < 0)
        return r->code != REFUSAL_V1_BATCH_NOT_FOUND
                   ? -1
                   : refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "after",
                                  "after must be the id of a batch.");
    if (batch_rows_page(s->db, from.seq, limit + 1, &rows, &n, &e) < 0) {
        batch_row_release(&from);
        return refuse_internal(r, &e);
    }
    *more = n > limit;
    *data = json_array();
    for (int i = 0; i < n && i < limit; i++)
        json_array_append_new(*data, batch_object(s->batches, &rows[i]));
    batch_rows_release(rows, n);
    batch_row_release(&from);
    return 0;
}

/* ---- change ---- */

static int refuse_ended(const struct batch_row *row, struct refusal *r)
{
    return refuse_param(r, REFUSAL_V1_BATCH_STATE_CONFLICT, "batch_id", "The batch '%s' is %s.",
                        row->id, batch_status_name(row->status));
}

static void interrupt(struct batches *b, const char *id)
{
    pthread_mutex_lock(&b->lock);
    if (strcmp(b->running, id) == 0)
        b->interrupt = true;
    b->poked = true;
    pthread_cond_broadcast(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

int batches_cancel(struct service *s, const char *id, json_t **data, struct refusal *r)
{
    struct batch_row row, found;
    struct err e = {0};
    int64_t now = time(NULL);
    int rc;

    if (find(s->batches, id, &row, r) < 0)
        return -1;
    rc = batch_rows_cancel(s->db, id, now, &e);
    if (rc < 0) {
        batch_row_release(&row);
        return refuse_internal(r, &e);
    }
    if (rc > 0)
        interrupt(s->batches, id);
    if (find(s->batches, id, &found, r) == 0) {
        batch_row_release(&row);
        row = found;
    } else if (rc > 0) { /* done all the same: it is told without looking */
        refusal_clear(r);
        row.status = BATCH_CANCELLING;
        row.at[AT_CANCELLING] = now;
    } else {
        batch_row_release(&row);
        return -1;
    }
    if (rc > 0 || row.status == BATCH_CANCELLING) {
        *data = batch_object(s->batches, &row);
        rc = 0;
    } else {
        rc = refuse_ended(&row, r);
    }
    batch_row_release(&row);
    return rc;
}

int batches_lend(struct service *s, const char *id, const char *lease, json_t **data,
                 struct refusal *r)
{
    struct batch_row row;
    int rc;

    if (find(s->batches, id, &row, r) < 0)
        return -1;
    if (row.status >= BATCH_COMPLETED)
        rc = refuse_ended(&row, r);
    else if (!lease || !*lease)
        rc = refuse_param(r, REFUSAL_V1_INVALID_LEASE_REQUEST, "X-miLLM-Lease",
                          "X-miLLM-Lease must hold the lease's id.");
    else if (!batch_lease_lend(s->batches, id, lease))
        rc = refuse_param(r, REFUSAL_V1_LEASE_NOT_FOUND, "X-miLLM-Lease",
                          "Unknown lease; it has ended, or a restart ended it.");
    else
        rc = 0;
    if (rc == 0) {
        *data = batch_object(s->batches, &row);
        batch_poke(s->batches);
    }
    batch_row_release(&row);
    return rc;
}
