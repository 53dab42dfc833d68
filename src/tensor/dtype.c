#include "tensor/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
} types[DTYPE_COUNT] = {
    [DTYPE_BF16] = {"BF16", 16},
    [DTYPE_F16] = {"F16", 16},
    [DTYPE_F32] = {"F32", 32},
    [DTYPE_F64] = {"F64", 64},
    [DTYPE_BOOL] = {"BOOL", 8},
    [DTYPE_U8] = {"U8", 8},
    [DTYPE_I8] = {"I8", 8},
    [DTYPE_U16] = {"U16", 16},
    [DTYPE_I16] = {"I16", 16},
    [DTYPE_U32] = {"U32", 32},
    [DTYPE_I32] = {"I32", 32},
    [DTYPE_U64] = {"U64", 64},
    [DTYPE_I64] = {"I64", 64},
    [DTYPE_C64] = {"C64", 64},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 8},
    [DTYPE_F8_E5M2] = {"F8_E5M2", 8},
    [DTYPE_F8_E8M0] = {"F8_E8M0", 8},
    [DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [DTYPE_F6_E2M3] = {"F6_E2M3", 6},
    [DTYPE_F6_E3M2] = {"F6_E3M2", 6},
    [DTYPE_F4] = {"F4", 4},
};

const char *dtype_name(enum dtype t)
{
    return types[t].name;
}

unsigned dtype_bits(enum dtype t)
{
    return types[t].bits;
}

size_t dtype_bytes(enum dtype t)
{
    return (types[t].bits + 7) / 8;
}

int dtype_parse(const char *name, size_t len, enum dtype *out)
{
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (strlen(types[t].name) == len && memcmp(types[t].name, name, len) == 0) {
            *out = (enum dtype)t;
            return 0;
        }
    }
    return -1;
}

static uint32_t bits_of(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float v;

    memcpy(&v, &u, sizeof v);
    return v;
}

float dtype_bf16_to_f32(uint16_t v)
{
    return float_of((uint32_t)v << 16);
}

float dtype_f16_to_f32(uint16_t v)
{
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, exponent = v >> 10 & 31, fraction = v & 0x3ff;

    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in float32 */
        float magnitude = (float)fraction * 0x1p-24f;

        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t dtype_f32_to_f16(float v)
{
    uint32_t u = bits_of(v), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;

    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x1ff));
    if (mag >= 0x477ff000) /* 65520: half way to the next power rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (mag <
        0x38800000) { /* below 2^-14: count in units of 2^-24; adding 1.5 * 2^23 rounds to even */
        float shifted = float_of(mag) * 0x1p24f + 0x1.8p23f;

        return (uint16_t)(sign | (bits_of(shifted) & 0x7ff));
    }
    mag += 0xfff + (mag >> 13 & 1);
    return (uint16_t)(sign | (mag - (112u << 23)) >> 13);
}
