#include <math.h>

#include "kernels/lanes.h"
#include "kernels/variants.h"

/* What one query row carries from block to block: out holds the weighted sum of V so far. */
struct running {
    float max; /* largest score so far */
    float sum; /* of exp(score - max) */
};

/* p[j] = q . K[:, j], one fused chain over d for each key. Returns the largest; NaN never wins. */
static float scores(float p[KV_BLOCK], const float *q, const float *k_page, int keys, int head_dim,
                    float scale)
{
    float max = -INFINITY;

    for (int j = 0; j < keys; j++) {
        float s = 0;

        for (int d = 0; d < head_dim; d++)
            s = fmaf(q[d], k_page[d * KV_BLOCK + j], s);
        p[j] = s * scale;
        max = p[j] > max ? p[j] : max;
    }
    return max;
}

/* Turns scores into weights; their sum has 16 lanes and the canonical tree. */
static float weights(float p[KV_BLOCK], int keys, float max)
{
    float lane[LANES] = {0};

    for (int j = 0; j < keys; j++) {
        p[j] = kern_exp(p[j] - max);
        lane[j % LANES] += p[j];
    }
    return lanes_sum(lane);
}

static void add_block(float *out, struct running *run, const float *q, const float *k_page,
                      const float *v_page, int keys, int head_dim, float scale)
{
    float p[KV_BLOCK];
    float block_max = scores(p, q, k_page, keys, head_dim, scale);
    float max = block_max > run->max ? block_max : run->max;
    float shrink = kern_exp(run->max - max);

    run->sum = fmaf(run->sum, shrink, weights(p, keys, max));
    run->max = max;
    for (int d = 0; d < head_dim; d++) {
        float acc = out[d] * shrink;

        for (int j = 0; j < keys; j++)
            acc = fmaf(p[j], v_page[j * head_dim + d], acc);
        out[d] = acc;
    }
}

static void attend(float *out, const float *q, int pos, int head_dim, const float *const *k_pages,
                   const float *const *v_pages, float scale)
{
    struct running run = {.max = -INFINITY};

    memset(out, 0, (size_t)head_dim * sizeof *out);
    for (int first = 0; first <= pos; first += KV_BLOCK) {
        int keys = pos + 1 - first < KV_BLOCK ? pos + 1 - first : KV_BLOCK;
        int page = first / KV_BLOCK;

        add_block(out, &run, q, k_pages[page], v_pages[page], keys, head_dim, scale);
    }
    for (int d = 0; d < head_dim; d++)
        out[d] /= run.sum;
}

void attention_ref(float *out, int ldo, const float *q, int ldq, int rows, int pos0, int group,
                   int head_dim, const float *const *k_pages, const float *const *v_pages,
                   float scale, void *scratch)
{
    (void)scratch;
    for (int r = 0; r < rows; r++)
        for (ptrdiff_t g = 0; g < group; g++)
            attend(out + (ptrdiff_t)r * ldo + g * head_dim, q + (ptrdiff_t)r * ldq + g * head_dim,
                   pos0 + r, head_dim, k_pages, v_pages, scale);
}

size_t attention_no_scratch(int rows, int group, int head_dim)
{
    (void)rows;
    (void)group;
    (void)head_dim;
    return 0;
}
