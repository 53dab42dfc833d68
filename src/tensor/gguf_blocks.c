/* The block formats of GGUF: how many bytes, and the float32 values behind them.
 *
 * Written from the layout of the formats (docs/formats/gguf.md). Each value is computed in float32
 * in the order that the formulas show, without fused operations, so the results do not depend on
 * the machine. */
#include <string.h>

#include "tensor/gguf.h"

typedef void block_fn(const unsigned char *b, float *out);

static uint16_t u16_at(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float f16_at(const unsigned char *p)
{
    return dtype_f16_to_f32(u16_at(p));
}

static void f32_value(const unsigned char *b, float *out)
{
    memcpy(out, b, sizeof *out);
}

static void f16_value(const unsigned char *b, float *out)
{
    *out = f16_at(b);
}

static void bf16_value(const unsigned char *b, float *out)
{
    *out = dtype_bf16_to_f32(u16_at(b));
}

/* 32 elements, d: f16, 16 bytes of nibbles: the low ones are elements 0..15, the high ones 16..31.
 */
static void q4_0_block(const unsigned char *b, float *out)
{
    float d = f16_at(b);

    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((b[2 + j] & 15) - 8);
        out[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

static void q4_1_block(const unsigned char *b, float *out)
{
    float d = f16_at(b), m = f16_at(b + 2);

    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)(b[4 + j] & 15) + m;
        out[j + 16] = d * (float)(b[4 + j] >> 4) + m;
    }
}

/* The fifth bits stand in 4 bytes before the nibbles, bit i for element i. */
static int fifth(const unsigned char *high, int i)
{
    return (high[i / 8] >> i % 8 & 1) << 4;
}

static void q5_0_block(const unsigned char *b, float *out)
{
    float d = f16_at(b);

    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)(((b[6 + j] & 15) | fifth(b + 2, j)) - 16);
        out[j + 16] = d * (float)((b[6 + j] >> 4 | fifth(b + 2, j + 16)) - 16);
    }
}

static void q5_1_block(const unsigned char *b, float *out)
{
    float d = f16_at(b), m = f16_at(b + 2);

    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((b[8 + j] & 15) | fifth(b + 4, j)) + m;
        out[j + 16] = d * (float)(b[8 + j] >> 4 | fifth(b + 4, j + 16)) + m;
    }
}

static void q8_0_block(const unsigned char *b, float *out)
{
    float d = f16_at(b);

    for (int j = 0; j < 32; j++)
        out[j] = d * (float)(signed char)b[2 + j];
}

/* 12 bytes hold eight 6-bit scales and eight 6-bit minima: the first four of each in the low bits
 * of bytes 0..3 and 4..7, the last four in bytes 8..11 with their upper bits on top of the first
 * ones. */
static void scale_and_min(const unsigned char *s, int j, float *scale, float *min)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *min = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (float)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

/* 256 elements: d, dmin: f16, scales, 128 bytes of nibbles; each 32 bytes hold 64 elements. */
static void q4_k_block(const unsigned char *b, float *out)
{
    float d = f16_at(b), dmin = f16_at(b + 2), scale, min;
    const unsigned char *q = b + 16;

    for (int j = 0; j < 8; j++, out += 32) {
        scale_and_min(b + 4, j, &scale, &min);
        scale *= d;
        min *= dmin;
        for (int l = 0; l < 32; l++)
            out[l] = scale * (float)(j % 2 ? q[l] >> 4 : q[l] & 15) - min;
        q += j % 2 ? 32 : 0;
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte l for element l of group
 * j. */
static void q5_k_block(const unsigned char *b, float *out)
{
    float d = f16_at(b), dmin = f16_at(b + 2), scale, min;
    const unsigned char *high = b + 16, *q = b + 48;

    for (int j = 0; j < 8; j++, out += 32) {
        scale_and_min(b + 4, j, &scale, &min);
        scale *= d;
        min *= dmin;
        for (int l = 0; l < 32; l++)
            out[l] =
                scale * (float)((j % 2 ? q[l] >> 4 : q[l] & 15) + (high[l] >> j & 1) * 16) - min;
        q += j % 2 ? 32 : 0;
    }
}

/* 256 elements: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, d: f16.
 * Each half: nibbles l and l + 32 give elements l, l + 32 (low) and l + 64, l + 96 (high). */
static void q6_k_block(const unsigned char *b, float *out)
{
    const unsigned char *low = b, *high = b + 128, *scales = b + 192;
    float d = f16_at(b + 208);

    for (int half = 0; half < 2; half++, low += 64, high += 32, scales += 8, out += 128) {
        for (int l = 0; l < 128; l++) {
            int nibble = l < 64 ? low[l] & 15 : low[l - 64] >> 4;
            int q = (nibble | (high[l % 32] >> l / 32 * 2 & 3) << 4) - 32;

            out[l] = d * (float)(signed char)scales[l / 16] * (float)q;
        }
    }
}

/* Types without a function are known by size only: a file that holds them can be listed, not
 * imported. */
static const struct {
    const char *name;
    short elements, bytes;
    block_fn *fn;
} types[] = {
    [0] = {"F32", 1, 4, f32_value},
    [1] = {"F16", 1, 2, f16_value},
    [2] = {"Q4_0", 32, 18, q4_0_block},
    [3] = {"Q4_1", 32, 20, q4_1_block},
    [6] = {"Q5_0", 32, 22, q5_0_block},
    [7] = {"Q5_1", 32, 24, q5_1_block},
    [8] = {"Q8_0", 32, 34, q8_0_block},
    [9] = {"Q8_1", 32, 36, NULL},
    [10] = {"Q2_K", 256, 84, NULL},
    [11] = {"Q3_K", 256, 110, NULL},
    [12] = {"Q4_K", 256, 144, q4_k_block},
    [13] = {"Q5_K", 256, 176, q5_k_block},
    [14] = {"Q6_K", 256, 210, q6_k_block},
    [15] = {"Q8_K", 256, 292, NULL},
    [16] = {"IQ2_XXS", 256, 66, NULL},
    [17] = {"IQ2_XS", 256, 74, NULL},
    [18] = {"IQ3_XXS", 256, 98, NULL},
    [19] = {"IQ1_S", 256, 50, NULL},
    [20] = {"IQ4_NL", 32, 18, NULL},
    [21] = {"IQ3_S", 256, 110, NULL},
    [22] = {"IQ2_S", 256, 82, NULL},
    [23] = {"IQ4_XS", 256, 136, NULL},
    [24] = {"I8", 1, 1, NULL},
    [25] = {"I16", 1, 2, NULL},
    [26] = {"I32", 1, 4, NULL},
    [27] = {"I64", 1, 8, NULL},
    [28] = {"F64", 1, 8, NULL},
    [29] = {"IQ1_M", 256, 56, NULL},
    [30] = {"BF16", 1, 2, bf16_value},
    [34] = {"TQ1_0", 256, 54, NULL},
    [35] = {"TQ2_0", 256, 66, NULL},
    [39] = {"MXFP4", 32, 17, NULL},
};

const char *gguf_type_name(uint32_t type)
{
    return type < sizeof types / sizeof *types ? types[type].name : NULL;
}

int gguf_type_block(uint32_t type, int *block_elements, int *block_bytes)
{
    if (!gguf_type_name(type))
        return -1;
    *block_elements = types[type].elements;
    *block_bytes = types[type].bytes;
    return 0;
}

int gguf_dequantise(uint32_t type, const void *blocks, int64_t n, float *out)
{
    const unsigned char *b = blocks;

    if (!gguf_type_name(type) || !types[type].fn)
        return -1;
    for (int64_t i = 0; i < n; i += types[type].elements, b += types[type].bytes)
        types[type].fn(b, out + i);
    return 0;
}
