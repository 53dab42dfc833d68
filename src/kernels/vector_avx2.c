/* The tables of this instruction set: the bodies are written once, against v16.h. */
#include "kernels/linear_job.h"
#include "kernels/v16.h"
#include "kernels/variants.h"

#include "kernels/vector_body.h"

enum { ATT_ROWS = 6, ATT_COLS = 1 }; /* 12 of 16 registers */

#include "kernels/attention_body.h"

const struct kernels kernels_avx2 = {
    .name = "avx2",
    .numerics = "exact-1",
    .linear_x_bytes = linear_x_none,
    .linear_x_prepare = linear_x_nothing,
    .linear = linear_avx2,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .swiglu = swiglu,
    .add = add,
    .to_f32 = to_f32,
    .kv_store = kv_store,
    .attention = attention,
    .attention_scratch = attention_no_scratch,
    .short_conv = short_conv,
    .block_max = block_max,
    .block_sum_exp = block_sum_exp,
    .below_infinity = below_infinity,
};
