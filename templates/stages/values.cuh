// O += P V for 16 tokens: dequantise V with token pairs side by side, multiply.

// Magnitudes of elements 0..3 of two tokens, and the two bytes that hold their codes side by side: odd elements' signs
// are on top of those bytes, even elements' four bits lower.
__device__ __forceinline__ void pair_tokens(u32 a, u32 b, u32 codes, int pair, u32 (*out)[2]) {
    const u32 even = prmt(a, b, 0x6240) ^ (shift_left(codes, 4) & 0x80808080), odd = prmt(a, b, 0x7351) ^ (codes & 0x80808080);
    out[0][pair] = e4m3x2_to_f16x2(even), out[2][pair] = e4m3x2_hi_to_f16x2(even);
    out[1][pair] = e4m3x2_to_f16x2(odd), out[3][pair] = e4m3x2_hi_to_f16x2(odd);
}

// f16x2 registers of V word W for each token pair: out[e][0] = tokens (t, t + 4), out[e][1] = (t + 8, t + 12),
// element e of the word.
template <int W>
__device__ __forceinline__ void v_word_to_f16(const VBlock& v, u32 table, u32 (&out)[word_elements(V_FORMAT)][2]) {
    constexpr int SCALE = W / 2;                        // two words a block of 16
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const u32 first = v.words[2 * pair][W], second = v.words[2 * pair + 1][W];
        if constexpr (V_DEQUANT == Dequant::table) {
            const uint2 a = pick_magnitudes(table_entry(table, v.scales[2 * pair][SCALE]), first);
            const uint2 b = pick_magnitudes(table_entry(table, v.scales[2 * pair + 1][SCALE]), second);
            pair_tokens(a.x, b.x, prmt(first, second, 0x5140), pair, out);
            pair_tokens(a.y, b.y, prmt(first, second, 0x7362), pair, out + 4);
        } else if constexpr (V_FORMAT == Format::fp8_e4m3) {
            const u32 bytes[2] = {prmt(first, second, 0x5140), prmt(first, second, 0x7362)};
#pragma unroll
            for (int i = 0; i < 2; i++)
                out[2 * i][pair] = e4m3x2_to_f16x2(bytes[i]), out[2 * i + 1][pair] = e4m3x2_hi_to_f16x2(bytes[i]);
        } else {
            // The two tokens' scales of this block side by side.
            const u32 scale = e4m3x2_to_f16x2(prmt(v.scales[2 * pair][SCALE], v.scales[2 * pair + 1][SCALE], 0x40));
            u32 codes[8];
            if constexpr (V_DEQUANT == Dequant::place) {
                u32 low[4], high[4];
                place_nibble_pairs(prmt(first, second, 0x5410), low);
                place_nibble_pairs(prmt(first, second, 0x7632), high);
#pragma unroll
                for (int i = 0; i < 4; i++) codes[i] = low[i], codes[i + 4] = high[i];
            }
            if constexpr (V_DEQUANT == Dequant::convert) convert_code_pairs(first, second, codes);
#pragma unroll
            for (int e = 0; e < word_elements(V_FORMAT); e++) out[e][pair] = mul_f16x2(codes[e], scale);
        }
    }
}

template <int W>
__device__ __forceinline__ void add_values(const VBlock& v, u32 table, const u32 (&p)[Q_BLOCKS][P_REGISTERS], State& state) {
    constexpr int ELEMENTS = word_elements(V_FORMAT);
    u32 x[ELEMENTS][2];
    v_word_to_f16<W>(v, table, x);
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++) {
        if constexpr (SWAPPED) {
#pragma unroll
            for (int e = 0; e < ELEMENTS; e += 2)
                mma_f16(state.out[(W * ELEMENTS + e) / 2][b], x[e][0], x[e + 1][0], x[e][1], x[e + 1][1], p[b][0], p[b][1]);
        } else {
#pragma unroll
            for (int e = 0; e < ELEMENTS; e++)
                mma_f16(state.out[W * ELEMENTS + e][b], p[b][0], p[b][1], p[b][2], p[b][3], x[e][0], x[e][1]);
        }
    }
    if constexpr (W + 1 < V_WORDS) add_values<W + 1>(v, table, p, state);
}
