/* The backward table of this instruction set: the bodies are written once, against v16.h. */
#include "kernels/backward_variants.h"
#include "kernels/v16.h"

#include "kernels/backward_body.h"

enum { CHAIN_ROWS = 6, CHAIN_COLS = 4 }; /* 24 of 32 registers */

#include "kernels/chain_body.h"

const struct kernels_back kernels_back_avx512 = {
    .name = "avx512",
    .chain = chain,
    .rmsnorm = rmsnorm_back,
    .rmsnorm_weight = rmsnorm_weight,
    .swiglu = swiglu_back,
    .softmax = softmax_back,
    .scale = scale,
    .dot = dot,
    .attention_stats = attention_stats,
    .attention = attention_back,
    .short_conv = short_conv_back,
};

/* Only the products of weights differ. */
const struct kernels_back kernels_back_bf16 = {
    .name = "bf16",
    .chain = chain,
    .chain_pairs = chain_bf16,
    .rmsnorm = rmsnorm_back,
    .rmsnorm_weight = rmsnorm_weight,
    .swiglu = swiglu_back,
    .softmax = softmax_back,
    .scale = scale,
    .dot = dot,
    .attention_stats = attention_stats,
    .attention = attention_back,
    .short_conv = short_conv_back,
};
