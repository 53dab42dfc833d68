/* tensor/dtype.h - element types, with the spelling that safetensors headers use.
 *
 * A safetensors file may hold any of these types; the engine computes with BF16, F16 and F32. Types
 * of less than a byte (F4, F6_*) are packed: a tensor of them has a whole number of bytes or is
 * refused. Pure functions, safe from any thread. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_BOOL,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_U16,
    DTYPE_I16,
    DTYPE_U32,
    DTYPE_I32,
    DTYPE_U64,
    DTYPE_I64,
    DTYPE_C64,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_F8_E8M0,
    DTYPE_F8_E4M3FNUZ,
    DTYPE_F8_E5M2FNUZ,
    DTYPE_F6_E2M3,
    DTYPE_F6_E3M2,
    DTYPE_F4,
    DTYPE_COUNT
};

const char *dtype_name(enum dtype t); /* "BF16", as in a safetensors header; static */
unsigned dtype_bits(enum dtype t);    /* of one element: 4 .. 64 */
size_t dtype_bytes(enum dtype t);     /* of one element, rounded up */
int dtype_parse(const char *name, size_t len, enum dtype *out); /* -1: no such type; case matters */

/* Scalar conversions. To 16 bits: round to nearest, ties to even, as IEEE 754 does it. A NaN stays
 * a NaN, quiet, with the upper bits of its payload; F16 overflow gives infinity. */
float dtype_bf16_to_f32(uint16_t v);
float dtype_f16_to_f32(uint16_t v);
uint16_t dtype_f32_to_f16(float v);

/* Here and without a branch, so that the compiler makes vectors of a loop over it. */
static inline uint16_t dtype_f32_to_bf16(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    uint32_t even = (u + 0x7fff + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;

    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : even);
}
#endif
