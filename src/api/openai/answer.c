#include "api/openai/answer.h"

#include <time.h>

#include "api/api.h"
#include "api/envelope.h"
#include "api/openai/ask.h"
#include "api/openai/errors.h"
#include "api/openai/render.h"
#include "base/buf.h"
#include "engine/image.h"
#include "engine/served.h"
#include "service/chat_collect.h"
#include "service/gen_refusal.h"
#include "service/identity.h"

static json_t *choices_array(const struct ask *a, const struct answer_form *form,
                             const struct collected *got)
{
    json_t *choices = json_array();

    for (int i = 0; i < got->n_choices; i++)
        json_array_append_new(choices,
                              form->choice(a, got->image->files->tokenizer, i, &got->choices[i]));
    return choices;
}

static json_t *whole_body(const struct ask *a, const struct answer_form *form,
                          const struct collected *got, const struct chat_usage *usage)
{
    char id[COMPLETION_ID_MAX];
    struct buf fingerprint = {0};
    json_t *body;

    make_completion_id(form->id_prefix, id);
    identity_fingerprint(a->call->api->service, got->served, got->image, &fingerprint);
    body = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:s}", "id", id, "object", form->object,
                     "created", (json_int_t)time(NULL), "model", got->served->name, "choices",
                     choices_array(a, form, got), "usage", usage_object(usage),
                     "system_fingerprint", buf_str(&fingerprint));
    buf_release(&fingerprint);
    return body;
}

void answer_whole(struct ask *a, const struct answer_form *form)
{
    struct collected got = {0};
    struct chat_sink sink = collect_sink(&got);
    struct chat_usage usage;
    struct refusal r = {0};
    int rc = chat_run(a->call->api->service, &a->job, &sink, &usage, &r);

    if (rc == 0 && got.failed)
        rc = gen_refuse_memory(&r);
    if (rc < 0) {
        openai_fail(a->call, &r);
    } else {
        struct chat_start start = {.served = got.served, .image = got.image};

        collect_choose_best(&got, a->job.n, a->job.best_of);
        ask_add_headers(a, &start);
        api_json(a->call, 200, whole_body(a, form, &got, &usage));
    }
    collect_release(&got);
    refusal_clear(&r);
}

void answer_call(struct api_call *call, const struct answer_form *form)
{
    struct refusal r = {0};
    struct ask a;

    if (ask_read(&a, call, form->parse, &r) < 0)
        openai_fail(call, &r);
    else if (ask_only_checks(&a))
        api_json(call, 200, json_object());
    else if (a.stream)
        answer_stream(&a, form);
    else
        answer_whole(&a, form);
    ask_release(&a);
    refusal_clear(&r);
}
