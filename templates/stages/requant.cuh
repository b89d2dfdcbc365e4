// Requantisation of new rows, bit-exact by contract: IEEE divisions, round to nearest even, saturation.

struct NewRow {                                         // 16 consecutive elements of one new row
    float x[16];
    u32 non_finite;                                     // NaN counts as 0, an infinity as the largest finite value
};

template <bool BF16>
__device__ __forceinline__ NewRow load_new_row(const void* from) {
    u32 words[8];
    load_global<4>(words, from);
    load_global<4>(words + 4, (const u8*)from + 16);
    NewRow row;
    row.non_finite = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const u32 bits = words[i / 2] >> (16 * (i % 2)) & 0xFFFF;
        constexpr u32 EXPONENT = BF16 ? 0x7F80 : 0x7C00, LARGEST = BF16 ? 0x7F7F : 0x7BFF;
        const bool special = (bits & EXPONENT) == EXPONENT;
        const bool nan = special && (bits & ~EXPONENT & 0x7FFF) != 0;
        const u32 finite = nan ? 0 : special ? LARGEST | (bits & 0x8000) : bits;
        row.non_finite += special;
        row.x[i] = BF16 ? bf16_to_f32(finite) : f16_to_f32(finite);
    }
    return row;
}

// RN(x / d) for many x and one d: the reciprocal once, then one Newton step on the quotient, which is correctly rounded
// while nothing overflows or underflows (Markstein, IBM J. Res. Dev. 34, 1990). A power of two keeps d away from both
// ends; quotients that are then still out of range are far from every rounding boundary of E2M1.
struct Divisor {
    float factor, d, reciprocal;

    __device__ __forceinline__ explicit Divisor(float divisor)
        : factor(divisor < 0x1p-60f ? 0x1p64f : divisor > 0x1p60f ? 0x1p-64f : 1.0f), d(divisor * factor), reciprocal(__frcp_rn(d)) {}

    // |x| / d, cut off somewhere above 6.
    __device__ __forceinline__ float magnitude(float x) const {
        const float a = fabsf(x) * factor, quotient = fminf(a * reciprocal, 8.0f);
        return fmaf(fmaf(-quotient, d, a), reciprocal, quotient);
    }
};

// E2M1 code of x / d, nearest even, saturating at 6, the sign kept on zero. Magnitude indices 0..7 stand for
// 0, .5, 1, 1.5, 2, 3, 4, 6: steps of .5 below 2, of 1 below 4, of 2 above. Adding 1.5 * 2^23 rounds to an integer.
__device__ __forceinline__ u32 e2m1_code(float x, const Divisor& divisor) {
    constexpr float ROUND = 12582912.0f;
    const float a = fminf(divisor.magnitude(x), 6.0f);
    const float per_step = a < 2.0f ? 2.0f : a < 4.0f ? 1.0f : 0.5f;
    const u32 offset = a < 2.0f ? 0 : a < 4.0f ? 2 : 4;
    const u32 index = (__float_as_uint(fmaf(a, per_step, ROUND)) & 0xF) + offset;
    return index | (__float_as_uint(x) >> 28 & 8);
}

struct Nvfp4Block {
    uint2 codes;
    u32 scale;
};

__device__ __forceinline__ Nvfp4Block quantise_nvfp4(const NewRow& row, float g) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) largest = fmaxf(largest, fabsf(row.x[i]));
    Nvfp4Block out = { {0, 0}, f32x2_to_e4m3x2(__fdiv_rn(largest, __fmul_rn(6.0f, g)), 0.0f) & 0xFF};
    if (out.scale == 0) return out;
    const Divisor step(__fmul_rn(e4m3_to_f32(out.scale), g));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out.codes.x |= e2m1_code(row.x[i], step) << (4 * i);
        out.codes.y |= e2m1_code(row.x[i + 8], step) << (4 * i);
    }
    return out;
}

__device__ __forceinline__ uint4 quantise_fp8(const NewRow& row, float g) {
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float* x = row.x + 4 * i;
        out[i] = f32x2_to_e4m3x2(__fdiv_rn(x[0], g), __fdiv_rn(x[1], g)) | f32x2_to_e4m3x2(__fdiv_rn(x[2], g), __fdiv_rn(x[3], g)) << 16;
    }
    return {out[0], out[1], out[2], out[3]};
}

// Block `block` (16 elements) of a new row to its cache row: codes at `data`, scale at `scale`.
// Returns the count of non-finite inputs.
template <Format FORMAT, bool BF16>
__device__ __forceinline__ u32 requantise(const void* from, float g, u8* data, u8* scale, int block) {
    const NewRow row = load_new_row<BF16>((const u8*)from + 32 * block);
    if constexpr (FORMAT == Format::nvfp4) {
        const Nvfp4Block out = quantise_nvfp4(row, g);
        *(uint2*)(data + 8 * block) = out.codes;
        *scale = (u8)out.scale;
    } else {
        *(uint4*)(data + 16 * block) = quantise_fp8(row, g);
    }
    return row.non_finite;
}
