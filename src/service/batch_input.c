#include "service/batch_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

enum { READ_AHEAD = 64 << 10, ID_CHARS_MAX = 512 };

bool batch_line_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

/* ---- reading ---- */

int batch_reader_begin(struct batch_reader *rd, int fd, size_t max_line, int64_t offset,
                       int64_t line, struct err *e)
{
    *rd = (struct batch_reader){
        .fd = fd, .max_line = max_line, .cap = max_line + READ_AHEAD, .base = offset, .line = line};
    rd->bytes = malloc(rd->cap);
    return rd->bytes ? 0 : err_nomem(e);
}

void batch_reader_end(struct batch_reader *rd)
{
    free(rd->bytes);
    *rd = (struct batch_reader){0};
}

/* Moves what is unread to the front and reads on behind it. */
static int fill(struct batch_reader *rd, struct err *e)
{
    ssize_t got;

    memmove(rd->bytes, rd->bytes + rd->at, rd->len - rd->at);
    rd->base += (int64_t)rd->at;
    rd->len -= rd->at;
    rd->at = 0;
    do
        got = pread(rd->fd, rd->bytes + rd->len, rd->cap - rd->len, rd->base + (int64_t)rd->len);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_io(e, "read the input file of a batch");
    rd->end = got == 0;
    rd->len += (size_t)got;
    return 0;
}

/* Bytes up to the next line end, which is looked for from `from`; rd->len when there is none. */
static size_t line_end(const struct batch_reader *rd, size_t from)
{
    const char *stop = memchr(rd->bytes + from, '\n', rd->len - from);

    return stop ? (size_t)(stop - rd->bytes) : rd->len;
}

static int skip_mark(struct batch_reader *rd, struct err *e)
{
    if (rd->base != 0 || rd->at != 0 || rd->len != 0)
        return 0;
    if (fill(rd, e) < 0)
        return -1;
    if (rd->len >= 3 && memcmp(rd->bytes, "\xef\xbb\xbf", 3) == 0)
        rd->at = 3;
    return 0;
}

/* 1 a line, blank ones too; 0 the end. */
static int next_line(struct batch_reader *rd, struct batch_raw *raw, struct err *e)
{
    size_t stop = line_end(rd, rd->at), known;
    bool too_large = false;

    while (stop == rd->len && !rd->end) {
        if (rd->len - rd->at > rd->max_line) { /* its beginning is not needed any more */
            too_large = true;
            rd->at = rd->len;
        }
        known = rd->len - rd->at;
        if (fill(rd, e) < 0)
            return -1;
        stop = line_end(rd, known);
    }
    if (rd->at == rd->len && !too_large)
        return 0;
    *raw = (struct batch_raw){.text = rd->bytes + rd->at, .len = stop - rd->at, .line = rd->line++};
    if (raw->len && raw->text[raw->len - 1] == '\r')
        raw->len--;
    raw->too_large = too_large || raw->len > rd->max_line;
    if (raw->too_large)
        raw->len = 0;
    rd->at = stop < rd->len ? stop + 1 : stop;
    raw->next_offset = rd->base + (int64_t)rd->at;
    raw->next_line = rd->line;
    return 1;
}

int batch_reader_next(struct batch_reader *rd, struct batch_raw *raw, struct err *e)
{
    int rc = skip_mark(rd, e);

    if (rc == 0)
        do
            rc = next_line(rd, raw, e);
        while (rc > 0 && !raw->too_large && batch_line_blank(raw->text, raw->len));
    return rc;
}

/* ---- judging ---- */

static void find(struct batch_line *l, const char *code, const char *param, const char *message)
{
    l->code = code;
    l->param = param;
    l->message = message;
}

static bool is_known_key(const char *key)
{
    static const char *const keys[] = {"custom_id", "method", "url", "body"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool has_other_keys(json_t *object)
{
    const char *key;
    json_t *v;

    json_object_foreach (object, key, v)
        if (!is_known_key(key))
            return true;
    return false;
}

static bool is_custom_id(const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    return json_is_string(v) && chars >= 1 && chars <= ID_CHARS_MAX;
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

/* true: the id was there before. */
static bool seen_before(json_t *seen, const json_t *id)
{
    const char *s = json_string_value(id);
    size_t n = json_string_length(id);
    bool before = seen && json_object_getn(seen, s, n);

    if (seen && !before)
        json_object_setn_new(seen, s, n, json_true());
    return before;
}

static void judge_object(struct batch_line *l, const char *endpoint, json_t *seen)
{
    const json_t *id = json_object_get(l->object, "custom_id");
    const json_t *body = json_object_get(l->object, "body");
    bool repeated;

    l->id = is_custom_id(id) ? id : NULL;
    l->body = json_is_object(body) ? body : NULL;
    repeated = l->id && seen_before(seen, l->id);
    if (has_other_keys(l->object))
        find(l, "invalid_line", NULL, "A line has the keys custom_id, method, url and body only.");
    else if (!l->id)
        find(l, "invalid_custom_id", "custom_id",
             "custom_id must be a string of 1 to 512 characters.");
    else if (!is_text(json_object_get(l->object, "method"), "POST"))
        find(l, "invalid_method", "method", "method must be POST.");
    else if (!is_text(json_object_get(l->object, "url"), endpoint))
        find(l, "invalid_url", "url", "url must be the endpoint of the batch.");
    else if (!l->body)
        find(l, "invalid_body", "body", "body must be an object.");
    else if (repeated)
        find(l, "duplicate_custom_id", "custom_id", "An earlier line has the same custom_id.");
    else if (json_is_true(json_object_get(body, "stream")))
        find(l, "stream_not_supported", "stream", "A line of a batch cannot be streamed.");
}

void batch_line_judge(struct batch_line *l, const struct batch_raw *raw, const char *endpoint,
                      json_t *seen)
{
    struct err e = {0};

    *l = (struct batch_line){.number = raw->line};
    if (raw->too_large) {
        find(l, "line_too_large", NULL, "The line is longer than a line may be.");
        return;
    }
    l->object = json_parse(raw->text, raw->len, &e);
    if (!l->object) {
        str_copy(l->parser_says, sizeof l->parser_says, e.msg);
        find(l, "invalid_json", NULL, l->parser_says);
    } else if (!json_is_object(l->object)) {
        find(l, "invalid_line", NULL, "A line must be a JSON object.");
    } else {
        judge_object(l, endpoint, seen);
    }
}

void batch_line_release(struct batch_line *l)
{
    json_decref(l->object);
    *l = (struct batch_line){0};
}
