/* base/rng.h - counter-based random numbers: a pure function of a key and a counter.
 *
 * Philox 4x32 with 10 rounds ("Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no
 * state: the number for (seed, stream, position) is the same whatever was drawn before, on any
 * thread. Not for secrets. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* One Philox block: out[4] from counter[4] and key[2]. */
void rng_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* 64 random bits for draw `draw` of (seed, stream, position). */
uint64_t rng_u64(uint64_t seed, uint32_t stream, uint64_t position, uint32_t draw);

/* Uniform in [0, 1): 53 bits of the same. */
double rng_unit(uint64_t seed, uint32_t stream, uint64_t position, uint32_t draw);
#endif
