#include "service/chat_prompt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/image.h"
#include "model/config.h"
#include "service/chat.h"
#include "service/refusal.h"
#include "service/service.h"
#include "text/chat_template.h"

int prompts_count(const struct chat_job *job)
{
    return job->n_conversations ? job->n_conversations : job->n_prompts;
}

void prompts_free(struct prompt_tokens *p, int n)
{
    for (int i = 0; p && i < n; i++)
        token_list_release(&p[i].list);
    free(p);
}

/* ---- conversations ---- */

/* Then its text is continued; a message that has made its calls is not. */
static bool ends_with_assistant(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));

    return role && strcmp(role, "assistant") == 0 && !json_object_get(last, "tool_calls");
}

static int refuse_render(const struct err *e, struct refusal *r)
{
    if (e->code == ERR_ARG)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "messages",
                            "The chat template of the model refuses these messages: %s", e->msg);
    return refuse_internal(r, e);
}

static int render(struct service *s, const struct chat_job *job, const struct image *im,
                  const json_t *messages, struct buf *text, struct refusal *r)
{
    const struct chat_source *source = im->files->chat;
    bool open_end = ends_with_assistant(messages);
    struct chat_request ask = {.messages = messages,
                               .tools =
                                   job->tools.choice == TOOL_CHOICE_NONE ? NULL : job->tools.list,
                               .kwargs = job->template_kwargs,
                               .add_generation_prompt = !open_end,
                               .continue_final_message = open_end};
    struct err e = {0};
    bool has = source && chat_source_has(source, NULL);
    int rc;

    if (!has && job->needs_template)
        return refuse(r, REFUSAL_V1_NO_CHAT_TEMPLATE,
                      "The model has no chat template, and scoring needs one.");
    rc = has ? chat_render(s->chat, source, &ask, text, &e) : chat_render_plain(&ask, text, &e);
    return rc < 0 ? refuse_render(&e, r) : 0;
}

static int refuse_text(const struct err *e, const char *param, struct refusal *r)
{
    if (e->code == ERR_ARG)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, param, "%s", e->msg);
    return refuse_internal(r, e);
}

static int encode_conversation(struct service *s, const struct chat_job *job,
                               const struct image *im, int i, struct prompt_tokens *out,
                               struct refusal *r)
{
    const struct tokenizer *t = im->files->tokenizer;
    struct buf text = {0};
    struct err e = {0};
    int rc = render(s, job, im, job->conversations[i], &text, r);

    if (rc == 0 &&
        tokenizer_encode(t, buf_str(&text), text.len,
                         tokenizer_chat_flags(t, buf_str(&text), text.len), &out->list, &e) < 0)
        rc = refuse_text(&e, "messages", r);
    buf_release(&text);
    return rc;
}

/* ---- prompts ---- */

/* How many ids stand before those of the text alone. */
static int count_silent(const struct token_list *with, const struct token_list *without)
{
    size_t n = with->n >= without->n ? with->n - without->n : 0;

    for (size_t k = 0; k <= n; k++)
        if (memcmp(with->ids + k, without->ids, without->n * sizeof *with->ids) == 0)
            return (int)k;
    return 0;
}

static int encode_text(const struct chat_job *job, const struct tokenizer *t,
                       const struct chat_prompt *p, struct prompt_tokens *out, struct refusal *r)
{
    struct token_list bare = {0};
    struct err e = {0};
    int rc = tokenizer_encode(t, p->text, p->len, job->add_special ? TOK_ADD_SPECIAL : 0,
                              &out->list, &e);

    if (rc == 0 && job->echo && job->add_special && tokenizer_adds_prefix(t)) {
        rc = tokenizer_encode(t, p->text, p->len, 0, &bare, &e);
        if (rc == 0)
            out->n_silent = bare.n ? count_silent(&out->list, &bare) : (int)out->list.n;
    }
    token_list_release(&bare);
    return rc < 0 ? refuse_text(&e, "prompt", r) : 0;
}

static int copy_ids(const struct image *im, const struct chat_prompt *p, struct prompt_tokens *out,
                    struct refusal *r)
{
    struct err e = {0};

    for (int i = 0; i < p->n_ids; i++)
        if (p->ids[i] >= im->files->config->vocab)
            return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER, "prompt",
                                "The prompt holds the token id %" PRId32
                                "; the model has the ids 0 to %d.",
                                p->ids[i], im->files->config->vocab - 1);
    if (token_list_append(&out->list, p->ids, (size_t)p->n_ids, &e) < 0)
        return refuse_internal(r, &e);
    return 0;
}

/* ---- both ---- */

/* An empty text: the beginning token stands for it, where there is one. */
static int ensure_one_token(const struct chat_job *job, const struct tokenizer *t,
                            struct prompt_tokens *p, struct refusal *r)
{
    struct err e = {0};
    int32_t bos = tokenizer_bos_id(t);

    if (p->list.n > 0)
        return 0;
    if (job->score)
        return refuse(r, REFUSAL_V1_INVALID_SCORING_REQUEST,
                      "The prompt is empty; a token is scored behind a text.");
    if (bos < 0)
        return refuse_param(r, REFUSAL_V1_INVALID_PARAMETER,
                            job->n_conversations ? "messages" : "prompt",
                            "The prompt is empty, and the model has no token to begin with.");
    p->n_silent = 1;
    return token_list_push(&p->list, bos, &e) < 0 ? refuse_internal(r, &e) : 0;
}

/* What the caller asked for must fit; without max_tokens, at least one new token must. */
static int check_context(const struct chat_job *job, const struct image *im,
                         const struct prompt_tokens *p, struct refusal *r)
{
    int64_t context = im->files->config->max_positions;
    int64_t wanted = job->max_tokens >= 0 ? job->max_tokens : 1;

    if ((int64_t)p->list.n + wanted <= context)
        return 0;
    if (job->max_tokens > 0)
        return refuse(
            r, REFUSAL_V1_CONTEXT_LENGTH_EXCEEDED,
            "The model's context holds %" PRId64 " tokens; the prompt has %zu and %s asks "
            "for %d more.",
            context, p->list.n, job->max_tokens_field ? job->max_tokens_field : "max_tokens",
            job->max_tokens);
    return refuse(r, REFUSAL_V1_CONTEXT_LENGTH_EXCEEDED,
                  "The model's context holds %" PRId64 " tokens; the prompt has %zu.", context,
                  p->list.n);
}

static int build_one(struct service *s, const struct chat_job *job, const struct image *im, int i,
                     struct prompt_tokens *out, struct refusal *r)
{
    int rc;

    if (job->n_conversations)
        rc = encode_conversation(s, job, im, i, out, r);
    else if (job->prompts[i].text)
        rc = encode_text(job, im->files->tokenizer, &job->prompts[i], out, r);
    else
        rc = copy_ids(im, &job->prompts[i], out, r);
    if (rc < 0 || ensure_one_token(job, im->files->tokenizer, out, r) < 0)
        return -1;
    return check_context(job, im, out, r);
}

int prompts_build(struct service *s, const struct chat_job *job, const struct image *im,
                  struct prompt_tokens **out, struct refusal *r)
{
    int n = prompts_count(job);
    struct err e = {0};

    *out = NULL;
    if (!im->files->tokenizer)
        return refuse_param(r, REFUSAL_V1_MODEL_NOT_GENERATIVE, "model",
                            "The model's directory holds no tokenizer.json.");
    *out = calloc((size_t)n, sizeof **out);
    if (!*out) {
        err_nomem(&e);
        return refuse_internal(r, &e);
    }
    for (int i = 0; i < n; i++)
        if (build_one(s, job, im, i, &(*out)[i], r) < 0) {
            prompts_free(*out, n);
            *out = NULL;
            return -1;
        }
    return 0;
}
