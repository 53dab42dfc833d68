#include "base/sha256_ni.h"

#include <cpuid.h>
#include <immintrin.h>

#define SHA_CODE __attribute__((target("sha,sse4.1"), always_inline)) static inline

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool sha256_ni_usable(void)
{
    unsigned a, b, c, d, ssse3_sse41 = 1u << 9 | 1u << 19;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & ssse3_sse41) == ssse3_sse41 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

/* The instructions want the words as (a b e f) and (c d g h), the first one highest. */
struct words {
    __m128i abef, cdgh;
};

SHA_CODE struct words words_of(const uint32_t *state)
{
    __m128i abcd = _mm_loadu_si128((const void *)state),
            efgh = _mm_loadu_si128((const void *)(state + 4));
    __m128i badc = _mm_shuffle_epi32(abcd, 0xb1), hgfe = _mm_shuffle_epi32(efgh, 0x1b);

    return (struct words){.abef = _mm_alignr_epi8(badc, hgfe, 8),
                          .cdgh = _mm_blend_epi16(hgfe, badc, 0xf0)};
}

SHA_CODE void words_to(uint32_t *state, struct words w)
{
    __m128i feba = _mm_shuffle_epi32(w.abef, 0x1b), dchg = _mm_shuffle_epi32(w.cdgh, 0xb1);

    _mm_storeu_si128((void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

SHA_CODE __m128i big_endian(const unsigned char *bytes)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);

    return _mm_shuffle_epi8(_mm_loadu_si128((const void *)bytes), order);
}

/* Four rounds on the words of the schedule that m[i % 4] holds. */
SHA_CODE void four_rounds(struct words *w, __m128i m, size_t i)
{
    __m128i k = _mm_add_epi32(m, _mm_loadu_si128((const void *)(round_constants + 4 * i)));

    w->cdgh = _mm_sha256rnds2_epu32(w->cdgh, w->abef, k);
    w->abef = _mm_sha256rnds2_epu32(w->abef, w->cdgh, _mm_shuffle_epi32(k, 0x0e));
}

/* The next four words of the schedule, in place of the oldest. */
SHA_CODE void extend(__m128i m[4], size_t i)
{
    __m128i *oldest = &m[i % 4], a = m[(i + 1) % 4], b = m[(i + 2) % 4], newest = m[(i + 3) % 4];

    *oldest = _mm_add_epi32(_mm_sha256msg1_epu32(*oldest, a), _mm_alignr_epi8(newest, b, 4));
    *oldest = _mm_sha256msg2_epu32(*oldest, newest);
}

__attribute__((target("sha,sse4.1"))) void
sha256_ni_pair(uint32_t *const state[2], const unsigned char *const bytes[2], size_t n)
{
    struct words x = words_of(state[0]), y = words_of(state[1]);
    const unsigned char *from_x = bytes[0], *from_y = bytes[1];

    for (; n > 0; n--, from_x += 64, from_y += 64) {
        struct words x_before = x, y_before = y;
        __m128i mx[4], my[4];

        for (size_t i = 0; i < 4; i++) {
            mx[i] = big_endian(from_x + 16 * i);
            my[i] = big_endian(from_y + 16 * i);
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < 16; i++) {
            four_rounds(&x, mx[i % 4], i);
            four_rounds(&y, my[i % 4], i);
            if (i < 12) {
                extend(mx, i);
                extend(my, i);
            }
        }
        x = (struct words){_mm_add_epi32(x.abef, x_before.abef),
                           _mm_add_epi32(x.cdgh, x_before.cdgh)};
        y = (struct words){_mm_add_epi32(y.abef, y_before.abef),
                           _mm_add_epi32(y.cdgh, y_before.cdgh)};
    }
    words_to(state[0], x);
    words_to(state[1], y);
}
