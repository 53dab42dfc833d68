#include "service/gen_refusal.h"

#include <math.h>

#include "base/err.h"
#include "service/refusal.h"
#include "service/service.h"

/* A full queue says when to come back: the median time of a slot times what stands before. */
static int refuse_full(struct service *s, struct refusal *r)
{
    struct engine_stats st;

    engine_get_stats(s->engine, &st);
    refuse(r, REFUSAL_V1_QUEUE_FULL,
           "The queue is full: %d requests run and %d wait. Try again after Retry-After seconds.",
           st.running, st.waiting);
    if (st.median_slot_ms >= 0 && st.max_running > 0) {
        double wait_s = st.median_slot_ms / 1000 * (st.waiting + st.running) / st.max_running;
        double most = s->settings->retry_queue_max_s;

        r->retry_after_s = (int)fmin(fmax(ceil(wait_s), 1), most);
    }
    return -1;
}

int gen_refuse_memory(struct refusal *r)
{
    return refuse(r, REFUSAL_V1_INSUFFICIENT_MEMORY,
                  "There is not enough memory for this request now.");
}

int gen_refuse_submit(struct service *s, const struct err *e, struct refusal *r)
{
    switch (e->code) {
    case ERR_SPACE:
        return refuse_full(s, r);
    case ERR_ARG:
        return refuse(r, REFUSAL_V1_INVALID_PARAMETER, "%s", e->msg);
    case ERR_NOMEM:
        return gen_refuse_memory(r);
    default:
        return refuse_internal(r, e);
    }
}

int gen_refuse_outcome(enum gen_event_kind kind, struct refusal *r)
{
    static const struct {
        enum gen_event_kind kind;
        enum refusal_code code;
        int retry_after_s;
        const char *message;
    } outcomes[] = {
        {GEN_TORN, REFUSAL_V1_WEIGHTS_TORN, 0,
         "The weights in memory are torn. Load a checkpoint or a model with POST "
         "/api/weights/load."},
        {GEN_HOLD_TIMEOUT, REFUSAL_V1_MODEL_BUSY, 5,
         "The weights were held for too long; the request was not started."},
        {GEN_CANCELLED, REFUSAL_V1_MODEL_BUSY, 0, "The request was cancelled."},
        {GEN_NO_MEMORY, REFUSAL_V1_INSUFFICIENT_MEMORY, 0,
         "The cache of the model cannot hold this request."},
        {GEN_NON_FINITE, REFUSAL_V1_NON_FINITE_LOGITS, 0,
         "The model's output holds values that are not finite."},
        {GEN_NO_MODEL, REFUSAL_V1_MODEL_NOT_LOADED, 0, "No model is loaded."},
        {GEN_STOPPED, REFUSAL_V1_MODEL_BUSY, 0, "The server is stopping."},
    };

    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        if (outcomes[i].kind == kind) {
            refuse(r, outcomes[i].code, "%s", outcomes[i].message);
            r->retry_after_s = outcomes[i].retry_after_s;
            return -1;
        }
    return refuse(r, REFUSAL_V1_SERVER_ERROR, "The request ended in a way nobody knows.");
}
