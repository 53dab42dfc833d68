#include "text/chat_template.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/chat_source.h"
#include "text/chat_worker.h"

static const struct chat_text *choose(const struct chat_source *s, const struct chat_request *r,
                                      struct err *e)
{
    const char *name = r->template_name;
    const struct chat_text *t = NULL;

    if (!name && json_array_size(r->tools) > 0)
        t = chat_source_find(s, "tool_use");
    if (!t)
        t = chat_source_find(s, name ? name : "default");
    if (!t && name)
        err_set(e, ERR_NOT_FOUND, "the model has no chat template \"%.60s\"", name);
    else if (!t)
        err_set(e, ERR_NOT_FOUND, "the model has no chat template");
    return t;
}

static int check(const struct chat_request *r, struct err *e)
{
    if (!json_is_array(r->messages) || json_array_size(r->messages) == 0)
        return err_set(e, ERR_ARG, "messages is not a list with at least one message");
    if (r->add_generation_prompt && r->continue_final_message)
        return err_set(
            e, ERR_ARG,
            "add_generation_prompt and continue_final_message exclude each other; drop one");
    if (r->kwargs && !json_is_object(r->kwargs))
        return err_set(e, ERR_ARG, "the further template variables are not an object");
    return 0;
}

static void write_member(struct buf *b, const char *key, const json_t *value)
{
    json_write_str(b, key, strlen(key));
    buf_add_char(b, ':');
    if (value)
        json_write(b, value);
    else
        buf_add_str(b, "null");
    buf_add_char(b, ',');
}

/* The variables of the template as one JSON object. Where a name occurs twice the last one counts:
 * special tokens, then what the caller adds, then the fixed ones. */
static int write_request(struct buf *b, const struct chat_source *s, const struct chat_request *r,
                         struct err *e)
{
    const char *key;
    json_t *value;

    buf_add_char(b, '{');
    buf_add(b, buf_str(&s->special), s->special.len);
    buf_add_str(b, "\"documents\":null,");
    json_object_foreach ((json_t *)(uintptr_t)r->kwargs, key, value)
        write_member(b, key, value);
    write_member(b, "messages", r->messages);
    write_member(b, "tools", json_array_size(r->tools) > 0 ? r->tools : NULL);
    buf_printf(b, "\"add_generation_prompt\":%s,\"continue_final_message\":%s}",
               r->add_generation_prompt ? "true" : "false",
               r->continue_final_message ? "true" : "false");
    if (b->failed)
        return err_nomem(e);
    if (b->len > CHAT_INPUT_MAX)
        return err_set(e, ERR_ARG, "the messages have %zu bytes as JSON, of at most %d; send fewer",
                       b->len, CHAT_INPUT_MAX);
    return 0;
}

static int tell(enum chat_status status, const char *why, struct err *e)
{
    switch (status) {
    case CHAT_TEXT:
        return 0;
    case CHAT_REFUSED:
        return err_set(e, ERR_ARG, "%s", why);
    case CHAT_FAILED:
        return err_set(e, ERR_ARG, "the model's chat template fails on these messages: %s", why);
    case CHAT_TIMEOUT:
        return err_set(e, ERR_ARG, "the model's chat template did not end within %d ms",
                       CHAT_TIME_MS);
    case CHAT_DIED:
        return err_set(e, ERR_ARG, "the model's chat template took too much memory");
    case CHAT_TOO_LONG:
        return err_set(e, ERR_ARG, "the model's chat template printed more than %d bytes",
                       CHAT_OUTPUT_MAX);
    }
    return err_set(e, ERR_IO, "the template worker talks nonsense");
}

int chat_render(struct chat_worker *w, const struct chat_source *s, const struct chat_request *r,
                struct buf *out, struct err *e)
{
    const struct chat_text *t = choose(s, r, e);
    enum chat_status status = CHAT_FAILED;
    struct buf request = {0};
    size_t before = out->len;
    int rc = -1;

    if (!t || check(r, e) < 0)
        return -1;
    if (write_request(&request, s, r, e) == 0 &&
        chat_worker_exchange(w, t, request.data, request.len, &status, out, e) == 0) {
        rc = tell(status, buf_str(out) + before, e);
        if (rc < 0)
            out->len = before;
    }
    buf_release(&request);
    return rc;
}

int chat_render_plain(const struct chat_request *r, struct buf *out, struct err *e)
{
    size_t n = json_array_size(r->messages), i;
    const json_t *m;

    if (check(r, e) < 0)
        return -1;
    json_array_foreach (r->messages, i, m) {
        const char *role, *content = "";

        if (json_get_str(m, "role", &role, e) < 0 || json_opt_str(m, "content", &content, e) < 0)
            return err_wrap(e, "messages[%zu]", i);
        buf_add_str(out, role);
        buf_add_str(out, ": ");
        buf_add(out, content, json_string_length(json_object_get(m, "content")));
        if (!r->continue_final_message || i + 1 < n)
            buf_add_char(out, '\n');
    }
    if (r->add_generation_prompt)
        buf_add_str(out, "assistant:");
    return out->failed ? err_nomem(e) : 0;
}
