#include "engine/pooling.h"

#include <stdlib.h>

#include "base/err.h"
#include "engine/gen.h"

bool pooling_takes(const struct sequence *s, int position)
{
    switch (s->gen->spec.pooling) {
    case GEN_POOL_MEAN:
        return true;
    case GEN_POOL_FIRST:
        return position == 0;
    case GEN_POOL_LAST:
        return position + 1 == s->n_prompt;
    case GEN_POOL_NONE:
        break;
    }
    return false;
}

int pooling_add(struct sequence *s, const float *rows, int n, int width, struct err *e)
{
    if (!s->pooled) {
        s->pooled = calloc((size_t)width, sizeof *s->pooled);
        if (!s->pooled)
            return err_nomem(e);
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++)
            s->pooled[i] += (double)rows[(size_t)r * (size_t)width + (size_t)i];
    return 0;
}

int pooling_tell(const struct sequence *s, struct sequence *to, int width, struct err *e)
{
    float *vector = malloc((size_t)width * sizeof *vector);
    double n = s->gen->spec.pooling == GEN_POOL_MEAN ? s->n_prompt : 1;

    if (!vector)
        return err_nomem(e);
    for (int i = 0; i < width; i++)
        vector[i] = (float)(s->pooled[i] / n);
    gen_emit(to->gen,
             &(struct gen_event){
                 .kind = GEN_VECTOR, .sequence = to->index, .vector = vector, .n_vector = width});
    free(vector);
    return 0;
}
