#include "service/weaver/names.h"
#include "service/gen_refusal.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "engine/image.h"
#include "engine/served.h"
#include "model/adapter.h"
#include "service/service.h"
#include "service/tokens.h"
#include "service/weaver/ckpt.h"
#include "service/weaver/impl.h"
#include "service/weaver/samplers.h"

bool weaver_names(const char *model)
{
    return strncmp(model, "weaver://", 9) == 0;
}

/* The training API's refusal in the words of /v1. */
static int translate(const struct refusal *from, struct refusal *r)
{
    if (from->code == REFUSAL_W_SERVER_RESTARTED)
        return refuse(r, REFUSAL_V1_MODEL_BUSY, "%s", from->message);
    if (from->code == REFUSAL_W_OUT_OF_MEMORY)
        return refuse(r, REFUSAL_V1_INSUFFICIENT_MEMORY, "%s", from->message);
    if (from->code == REFUSAL_W_CHECKPOINT_EXPIRED)
        return refuse_param(r, REFUSAL_V1_CHECKPOINT_EXPIRED, "model", "%s", from->message);
    if (from->code == REFUSAL_W_INTERNAL_ERROR)
        return refuse(r, REFUSAL_V1_SERVER_ERROR, "%s", from->message);
    return refuse_param(r, REFUSAL_V1_MODEL_NOT_FOUND, "model", "%s", from->message);
}

static struct served *record_of(const struct w_sampler *s)
{
    struct served made = {.checkpoint = true, .row_id = s->row_id};

    snprintf(made.name, sizeof made.name, "%s", s->model_path);
    str_copy(made.base_model, sizeof made.base_model, s->base_model);
    return served_new(&made);
}

int weaver_permit(struct service *s, const char *authorization, struct refusal *r)
{
    if (s->weaver && s->keys && tokens_find(s->keys, authorization))
        return 0;
    return refuse(r, REFUSAL_V1_INVALID_API_KEY,
                  "A weaver:// model needs a key of WEAVER_API_KEYS as bearer token.");
}

int weaver_pin(struct service *s, const struct identity_ask *ask, struct identity_pin *out,
               struct refusal *r)
{
    struct refusal own = {0};
    struct w_sampler *sampler;

    if (weaver_permit(s, ask->authorization, r) < 0)
        return -1;
    sampler = w_sampler_of_path(s->weaver, ask->model, &own);
    if (!sampler) {
        translate(&own, r);
        refusal_clear(&own);
        return -1;
    }
    *out = (struct identity_pin){.served = record_of(sampler),
                                 .image = image_ref(sampler->image),
                                 .adapter = sampler->adapter ? adapter_ref(sampler->adapter) : NULL,
                                 .own_weights = true};
    w_sampler_unref(sampler);
    if (out->served)
        return 0;
    identity_release(out);
    return gen_refuse_memory(r);
}

struct listing {
    identity_entry_fn *fn;
    void *arg;
};

static int tell(void *arg, const struct w_ckpt *c)
{
    const struct listing *l = arg;
    struct buf path = {0};

    w_ckpt_path(c, &path);
    l->fn(l->arg, &(struct identity_entry){
                      .id = buf_str(&path), .owned_by = c->owner, .created = c->created_ms / 1000});
    buf_release(&path);
    return 0;
}

void weaver_list_exports(struct service *s, identity_entry_fn *fn, void *arg)
{
    struct listing l = {fn, arg};
    struct err e = {0};

    if (s->weaver &&
        w_ckpt_each(s->weaver,
                    "type = 'sampling' AND slug LIKE 'sampler-%' AND status = 'completed' AND"
                    " (expires_ms IS NULL OR expires_ms > ?3) ORDER BY created_ms DESC, rowid DESC",
                    NULL, tell, &l, &e) < 0)
        log_ev(LOG_WARNING, "weaver_list", "cause=\"%s\"", e.msg);
}
