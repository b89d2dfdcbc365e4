// Query rows as MMA operands, held for the whole kernel, with the head dimension permuted as K's is.

// f16 registers of one query row slice, and E4M3 registers.
constexpr int Q_F16_STEPS = HEAD_DIM / 16, Q_E4M3_STEPS = HEAD_DIM / 32;
constexpr int Q_STEPS = K_MMA == Mma::f16 ? Q_F16_STEPS : Q_E4M3_STEPS;
constexpr int Q_REGISTERS = SWAPPED ? 2 : 4;            // a step: B operand, or A operand

struct Queries {
    u32 operand[Q_BLOCKS][Q_STEPS][Q_REGISTERS];        // unused with wgmma: then they are in shared memory
    float scale[SLOTS];                                 // raw score to log2 units
};

__device__ __forceinline__ float q_element(const u8* row, int d) {
    const u32 bits = ((const u16*)row)[d];
    return OUT_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// First byte of query row `row` (of this block's tile); null where there is no such row.
__device__ __forceinline__ const u8* q_row(const DecodeParams& p, const Work& work, int row) {
    const int r = work.row_tile * QUERY_TILE + row;
    if (r >= ROWS) return nullptr;
    const long long token = (long long)work.request * Q_LEN + r / GROUP, head = work.head * GROUP + r % GROUP;
    return (const u8*)p.q + token * p.q_stride_token + head * p.q_stride_head;
}

// q8 = RN_e4m3(q / q_scale) of four elements, as bytes.
__device__ __forceinline__ u32 q_e4m3x4(const u8* row, float q_scale, int d0, int d1, int d2, int d3) {
    if (row == nullptr) return 0;
    const u32 low = f32x2_to_e4m3x2(__fdiv_rn(q_element(row, d0), q_scale), __fdiv_rn(q_element(row, d1), q_scale));
    const u32 high = f32x2_to_e4m3x2(__fdiv_rn(q_element(row, d2), q_scale), __fdiv_rn(q_element(row, d3), q_scale));
    return low | high << 16;
}

// Two elements as f16x2: E4M3 values in class `fp8`, else q * factor.
__device__ __forceinline__ u32 q_f16x2(const u8* row, float q_scale, float factor, int d0, int d1) {
    if (row == nullptr) return 0;
    if constexpr (!EXACT) return e4m3x2_to_f16x2(q_e4m3x4(row, q_scale, d0, d1, d0, d1));
    return f32x2_to_f16x2(q_element(row, d0) * factor, q_element(row, d1) * factor);
}

// A power of two that brings a bf16 row into f16's range without rounding its large elements. The four
// lanes t of a row agree on it.
__device__ __forceinline__ float q_row_exponent(const u8* row, int t) {
    float largest = 0.0f;
    if (row != nullptr)
        for (int e = 0; e < K_SLICE; e++) largest = fmaxf(largest, fabsf(q_element(row, k_element(t, e))));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 2));
    const u32 exponent = min(max(__float_as_uint(largest) & 0x7F800000, 0x01000000u), 0x7E000000u);
    return __uint_as_float(exponent);
}

// Registers of step `step` for one row: element pairs (f16) or quads (E4M3) of lane t's slice.
__device__ __forceinline__ void q_step(const u8* row, float q_scale, float factor, int t, int step, u32& first, u32& second) {
    if constexpr (K_MMA == Mma::f16) {
        constexpr int PER_WORD = word_elements(K_FORMAT) / 2;   // registers a K word
        auto pair = [&](int r) {
            const int e = r / PER_WORD * word_elements(K_FORMAT);
            return q_f16x2(row, q_scale, factor, k_element(t, e + k_pair(r % PER_WORD, 0)), k_element(t, e + k_pair(r % PER_WORD, 1)));
        };
        first = pair(2 * step);
        second = pair(2 * step + 1);
    } else {
        auto quad = [&](int e) {
            return q_e4m3x4(row, q_scale, k_element(t, e), k_element(t, e + 1), k_element(t, e + 2), k_element(t, e + 3));
        };
        first = quad(8 * step);
        second = quad(8 * step + 4);
    }
}

// Loads this lane's operand registers. Rows: block b holds rows 8b + g (swapped), or 16b + g and + 8.
__device__ __forceinline__ void load_queries(const DecodeParams& p, const Work& work, Lane lane, u32 shared_q, Queries& q) {
    constexpr float LOG2E = 1.4426950408889634f;
    constexpr float RESCALE = K_DEQUANT == Dequant::place ? PLACE_SCALE : 1.0f;
    const float base = p.sm_scale * p.k_scale * (EXACT ? 1.0f : p.q_scale) * LOG2E * RESCALE;
    constexpr int ROWS_A_BLOCK = SWAPPED ? 1 : 2;
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++) {
        float row_scale[ROWS_A_BLOCK];
#pragma unroll
        for (int h = 0; h < ROWS_A_BLOCK; h++) {
            const u8* row = q_row(p, work, SWAPPED ? 8 * b + lane.g : 16 * b + lane.g + 8 * h);
            row_scale[h] = EXACT && OUT_BF16 ? q_row_exponent(row, lane.t) : 1.0f;
            const float factor = 1.0f / row_scale[h];
#pragma unroll
            for (int step = 0; step < Q_STEPS; step++) {
                u32 first, second;
                q_step(row, p.q_scale, factor, lane.t, step, first, second);
                if constexpr (K_MMA == Mma::wgmma) {
                    // Core matrix (step, k half, b): 8 rows of 16 bytes, see wgmma_descriptor.
                    if (threadIdx.x < 32) {
                        const u32 core = shared_q + (step * 2 * Q_BLOCKS + b) * 128 + lane.g * 16 + lane.t * 4;
                        asm volatile("st.shared.b32 [%0], %1;" ::"r"(core), "r"(first) : "memory");
                        asm volatile("st.shared.b32 [%0], %1;" ::"r"(core + Q_BLOCKS * 128), "r"(second) : "memory");
                    }
                } else {
                    q.operand[b][step][h] = first;       // A: rows g, g + 8 then the second k half; B: two k halves
                    q.operand[b][step][SWAPPED ? 1 : 2 + h] = second;
                }
            }
        }
#pragma unroll
        for (int s = 0; s < 2; s++) {
            // The lane that loaded the row of this slot knows its scale.
            const float scale = SWAPPED ? __shfl_sync(0xFFFFFFFF, row_scale[0], (2 * lane.t + s) * 4) : row_scale[s % ROWS_A_BLOCK];
            q.scale[2 * b + s] = base * scale;
        }
    }
    if constexpr (K_MMA == Mma::wgmma) fence_async_shared();
}
