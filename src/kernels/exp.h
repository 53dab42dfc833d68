/* kernels/exp.h - the constants of the one exponential; every variant takes exactly these steps.
 *
 *   x is cut to [EXP_LO, EXP_HI] (a NaN stays), n = x/ln 2 rounded to the nearest integer by adding
 *   and subtracting EXP_MAGIC, r = x - n ln 2 in two fused steps, p = 1 + r + r^2 (C2 + ... + C6
 * r^4) by Horner with fused steps, result (p * 2^(n >> 1)) * 2^(n - (n >> 1)).
 *
 * The two factors round once, also where the result is denormal. Minimax fit of our own: relative
 * error of the polynomial 3.8e-9; of the whole, below 1 unit in the last place (test_exp.c). */
#ifndef KERNELS_EXP_H
#define KERNELS_EXP_H

#define EXP_HI     89.0f   /* exp(89) overflows to infinity */
#define EXP_LO     -104.0f /* exp(-104) rounds to zero */
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_MAGIC  0x1.8p+23f
#define EXP_LN2_HI 0x1.62e430p-1f
#define EXP_LN2_LO -0x1.05c610p-29f
#define EXP_C2     0x1.fffffcp-2f
#define EXP_C3     0x1.555492p-3f
#define EXP_C4     0x1.5558f2p-5f
#define EXP_C5     0x1.1239e4p-7f
#define EXP_C6     0x1.6a2430p-10f
#endif
