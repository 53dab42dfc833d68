/* kernels/v16_avx2.h - v16.h in two 256-bit registers. */
#ifndef KERNELS_V16_AVX2_H
#define KERNELS_V16_AVX2_H

typedef struct {
    __m256 lo, hi;
} v16; /* a register, like __m256 itself */

typedef v16 v16_mask; /* all bits of a lane set, or none */

INLINE __m256i v8_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE v16_mask v16_first(int n)
{
    return (v16){_mm256_castsi256_ps(v8_first(n)), _mm256_castsi256_ps(v8_first(n - 8))};
}

INLINE v16 v16_set(float f)
{
    return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

INLINE v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE v16 v16_load_part(const float *p, int n)
{
    return (v16){_mm256_maskload_ps(p, v8_first(n)), _mm256_maskload_ps(p + 8, v8_first(n - 8))};
}

INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

INLINE void v16_store_part(float *p, v16 a, int n)
{
    _mm256_maskstore_ps(p, v8_first(n), a.lo);
    _mm256_maskstore_ps(p + 8, v8_first(n - 8), a.hi);
}

INLINE v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

INLINE v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

INLINE v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

INLINE v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

INLINE v16 v16_neg(v16 a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);

    return (v16){_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}

/* a < b ? a : b, and a > b ? a : b: b when one of them is NaN. */
INLINE v16 v16_min(v16 a, v16 b)
{
    return (v16){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

INLINE v16 v16_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

INLINE v16_mask v16_greater(v16 a, v16 b)
{
    return (v16){_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}

INLINE v16 v16_select(v16_mask m, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

INLINE __m256 v8_widen(const uint16_t *w, enum kern_dtype dtype)
{
    __m128i h = _mm_loadu_si128((const void *)w);

    if (dtype == KERN_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE v16 v16_widen(const uint16_t *w, enum kern_dtype dtype)
{
    return (v16){v8_widen(w, dtype), v8_widen(w + 8, dtype)};
}

/* p0+p2 and p1+p3 of each group of four, then their sum, in every lane of the group. */
INLINE __m256 v8_groups(__m256 a)
{
    __m256 s = _mm256_add_ps(a, _mm256_permute_ps(a, 0x4e));

    return _mm256_add_ps(s, _mm256_permute_ps(s, 0xb1));
}

INLINE float v16_sum(v16 a)
{
    __m256 c = _mm256_add_ps(v8_groups(a.lo), v8_groups(a.hi));

    return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
}

/* The largest lane; none is NaN. */
INLINE float v16_largest(v16 a)
{
    __m256 h = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INLINE __m256 v8_scale(__m256 p, __m256 t)
{
    __m256i magic = _mm256_castps_si256(_mm256_set1_ps(EXP_MAGIC));
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), magic);
    __m256i half = _mm256_srai_epi32(n, 1);
    __m256i bias = _mm256_set1_epi32(127);
    __m256i lo = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i hi = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);

    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(lo)), _mm256_castsi256_ps(hi));
}

/* p * 2^n in the two factors of exp.h, n being the low bits of t = n + EXP_MAGIC. */
INLINE v16 v16_scale(v16 p, v16 t)
{
    return (v16){v8_scale(p.lo, t.lo), v8_scale(p.hi, t.hi)};
}
#endif
