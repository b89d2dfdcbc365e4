// Requantisation of new rows, bit-exact by contract: IEEE divisions, round to nearest even, saturation.

struct NewRow {                                         // 16 consecutive elements of one new row
    u32 words[8];                                       // as given: two elements each
    float x[16];
    u32 non_finite;                                     // NaN counts as 0, an infinity as the largest finite value
};

template <bool BF16>
__device__ __forceinline__ void widen(NewRow& row) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const u32 word = row.words[i / 2];
        row.x[i] = BF16 ? __uint_as_float(i % 2 ? word & 0xFFFF0000 : word << 16) : f16_to_f32(i % 2 ? word >> 16 : word);
    }
}

// Replaces what is not finite, and counts it.
template <bool BF16>
__device__ __forceinline__ void make_finite(NewRow& row) {
    constexpr u32 EXPONENT = BF16 ? 0x7F80 : 0x7C00, LARGEST = BF16 ? 0x7F7F : 0x7BFF;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int shift = 16 * (i % 2);
        const u32 bits = row.words[i / 2] >> shift & 0xFFFF;
        const bool special = (bits & EXPONENT) == EXPONENT, nan = special && (bits & ~EXPONENT & 0x7FFF) != 0;
        const u32 finite = nan ? 0 : special ? LARGEST | (bits & 0x8000) : bits;
        row.words[i / 2] = (row.words[i / 2] & ~(0xFFFFu << shift)) | finite << shift;
        row.non_finite += special;
    }
}

template <bool BF16>
__device__ __forceinline__ NewRow load_new_row(const void* from) {
    NewRow row;
    load_global<4>(row.words, from);
    load_global<4>(row.words + 4, (const u8*)from + 16);
    row.non_finite = 0;
    widen<BF16>(row);
    float poison = 0.0f;                                // 0 * x is NaN where x is not finite
#pragma unroll
    for (int i = 0; i < 16; i++) poison = fmaf(row.x[i], 0.0f, poison);
    if (poison != 0.0f) {
        make_finite<BF16>(row);
        widen<BF16>(row);
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

    // |x| / d; beyond f32's range infinity or NaN.
    __device__ __forceinline__ float magnitude(float x) const {
        const float a = fabsf(x) * factor, quotient = a * reciprocal;
        return fmaf(fmaf(-quotient, d, a), reciprocal, quotient);
    }
};

// The E2M1 magnitude index of q, nearest even, saturating, in the low bits of a float of base ROUND. Indices 0..7 stand
// for 0, .5, 1, 1.5, 2, 3, 4, 6: the index is min(2q, q + 2, q / 2 + 4, 7), and adding 1.5 * 2^23 rounds to an integer.
// An operand of fminf that is NaN, from a quotient out of range, gives way to the 7.
constexpr float ROUND = 12582912.0f;
__device__ __forceinline__ u32 e2m1_index(float q) {
    const float fine = fminf(fmaf(q, 2.0f, ROUND), q + (ROUND + 2.0f));
    return __float_as_uint(fminf(fine, fminf(fmaf(q, 0.5f, ROUND + 4.0f), ROUND + 7.0f)));
}

// Sign bits of eight elements, each at the top of its nibble.
__device__ __forceinline__ u32 nibble_signs(const u32* words) {
    const u32 low = prmt(words[0], words[1], 0xFDB9) & 0x80088008, high = prmt(words[2], words[3], 0xFDB9) & 0x80088008;
    return prmt(low | low >> 8, high | high >> 8, 0x6420);
}

// Codes of eight elements: indices gathered by multiplication, the bases of their floats taken out at once.
__device__ __forceinline__ u32 e2m1_codes(const float* x, const u32* words, const Divisor& divisor) {
    u32 gathered = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) gathered = gathered * 16 + e2m1_index(divisor.magnitude(x[i]));
    constexpr u32 BASES = 0x4B400000u * 0x11111111u;    // ROUND's bits, eight times
    return (gathered - BASES) | nibble_signs(words);
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
    out.codes = {e2m1_codes(row.x, row.words, step), e2m1_codes(row.x + 8, row.words + 4, step)};
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

// Block `block` of a new K or V row of head `head` into the cache at (page, in_page). Which of the two is selected, not
// branched on: a warp holds rows of both, and the work is the same. Params: AppendParams or DecodeParams.
template <bool BF16, typename Params>
__device__ __forceinline__ u32 requantise_row_block(const Params& p, bool is_v, const void* from, long long head, long long page, int in_page, int block) {
    u8* data = is_v ? p.v_data + page * p.v_data_page + head * p.v_data_head + in_page * p.v_data_token
                    : p.k_data + page * p.k_data_page + head * p.k_data_head + in_page * p.k_data_token;
    u8* scale = is_v ? p.v_scales + page * p.v_scales_page + head * p.v_scales_head + v_scale_offset(in_page, block, p.v_scales_token)
                     : p.k_scales + page * p.k_scales_page + head * p.k_scales_head + in_page * p.k_scales_token + block;
    const float g = is_v ? p.v_scale : p.k_scale;
    if (K_FORMAT == V_FORMAT || !is_v) return requantise<K_FORMAT, BF16>(from, g, data, scale, block);
    return requantise<V_FORMAT, BF16>(from, g, data, scale, block);
}
