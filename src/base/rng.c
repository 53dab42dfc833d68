#include "base/rng.h"

enum { ROUNDS = 10 };

void rng_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53 * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t rng_u64(uint64_t seed, uint32_t stream, uint64_t position, uint32_t draw)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), stream, draw};
    uint32_t out[4];

    rng_philox(out, counter, key);
    return (uint64_t)out[1] << 32 | out[0];
}

double rng_unit(uint64_t seed, uint32_t stream, uint64_t position, uint32_t draw)
{
    return (double)(rng_u64(seed, stream, position, draw) >> 11) * 0x1p-53;
}
