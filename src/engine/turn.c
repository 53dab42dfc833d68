/* Whose turn it is: a step is a pass over the weights of one image. */
#include "base/clock.h"
#include "engine/batch.h"
#include "engine/engine_impl.h"
#include "engine/gen.h"
#include "engine/image.h"
#include "engine/runner.h"
#include "engine/step.h"

/* Of the requests on one of the residents, the present one or an earlier one. */
struct load {
    int most;         /* tokens that one of their answers still has to make */
    double step_ms;   /* of decoding on these weights */
    int64_t since_ns; /* admission of the oldest */
    bool has_begun;   /* somebody heard a token */
    bool has_prompts; /* a prompt is not through yet */
};

static void add_request(struct load *l, const struct gen *g)
{
    for (int i = 0; i < g->n_sequences; i++) {
        const struct sequence *s = &g->sequences[i];
        int left = s->state == SEQ_DONE ? 0 : s->max_new - s->n_new;

        l->most = left > l->most ? left : l->most;
        l->has_prompts = l->has_prompts || (s->state != SEQ_DONE && s->state != SEQ_DECODE);
    }
    if (l->since_ns == 0)
        l->since_ns = g->admitted_at;
    l->step_ms = g->runner->clock.decode_ms;
    l->has_begun = l->has_begun || g->has_begun;
}

/* It reads the resident of its admission, not an image of its own. */
static bool reads_resident(const struct gen *g)
{
    return !g->spec.image && gen_active(g) > 0;
}

static bool has_earlier(const struct batch *b)
{
    for (const struct gen *g = b->running; g; g = g->next)
        if (reads_resident(g) && g->image != b->engine->resident)
            return true;
    return false;
}

/* Two images are two passes a step: everybody's tokens come at half the pace. Requests that came
 * after a swap, and have heard nothing yet, let the answers on earlier weights end first when these
 * have less to make than they have and will be through before their patience is. */
static bool stands_back(const struct batch *b)
{
    struct load own = {0}, earlier = {0};

    if (!has_earlier(b))
        return false;
    for (const struct gen *g = b->running; g; g = g->next)
        if (reads_resident(g))
            add_request(g->image == b->engine->resident ? &own : &earlier, g);
    if (own.has_begun || earlier.has_prompts || earlier.most == 0 || earlier.most > own.most)
        return false;
    return clock_ms_since(own.since_ns) + earlier.most * earlier.step_ms <
           (double)b->engine->config.stand_back_ms;
}

/* Epochs in rising order, round and round. Epochs are never reused. */
struct gen *turn_next(const struct batch *b)
{
    bool back = stands_back(b);
    struct gen *after = NULL, *least = NULL;

    for (struct gen *g = b->running; g; g = g->next) {
        if (gen_active(g) == 0)
            continue; /* waits for KV memory */
        if (back && reads_resident(g) && g->image == b->engine->resident)
            continue;
        if (g->image->epoch > b->last_epoch && (!after || g->image->epoch < after->image->epoch))
            after = g;
        if (!least || g->image->epoch < least->image->epoch)
            least = g;
    }
    return after ? after : least;
}
