// Requantisation of new rows, bit-exact by contract: IEEE divisions, round to nearest even, saturation.
// A block of 16 elements lies in LANES neighbouring lanes: in one where there are many blocks, in eight where all wait for a few.

template <int LANES>
struct NewBlock {                                       // this lane's consecutive elements of one block
    static constexpr int ELEMENTS = 16 / LANES, WORDS = ELEMENTS / 2;
    u32 words[WORDS];                                   // two elements each, as given
    __device__ __forceinline__ explicit NewBlock(const void* from) {
#pragma unroll
        for (int w = 0; w < WORDS; w += 4) load_global<WORDS < 4 ? WORDS : 4>(words + w, (const u8*)from + 4 * w);
    }
};

template <bool BF16, int LANES>
__device__ __forceinline__ float element(const NewBlock<LANES>& block, int i) {
    const u32 word = block.words[i / 2];
    return BF16 ? __uint_as_float(i % 2 ? word & 0xFFFF0000 : word << 16) : f16_to_f32(i % 2 ? word >> 16 : word);
}

// Bits of this lane's largest magnitude; those of a NaN where there is one.
template <bool BF16, int LANES>
__device__ __forceinline__ u32 largest_magnitude(const NewBlock<LANES>& block) {
    constexpr u32 MAGNITUDES = 0x7FFF7FFF;
    u32 largest = block.words[0] & MAGNITUDES;
#pragma unroll
    for (int i = 1; i < NewBlock<LANES>::WORDS; i++) largest = max_x2<BF16>(largest, block.words[i] & MAGNITUDES);
    return max_x2<BF16>(largest, largest >> 16) & 0xFFFF;
}

// Replaces what is not finite, and counts it: NaN becomes 0, an infinity the largest finite value.
template <bool BF16, int LANES>
__device__ __forceinline__ u32 make_finite(NewBlock<LANES>& block) {
    constexpr u32 EXPONENT = BF16 ? 0x7F80 : 0x7C00, LARGEST = BF16 ? 0x7F7F : 0x7BFF;
    u32 non_finite = 0;
#pragma unroll
    for (int i = 0; i < NewBlock<LANES>::ELEMENTS; i++) {
        const int shift = 16 * (i % 2);
        const u32 bits = block.words[i / 2] >> shift & 0xFFFF;
        const bool special = (bits & EXPONENT) == EXPONENT, nan = special && (bits & ~EXPONENT & 0x7FFF) != 0;
        const u32 finite = nan ? 0 : special ? LARGEST | (bits & 0x8000) : bits;
        block.words[i / 2] = (block.words[i / 2] & ~(0xFFFFu << shift)) | finite << shift;
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

// Sign bits of N elements (two or eight), each at the top of its nibble.
template <int N>
__device__ __forceinline__ u32 nibble_signs(const u32* words) {
    if constexpr (N == 2) return words[0] >> 12 & 0x8 | words[0] >> 24 & 0x80;
    const u32 low = prmt(words[0], words[1], 0xFDB9) & 0x80088008, high = prmt(words[2], words[3], 0xFDB9) & 0x80088008;
    return prmt(low | low >> 8, high | high >> 8, 0x6420);
}

// Codes of N elements: by conversion where there is one; elsewhere indices are gathered by multiplication, and the bases of
// their floats taken out at once.
template <int N>
__device__ __forceinline__ u32 e2m1_codes(const float* x, const u32* words, const Divisor& divisor) {
    u32 codes = 0;
    if constexpr (E2M1_CONVERT) {
#pragma unroll
        for (int i = N - 2; i >= 0; i -= 2)
            codes = codes << 8 | f32x2_to_e2m1x2(divisor.magnitude(x[i]), divisor.magnitude(x[i + 1]));
    } else {
#pragma unroll
        for (int i = N - 1; i >= 0; i--) codes = codes * 16 + e2m1_index(divisor.magnitude(x[i]));
        codes -= 0x4B400000u * (0x11111111u >> (32 - 4 * N));   // ROUND's bits, N times
    }
    return codes | nibble_signs<N>(words);
}

template <int LANES>
struct Nvfp4Block {                                     // this lane's codes, eight a word
    u32 codes[LANES == 1 ? 2 : 1];
    u32 scale;
};

// `largest_bits`: of the whole block.
template <bool BF16, int LANES>
__device__ __forceinline__ Nvfp4Block<LANES> quantise_nvfp4(const NewBlock<LANES>& block, u32 largest_bits, float g) {
    constexpr int N = NewBlock<LANES>::ELEMENTS, AT_ONCE = N < 8 ? N : 8;
    const float largest = BF16 ? bf16_to_f32(largest_bits) : f16_to_f32(largest_bits);
    Nvfp4Block<LANES> out = {{}, f32x2_to_e4m3x2(__fdiv_rn(largest, __fmul_rn(6.0f, g)), 0.0f) & 0xFF};
    if (out.scale == 0) return out;
    const float divisor = __fmul_rn(e4m3_to_f32(out.scale), g);
    const Divisor step(divisor);
    float x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = element<BF16>(block, i);
    // A scale that is normal and did not saturate is at most 1/16 off, and quotients stay below 7. Others saturate at 6.5.
    if (out.scale < 0x08 || out.scale == 0x7E || step.factor != 1.0f)
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = fminf(fabsf(x[i]), 6.5f * divisor) * step.factor;
#pragma unroll
    for (int i = 0; i < N; i += AT_ONCE) out.codes[i / 8] = e2m1_codes<AT_ONCE>(x + i, block.words + i / 2, step);
    return out;
}

template <bool BF16, int LANES>
__device__ __forceinline__ void quantise_fp8(const NewBlock<LANES>& block, float g, u32* pairs) {
#pragma unroll
    for (int i = 0; i < NewBlock<LANES>::WORDS; i++)
        pairs[i] = f32x2_to_e4m3x2(__fdiv_rn(element<BF16>(block, 2 * i), g), __fdiv_rn(element<BF16>(block, 2 * i + 1), g));
}

// Where a block goes in the cache: its elements, and its scale (NVFP4).
struct Place {
    u8 *data, *scale;
};

// `lane`: of the block's LANES, which must all be here. Stored if `kept`. Returns the count of this lane's non-finite elements.
template <Format FORMAT, bool BF16, int LANES>
__device__ __forceinline__ u32 requantise(NewBlock<LANES>& block, float g, Place to, int lane, bool kept) {
    u32 largest = largest_magnitude<BF16>(block), non_finite = 0;
    if (largest >= (BF16 ? 0x7F80 : 0x7C00)) {
        non_finite = make_finite<BF16>(block);
        largest = largest_magnitude<BF16>(block);
    }
    if constexpr (FORMAT == Format::nvfp4) {
#pragma unroll
        for (int lanes = 1; lanes < LANES; lanes *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, lanes));
        const Nvfp4Block<LANES> out = quantise_nvfp4<BF16>(block, largest, g);
        if (kept) {
            if constexpr (LANES == 1) store_global(to.data, uint2{out.codes[0], out.codes[1]});
            else store_global_byte(to.data + lane, out.codes[0]);
            if (lane == 0) store_global_byte(to.scale, out.scale);
        }
    } else {
        u32 pairs[NewBlock<LANES>::WORDS];
        quantise_fp8<BF16>(block, g, pairs);
        auto quad = [&](int i) { return pairs[i] | pairs[i + 1] << 16; };
        if (kept) {
            if constexpr (LANES == 1) store_global(to.data, uint4{quad(0), quad(2), quad(4), quad(6)});
            else store_global_half(to.data + 2 * lane, pairs[0]);
        }
    }
    return kept ? non_finite : 0;
}

// The row of head `head` at (page, in_page).
__device__ __forceinline__ u8* cache_row(u8* base, long long page_stride, long long head_stride, long long token_stride, long long head, u32 page, int in_page) {
    return (u8*)advance(advance(base + head * head_stride, page, page_stride), in_page, token_stride);
}

// Places of block `block` (16 elements) of a token's K and V rows. Params: AppendParams or DecodeParams.
template <Format FORMAT>
constexpr int BLOCK_BYTES = FORMAT == Format::nvfp4 ? 8 : 16;
template <typename Params>
__device__ __forceinline__ Place k_place(const Params& p, long long head, u32 page, int in_page, int block) {
    return {cache_row(p.k_data, p.k_data_page, p.k_data_head, p.k_data_token, head, page, in_page) + BLOCK_BYTES<K_FORMAT> * block,
            cache_row(p.k_scales, p.k_scales_page, p.k_scales_head, p.k_scales_token, head, page, in_page) + block};
}
template <typename Params>
__device__ __forceinline__ Place v_place(const Params& p, long long head, u32 page, int in_page, int block) {
    return {cache_row(p.v_data, p.v_data_page, p.v_data_head, p.v_data_token, head, page, in_page) + BLOCK_BYTES<V_FORMAT> * block,
            cache_row(p.v_scales, p.v_scales_page, p.v_scales_head, 0, head, page, in_page) + v_scale_offset(in_page, block, p.v_scales_token)};
}
