/* kernels/v16_avx512.h - v16.h in one 512-bit register. */
#ifndef KERNELS_V16_AVX512_H
#define KERNELS_V16_AVX512_H

typedef __m512 v16; /* a register, like __m512 itself */
typedef __mmask16 v16_mask;

INLINE v16_mask v16_first(int n)
{
    return (v16_mask)(n <= 0 ? 0 : n >= LANES ? 0xffff : (1u << n) - 1);
}

INLINE v16 v16_set(float f)
{
    return _mm512_set1_ps(f);
}

INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE v16 v16_load_part(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}

INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

INLINE void v16_store_part(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, v16_first(n), a);
}

INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE v16 v16_neg(v16 a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

/* a < b ? a : b, and a > b ? a : b: b when one of them is NaN. */
INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}

INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

INLINE v16_mask v16_greater(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

INLINE v16 v16_select(v16_mask m, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

INLINE v16 v16_widen(const uint16_t *w, enum kern_dtype dtype)
{
    __m256i h = _mm256_loadu_si256((const void *)w);

    if (dtype == KERN_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE float v16_sum(v16 a)
{
    __m512 s = _mm512_add_ps(a, _mm512_permute_ps(a, 0x4e)); /* p0+p2, p1+p3, ... */
    __m512 b = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    __m256 c = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));

    return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
}

/* The largest lane; none is NaN. */
INLINE float v16_largest(v16 a)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* p * 2^n for t = n + EXP_MAGIC. The instruction rounds once, as the two factors of exp.h do. */
INLINE v16 v16_scale(v16 p, v16 t)
{
    return _mm512_scalef_ps(p, _mm512_sub_ps(t, v16_set(EXP_MAGIC)));
}
#endif
