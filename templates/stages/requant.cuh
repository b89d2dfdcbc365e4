// Requantisation of new rows, bit-exact by contract: IEEE divisions, round to nearest even, saturation.

struct NewRow {                                         // 16 consecutive elements of one new row
    u32 words[8];                                       // two elements each, as given
    __device__ __forceinline__ explicit NewRow(const void* from) {
        load_global<4>(words, from);
        load_global<4>(words + 4, (const u8*)from + 16);
    }
};

template <bool BF16>
__device__ __forceinline__ float element(const NewRow& row, int i) {
    const u32 word = row.words[i / 2];
    return BF16 ? __uint_as_float(i % 2 ? word & 0xFFFF0000 : word << 16) : f16_to_f32(i % 2 ? word >> 16 : word);
}

// Bits of the largest magnitude; those of a NaN where there is one.
template <bool BF16>
__device__ __forceinline__ u32 largest_magnitude(const NewRow& row) {
    constexpr u32 MAGNITUDES = 0x7FFF7FFF;
    u32 largest = row.words[0] & MAGNITUDES;
#pragma unroll
    for (int i = 1; i < 8; i++) largest = max_x2<BF16>(largest, row.words[i] & MAGNITUDES);
    return max_x2<BF16>(largest, largest >> 16) & 0xFFFF;
}

// Replaces what is not finite, and counts it: NaN becomes 0, an infinity the largest finite value.
template <bool BF16>
__device__ __forceinline__ u32 make_finite(NewRow& row) {
    constexpr u32 EXPONENT = BF16 ? 0x7F80 : 0x7C00, LARGEST = BF16 ? 0x7F7F : 0x7BFF;
    u32 non_finite = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int shift = 16 * (i % 2);
        const u32 bits = row.words[i / 2] >> shift & 0xFFFF;
        const bool special = (bits & EXPONENT) == EXPONENT, nan = special && (bits & ~EXPONENT & 0x7FFF) != 0;
        const u32 finite = nan ? 0 : special ? LARGEST | (bits & 0x8000) : bits;
        row.words[i / 2] = (row.words[i / 2] & ~(0xFFFFu << shift)) | finite << shift;
        non_finite += special;
    }
    return non_finite;
}

// x / d for many x and one d, by the reciprocal and what it lacks of 1 / d. Where x is an f16 or bf16 number and x / d within six
// units of a border between codes, this is the IEEE quotient (tuner/reference/tests/quotient.rs asks for all of them), so
// codes are the same. A power of two, by which x is multiplied too, keeps d away from both ends of the exponents.
struct Divisor {
    float factor, reciprocal, rest;

    __device__ __forceinline__ explicit Divisor(float divisor)
        : factor(divisor < 0x1p-60f ? 0x1p64f : divisor > 0x1p60f ? 0x1p-64f : 1.0f) {
        const float d = divisor * factor;
        reciprocal = __frcp_rn(d);
        const float error = fmaf(-reciprocal, d, 1.0f);
        rest = fmaf(error * reciprocal, error, error * reciprocal);
    }

    // |x| / divisor, of x * factor.
    __device__ __forceinline__ float magnitude(float x) const { return fmaf(fabsf(x), reciprocal, fabsf(x) * rest); }
};

// The E2M1 magnitude index of q < 7, nearest even, in the low bits of a float of base ROUND. Indices 0..7 stand for 0, .5,
// 1, 1.5, 2, 3, 4, 6: the index is min(2q, q + 2, q / 2 + 4), and adding 1.5 * 2^23 rounds to an integer.
constexpr float ROUND = 12582912.0f;
__device__ __forceinline__ u32 e2m1_index(float q) {
    // Positive floats are in the order of their bits, of which one instruction takes the least of three.
    return __vimin3_u32(__float_as_uint(fmaf(q, 2.0f, ROUND)), __float_as_uint(q + (ROUND + 2.0f)), __float_as_uint(fmaf(q, 0.5f, ROUND + 4.0f)));
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

template <bool BF16>
__device__ __forceinline__ Nvfp4Block quantise_nvfp4(const NewRow& row, u32 largest_bits, float g) {
    const float largest = BF16 ? bf16_to_f32(largest_bits) : f16_to_f32(largest_bits);
    Nvfp4Block out = { {0, 0}, f32x2_to_e4m3x2(__fdiv_rn(largest, __fmul_rn(6.0f, g)), 0.0f) & 0xFF};
    if (out.scale == 0) return out;
    const float divisor = __fmul_rn(e4m3_to_f32(out.scale), g);
    const Divisor step(divisor);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = element<BF16>(row, i);
    // A scale that is normal and did not saturate is at most 1/16 off, and quotients stay below 7. Others saturate at 6.5.
    if (out.scale < 0x08 || out.scale == 0x7E || step.factor != 1.0f)
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = fminf(fabsf(x[i]), 6.5f * divisor) * step.factor;
    out.codes = {e2m1_codes(x, row.words, step), e2m1_codes(x + 8, row.words + 4, step)};
    return out;
}

template <bool BF16>
__device__ __forceinline__ uint4 quantise_fp8(const NewRow& row, float g) {
    u32 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        auto quotient = [&](int e) { return __fdiv_rn(element<BF16>(row, 4 * i + e), g); };
        out[i] = f32x2_to_e4m3x2(quotient(0), quotient(1)) | f32x2_to_e4m3x2(quotient(2), quotient(3)) << 16;
    }
    return {out[0], out[1], out[2], out[3]};
}

// 16 new elements to `data` and `scale` in the cache, if they are `kept`. Returns the count of non-finite ones.
template <Format FORMAT, bool BF16>
__device__ __forceinline__ u32 requantise(NewRow& row, float g, u8* data, u8* scale, bool kept) {
    u32 largest = largest_magnitude<BF16>(row), non_finite = 0;
    if (largest >= (BF16 ? 0x7F80 : 0x7C00)) {
        non_finite = make_finite<BF16>(row);
        largest = largest_magnitude<BF16>(row);
    }
    if constexpr (FORMAT == Format::nvfp4) {
        const Nvfp4Block out = quantise_nvfp4<BF16>(row, largest, g);
        if (kept) store_global(data, out.codes), store_global_byte(scale, out.scale);
    } else {
        const uint4 out = quantise_fp8<BF16>(row, g);
        if (kept) store_global(data, out);
    }
    return non_finite;
}

// Block `block` (16 elements) of a token's new K and V rows into the cache at (page, in_page) of head `head`, if it is `kept`.
// Params: AppendParams or DecodeParams.
template <bool BF16, typename Params>
__device__ __forceinline__ u32 requantise_token_block(const Params& p, NewRow& k, NewRow& v, long long head, u32 page, int in_page, int block, bool kept) {
    constexpr int K_BYTES = K_FORMAT == Format::nvfp4 ? 8 : 16, V_BYTES = V_FORMAT == Format::nvfp4 ? 8 : 16;
    auto place = [&](u8* base, long long page_stride, long long head_stride, long long token_stride) {
        return (u8*)advance(advance(base + head * head_stride, page, page_stride), in_page, token_stride);
    };
    u8* k_scale = place(p.k_scales, p.k_scales_page, p.k_scales_head, p.k_scales_token) + block;
    u8* v_scale = place(p.v_scales, p.v_scales_page, p.v_scales_head, 0) + v_scale_offset(in_page, block, p.v_scales_token);
    u8* k_data = place(p.k_data, p.k_data_page, p.k_data_head, p.k_data_token) + K_BYTES * block;
    u8* v_data = place(p.v_data, p.v_data_page, p.v_data_head, p.v_data_token) + V_BYTES * block;
    const u32 non_finite = requantise<K_FORMAT, BF16>(k, p.k_scale, k_data, k_scale, kept) + requantise<V_FORMAT, BF16>(v, p.v_scale, v_data, v_scale, kept);
    return kept ? non_finite : 0;
}
