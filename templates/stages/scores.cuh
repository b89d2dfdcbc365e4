// S = K Q^T for 16 tokens: dequantise K, multiply, leave raw fp32 scores.

typedef float Scores[HALVES][Q_BLOCKS][4];

// Four f16x2 registers (NVFP4) or two (FP8) of K word `w` of one row, scaled.
template <int W>
__device__ __forceinline__ void k_word_to_f16(const KBlock& k, u32 table, int half, u32* out) {
    constexpr int SCALE = K_CHUNK_SCALES ? W % K_CHUNK_WORDS / 2 : 0;   // of the chunk's scales: two words a block
    const u32 word = k.words[half][W];
    if constexpr (K_DEQUANT == Dequant::table) {
        const uint2 bytes = pick_e4m3(table_entry(table, k.scales[half][W / K_CHUNK_WORDS], SCALE), word);
        out[0] = e4m3x2_to_f16x2(bytes.x), out[1] = e4m3x2_hi_to_f16x2(bytes.x);
        out[2] = e4m3x2_to_f16x2(bytes.y), out[3] = e4m3x2_hi_to_f16x2(bytes.y);
    } else if constexpr (K_FORMAT == Format::fp8_e4m3) {
        out[0] = e4m3x2_to_f16x2(word), out[1] = e4m3x2_hi_to_f16x2(word);
    } else {
        u32 codes[4];
        const u32 pair = e4m3x2_to_f16x2(k.scales[half][W / K_CHUNK_WORDS]);
        const u32 scale = prmt(pair, pair, SCALE ? 0x3232 : 0x1010);
        if constexpr (K_DEQUANT == Dequant::place) place_nibble_pairs(word, codes);
        if constexpr (K_DEQUANT == Dequant::convert) convert_codes(word, codes);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = mul_f16x2(codes[i], scale);
    }
}

// Two E4M3 registers (the two k halves of a k32 step) of step STEP of one row.
template <int STEP>
__device__ __forceinline__ uint2 k_step_to_e4m3(const KBlock& k, u32 table, int half) {
    if constexpr (K_DEQUANT == Dequant::table) {
        return pick_e4m3(table_entry(table, k.scales[half][STEP / K_CHUNK_WORDS], STEP % K_CHUNK_WORDS / 2), k.words[half][STEP]);
    }
    return {k.words[half][2 * STEP], k.words[half][2 * STEP + 1]};
}

__device__ __forceinline__ void multiply_f16(Scores& s, const Queries& q, int step, const u32* low, const u32* high) {
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++) {
        const u32* operand = q.operand[b][step];
        if constexpr (SWAPPED) {
            mma_f16(s[0][b], low[0], high[0], low[1], high[1], operand[0], operand[1]);
        } else {
            mma_f16(s[0][b], operand[0], operand[1], operand[2], operand[3], low[0], low[1]);
            mma_f16(s[1][b], operand[0], operand[1], operand[2], operand[3], high[0], high[1]);
        }
    }
}

__device__ __forceinline__ void multiply_e4m3(Scores& s, const Queries& q, int step, uint2 low, uint2 high) {
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++) {
        const u32* operand = q.operand[b][step];
        if constexpr (SWAPPED) {
            mma_e4m3(s[0][b], low.x, high.x, low.y, high.y, operand[0], operand[1]);
        } else {
            mma_e4m3(s[0][b], operand[0], operand[1], operand[2], operand[3], low.x, low.y);
            mma_e4m3(s[1][b], operand[0], operand[1], operand[2], operand[3], high.x, high.y);
        }
    }
}

template <int W>
__device__ __forceinline__ void score_words_f16(const KBlock& k, u32 table, const Queries& q, Scores& s) {
    constexpr int REGISTERS = word_elements(K_FORMAT) / 2;
    u32 low[REGISTERS], high[REGISTERS];
    k_word_to_f16<W>(k, table, 0, low);
    k_word_to_f16<W>(k, table, 1, high);
#pragma unroll
    for (int i = 0; i < REGISTERS / 2; i++) multiply_f16(s, q, W * REGISTERS / 2 + i, low + 2 * i, high + 2 * i);
    if constexpr (W + 1 < K_WORDS) score_words_f16<W + 1>(k, table, q, s);
}

template <int STEP>
__device__ __forceinline__ void score_steps_e4m3(const KBlock& k, u32 table, const Queries& q, Scores& s) {
    multiply_e4m3(s, q, STEP, k_step_to_e4m3<STEP>(k, table, 0), k_step_to_e4m3<STEP>(k, table, 1));
    if constexpr (STEP + 1 < Q_E4M3_STEPS) score_steps_e4m3<STEP + 1>(k, table, q, s);
}

// wgmma's A operand of a 16-token block: E4M3 bytes or f16 pairs of all steps.
typedef u32 Operand[Q_STEPS][4];

template <int STEP>
__device__ __forceinline__ void k_to_e4m3(const KBlock& k, u32 table, Operand& a) {
    const uint2 low = k_step_to_e4m3<STEP>(k, table, 0), high = k_step_to_e4m3<STEP>(k, table, 1);
    a[STEP][0] = low.x, a[STEP][1] = high.x, a[STEP][2] = low.y, a[STEP][3] = high.y;
    if constexpr (STEP + 1 < Q_E4M3_STEPS) k_to_e4m3<STEP + 1>(k, table, a);
}

template <int W>
__device__ __forceinline__ void k_to_f16(const KBlock& k, u32 table, Operand& a) {
    constexpr int STEPS = word_elements(K_FORMAT) / 4;  // of a K word
    u32 low[2 * STEPS], high[2 * STEPS];
    k_word_to_f16<W>(k, table, 0, low);
    k_word_to_f16<W>(k, table, 1, high);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 (&step)[4] = a[W * STEPS + i];
        step[0] = low[2 * i], step[1] = high[2 * i], step[2] = low[2 * i + 1], step[3] = high[2 * i + 1];
    }
    if constexpr (W + 1 < K_WORDS) k_to_f16<W + 1>(k, table, a);
}

// Hopper's FP8 tensor cores keep 13 fraction bits while they accumulate: sums are cut into chains of so many steps, and
// the chains added in fp32. With chains of 128 elements log-sum-exps were off by more than 1e-3 of their size.
// f16 products are kept whole.
constexpr int CHAIN_STEPS = K_F16 ? Q_STEPS : 2;
constexpr int CHAINS = K_MMA == Mma::wgmma ? (Q_STEPS + CHAIN_STEPS - 1) / CHAIN_STEPS : 1;

__device__ __forceinline__ void clear_scores(Scores& s) {
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[h][b][i] = 0.0f;
}

// Starts the chains of a 16-token block.
__device__ __forceinline__ void start_chains(const Operand& a, u32 shared_q, Scores (&chains)[CHAINS]) {
    const Descriptor queries(shared_q, Q_BLOCKS * 128, 128);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Q_STEPS; step++) {
        const u64 b = queries.at(step * 2 * Q_BLOCKS * 128);
        const bool accumulate = step % CHAIN_STEPS > 0;
        if constexpr (K_F16) wgmma_f16<8 * Q_BLOCKS>(chains[step / CHAIN_STEPS][0], a[step], b, accumulate);
        else wgmma_e4m3<8 * Q_BLOCKS>(chains[step / CHAIN_STEPS][0], a[step], b, accumulate);
    }
    wgmma_commit();
}

// Waits for the chains of a block and adds them.
__device__ __forceinline__ void finish_chains(const Scores (&chains)[CHAINS], Scores& s) {
    wgmma_wait();
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[0][b][i] = chains[0][0][b][i];
#pragma unroll
            for (int c = 1; c < CHAINS; c++) s[0][b][i] += chains[c][0][b][i];
        }
}

// Scores of a tile whose K blocks come from `source.k(b)`. A block's chains run while the next block is dequantised, and
// are added before that one's start: no more than one block's are held.
template <typename Source>
__device__ __forceinline__ void score_tile(const Source& source, u32 table, u32 shared_q, const Queries& q, Scores (&s)[BLOCKS]) {
    Scores chains[BLOCKS][CHAINS];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const KBlock& k = source.k(b);
        if constexpr (K_MMA != Mma::wgmma) clear_scores(s[b]);
        if constexpr (K_MMA == Mma::f16) score_words_f16<0>(k, table, q, s[b]);
        if constexpr (K_MMA == Mma::e4m3) score_steps_e4m3<0>(k, table, q, s[b]);
        if constexpr (K_MMA == Mma::wgmma) {
            Operand a;
            if constexpr (K_F16) k_to_f16<0>(k, table, a);
            else k_to_e4m3<0>(k, table, a);
            if (b > 0) finish_chains(chains[b - 1], s[b - 1]);
            start_chains(a, shared_q, chains[b]);
        }
    }
    if constexpr (K_MMA == Mma::wgmma) finish_chains(chains[BLOCKS - 1], s[BLOCKS - 1]);
}

// Whether some query row does not see some token of the tile at `token`.
__device__ __forceinline__ bool partly_hidden(const Work& work, int token) {
    bool hidden = token + TILE > visible_tokens(work, 0);
    if constexpr (WINDOW) hidden |= token < first_visible(work, Q_LEN - 1);
    return hidden;
}

// Tokens that a query row does not see get -inf: past kv_len, after the row's own new token, or before its window. Rows
// that no query sees hold anything, NaN included, so this selects; it does not multiply.
__device__ __forceinline__ void mask_scores(const Work& work, Lane lane, int token, Scores& s) {
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = work.row_tile * QUERY_TILE + row_of_slot(lane, 2 * b + slot_of(i));
                const int position = min(row, ROWS - 1) / GROUP, visible = visible_tokens(work, position);
                if (token + token_of(lane, h, i) >= visible) s[h][b][i] = -INFINITY_F32;
                if constexpr (WINDOW)
                    if (token + token_of(lane, h, i) < first_visible(work, position)) s[h][b][i] = -INFINITY_F32;
            }
}
