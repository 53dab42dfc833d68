/* service/batch_validate.c - all lines of a batch are judged before any runs. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/served.h"
#include "service/batch_impl.h"
#include "service/batch_input.h"
#include "service/identity.h"
#include "service/leases.h"
#include "service/refusal.h"
#include "service/service.h"
#include "service/state.h"

enum { BAD_AT_ONCE = 64, LOOK_EVERY = 64 };

struct validation {
    struct batches *b;
    struct batch_row *row;
    json_t *seen;   /* object: custom ids */
    json_t *errors; /* array of {code, line, message, param} */
    struct bad_line bad[BAD_AT_ONCE];
    int n_bad;
    int64_t total, valid;
    char *model; /* of the first valid line; owned */
    bool several_models;
    const char *waits; /* it cannot be decided now, and why */
};

/* ---- what is wrong with a line ---- */

static int flush(struct validation *v, struct err *e)
{
    int rc = batch_rows_add_bad(v->b->s->db, v->row->seq, v->bad, v->n_bad, e);

    while (v->n_bad > 0)
        free(v->bad[--v->n_bad].text);
    return rc;
}

static int add_bad(struct validation *v, const struct batch_line *l, const char *code,
                   const char *message, const char *param, const struct batch_answer *a,
                   struct err *e)
{
    struct buf text = {0};

    batch_write_error(&text, l, code, message, a);
    if (json_array_size(v->errors) < (size_t)v->b->s->settings->batch_errors_shown)
        json_array_append_new(v->errors,
                              batch_error(code, json_integer(l->number), message, param));
    v->bad[v->n_bad] = (struct bad_line){.line = l->number, .text = buf_take(&text)};
    if (!v->bad[v->n_bad].text)
        return err_nomem(e);
    return ++v->n_bad == BAD_AT_ONCE ? flush(v, e) : 0;
}

/* A line that is refused like a request has the answer of one. */
static int add_unstreamed(struct validation *v, const struct batch_line *l, struct err *e)
{
    struct batch_answer a = {.status = 400};
    int rc;

    a.body = json_pack("{s:{s:s, s:s, s:s, s:s}}", "error", "message", l->message, "type",
                       "invalid_request_error", "param", l->param, "code", l->code);
    rc = add_bad(v, l, l->code, l->message, l->param, &a, e);
    batch_answer_release(&a);
    return rc;
}

static int add_refused(struct validation *v, const struct batch_line *l,
                       const struct batch_answer *a, struct err *e)
{
    const json_t *error = json_object_get(a->body, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    const char *message = json_string_value(json_object_get(error, "message"));
    const char *param = json_string_value(json_object_get(error, "param"));

    if (!code || strcmp(code, "invalid_parameter") == 0)
        code = "invalid_request";
    return add_bad(v, l, code, message ? message : "", param, a, e);
}

/* ---- one line ---- */

static void note_model(struct validation *v, const struct batch_line *l)
{
    const char *model = json_string_value(json_object_get(l->body, "model"));

    v->valid++;
    if (!v->model)
        v->model = strdup(model ? model : "");
    else if (!model || strcmp(v->model, model) != 0)
        v->several_models = true;
}

/* The endpoint itself says whether it would take the body. */
static int check_body(struct validation *v, const struct batch_line *l, struct err *e)
{
    struct batch_call call = {.endpoint = v->row->endpoint, .check_only = true};
    struct batch_answer a = {0};
    struct buf text = {0};
    int rc = 0;

    json_write(&text, l->body);
    call.body = buf_str(&text);
    call.body_len = text.len;
    if (!text.failed)
        v->b->row_fn(v->b->row_arg, &call, &a);
    if (a.status == 0)
        rc = err_nomem(e);
    else if (a.status == 503)
        v->waits = "weights_torn";
    else if (a.status == 200)
        note_model(v, l);
    else
        rc = add_refused(v, l, &a, e);
    batch_answer_release(&a);
    buf_release(&text);
    return rc;
}

static int validate_line(struct validation *v, const struct batch_raw *raw, struct err *e)
{
    struct batch_line l;
    int rc;

    v->total++;
    batch_line_judge(&l, raw, v->row->endpoint, v->seen);
    if (!l.code)
        rc = check_body(v, &l, e);
    else if (strcmp(l.code, "stream_not_supported") == 0)
        rc = add_unstreamed(v, &l, e);
    else
        rc = add_bad(v, &l, l.code, l.message, l.param, NULL, e);
    batch_line_release(&l);
    return rc;
}

static int validate_lines(struct validation *v, int fd, struct err *e)
{
    struct batch_reader rd = {0};
    struct batch_raw raw;
    int rc = batch_reader_begin(&rd, fd, (size_t)v->b->s->settings->batch_max_line_bytes, 0, 1, e);

    if (rc == 0)
        rc = batch_rows_forget_bad(v->b->s->db, v->row->seq, e);
    while (rc >= 0 && !v->waits && (rc = batch_reader_next(&rd, &raw, e)) > 0) {
        rc = validate_line(v, &raw, e);
        if (v->total % LOOK_EVERY == 0 && batch_stopping(v->b))
            v->waits = "queued";
    }
    if (rc >= 0)
        rc = flush(v, e);
    batch_reader_end(&rd);
    return rc;
}

/* ---- a model that is not there ---- */

/* A batch that was accepted before this start had its model then; a server that has just begun has
 * none. So it waits for it like a batch whose rows run, instead of failing. */
static bool is_older(const struct validation *v)
{
    return strcmp(v->row->boot, v->b->s->boot_id) != 0;
}

static uint64_t loads(struct batches *b)
{
    struct weights_state w;

    state_read(b->s, &w, NULL);
    return w.load_counter + 1;
}

/* Nothing was loaded since its model was missed: there is nothing new to look at. */
static bool still_missed(struct batches *b, const char *id)
{
    uint64_t now = loads(b);
    const struct batch_note *note;
    bool same;

    pthread_mutex_lock(&b->lock);
    note = batch_note_locked(b, id);
    same = note && note->missed == now;
    pthread_mutex_unlock(&b->lock);
    return same;
}

static void note_missed(struct batches *b, const char *id, uint64_t at)
{
    struct batch_note *note;

    pthread_mutex_lock(&b->lock);
    note = batch_note_locked(b, id);
    if (note)
        note->missed = at;
    pthread_mutex_unlock(&b->lock);
}

/* ---- the verdict ---- */

static int fail(struct validation *v, const char *code, const char *message, const char *param)
{
    json_t *others = v->errors;

    v->errors = NULL;
    v->row->total = v->total;
    return batch_fail(v->b, v->row, batch_error(code, json_null(), message, param), others);
}

static int fail_no_line(struct validation *v)
{
    json_t *errors = v->errors;

    if (v->total == 0)
        return fail(v, "empty_file", "The input file holds no line.", "input_file_id");
    v->errors = NULL;
    v->row->total = v->total;
    return batch_fail(v->b, v->row, NULL, errors);
}

/* Another's lease stands against the batch; those of batches do not. */
static bool leased_away(struct batches *b, const char *id)
{
    struct lease_ask ask = {
        .for_batch = true, .operation = "batch", .code = REFUSAL_V1_MODEL_LEASED};
    struct batch_note *note, lent = {0};
    struct refusal r = {0};
    bool away;

    pthread_mutex_lock(&b->lock);
    note = batch_note_locked(b, id);
    if (note)
        lent = *note;
    pthread_mutex_unlock(&b->lock);
    ask.id = lent.lease[0] ? lent.lease : NULL;
    away = leases_refuse(b->s->leases, &ask, &r) < 0;
    refusal_clear(&r);
    return away;
}

/* Binds the batch to the weights that its model's name means now. */
static int bind(struct validation *v, struct refusal *r)
{
    struct identity_match match;
    struct identity_pin pin;

    if (identity_find(v->b->s, v->model, &match, r) < 0)
        return -1;
    match.lease = NULL;
    if (identity_take(v->b->s, &match, LOAD_POLICY_REFUSE, NULL, &pin, r) < 0)
        return -1;
    v->row->model_row = pin.served->row_id;
    v->row->load_counter = pin.load_counter;
    memcpy(v->row->boot, v->b->s->boot_id, sizeof v->row->boot);
    identity_release(&pin);
    return 0;
}

static int begin(struct validation *v, struct err *e)
{
    struct buf text = {0};

    if (json_array_size(v->errors))
        json_write(&text, v->errors);
    free(v->row->errors);
    v->row->errors = text.len ? buf_take(&text) : NULL;
    free(v->row->model);
    v->row->model = v->model;
    v->model = NULL;
    v->row->total = v->total;
    v->row->status = BATCH_IN_PROGRESS;
    v->row->at[AT_IN_PROGRESS] = time(NULL);
    return batch_rows_update(v->b->s->db, v->row, BATCH_VALIDATING, e) < 0 ? -1 : 0;
}

/* `at`: the count of loads before it was looked for. */
static int without_model(struct validation *v, const struct refusal *r, uint64_t at)
{
    if (r->code == REFUSAL_V1_WEIGHTS_TORN) {
        v->waits = "weights_torn";
        return 0;
    }
    if (is_older(v) && r->code != REFUSAL_V1_MODEL_NOT_FOUND) {
        note_missed(v->b, v->row->id, at);
        v->waits = "model_not_resident";
        return 0;
    }
    return fail(v, "model_not_resident",
                "The model of the batch is not resident, and a batch never loads one.", "model");
}

static int decide(struct validation *v, struct err *e)
{
    struct refusal r = {0};
    uint64_t at = loads(v->b);
    int rc;

    if (v->valid == 0)
        return fail_no_line(v);
    if (!v->model)
        return err_nomem(e);
    if (v->several_models)
        return fail(v, "multiple_models", "The lines name more than one model.", "model");
    if (bind(v, &r) < 0) {
        rc = without_model(v, &r, at);
        refusal_clear(&r);
        return rc;
    }
    if (leased_away(v->b, v->row->id))
        return fail(v, "model_leased", "Somebody else leases the resident model.", NULL);
    return begin(v, e);
}

/* ---- the whole ---- */

static int run(struct validation *v, struct err *e)
{
    int fd = batch_open_input(v->b, v->row, true, e);
    int rc;

    if (fd < 0)
        return e->code == ERR_NOT_FOUND || e->code == ERR_FORMAT ? batch_fail_input(v->b, v->row, e)
                                                                 : -1;
    v->seen = json_object();
    v->errors = json_array();
    rc = v->seen && v->errors ? validate_lines(v, fd, e) : err_nomem(e);
    fs_close(fd);
    return rc == 0 && !v->waits ? decide(v, e) : rc;
}

bool batch_validate(struct batches *b, struct batch_row *row)
{
    struct validation v = {.b = b, .row = row};
    struct refusal torn = {0};
    struct err e = {0};
    int rc = 0;

    if (identity_refuse_torn(b->s, &torn) < 0)
        v.waits = "weights_torn";
    else if (still_missed(b, row->id))
        v.waits = "model_not_resident";
    else
        rc = run(&v, &e);
    if (row->status < BATCH_COMPLETED) /* one that has ended is not to be noted again */
        batch_set_waits(b, row->id, v.waits);
    if (rc < 0 && e.msg[0])
        log_ev(LOG_ERROR, "batch_validation", "batch=%s cause=\"%s\"", row->id, e.msg);
    while (v.n_bad > 0)
        free(v.bad[--v.n_bad].text);
    json_decref(v.seen);
    json_decref(v.errors);
    free(v.model);
    refusal_clear(&torn);
    return rc == 0 && !v.waits;
}
