// Query rows as MMA operands, held for the whole kernel, with the head dimension permuted as K's is.

// Steps over the head dim of an MMA of f16 operands, and of E4M3 ones.
constexpr int Q_F16_STEPS = HEAD_DIM / 16, Q_E4M3_STEPS = HEAD_DIM / 32;
constexpr int Q_STEPS = K_F16 ? Q_F16_STEPS : Q_E4M3_STEPS;
constexpr int Q_REGISTERS = SWAPPED ? 2 : 4;            // a step: B operand, or A operand

struct Queries {
    u32 operand[Q_BLOCKS][Q_STEPS][Q_REGISTERS];        // unused with wgmma: then they are in shared memory
    float scale[SLOTS];                                 // raw score to log2 units
    float cap_scale[SLOTS];                             // SOFT_CAP: raw score to the exponent of 2 in its tanh
};

// First byte of query row `row` (of this block's tile); null where there is no such row.
__device__ __forceinline__ const u8* q_row(const DecodeParams& p, const Work& work, int row) {
    const int r = work.row_tile * QUERY_TILE + row;
    if (r >= ROWS) return nullptr;
    const long long token = (long long)work.request * Q_LEN + r / GROUP, head = work.head * GROUP + r % GROUP;
    return (const u8*)p.q + token * p.q_stride_token + head * p.q_stride_head;
}

// What lane t needs of its query rows, as stored: element e is half e % 2 of word e / 2. Rows: block b holds row
// 8b + g (swapped), or 16b + g and + 8.
constexpr int ROWS_A_BLOCK = SWAPPED ? 1 : 2;
struct RawQueries {
    u32 words[Q_BLOCKS][ROWS_A_BLOCK][K_SLICE / 2];
};

__device__ __forceinline__ void read_queries(const DecodeParams& p, const Work& work, Lane lane, RawQueries& raw) {
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < ROWS_A_BLOCK; h++) {
            const u8* row = q_row(p, work, SWAPPED ? 8 * b + lane.g : 16 * b + lane.g + 8 * h);
#pragma unroll
            for (int e = 0; e < K_SLICE; e += 8) {
                u32* words = raw.words[b][h] + e / 2;
                if (row != nullptr)
                    load_global<4>(words, row + 2 * k_element(lane.t, e));
                else
                    words[0] = words[1] = words[2] = words[3] = 0;
            }
        }
}

__device__ __forceinline__ float q_element(const u32* slice, int e) {
    const u32 bits = slice[e / 2] >> (16 * (e % 2)) & 0xFFFF;
    return OUT_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// q8 = RN_e4m3(q / q_scale) of two elements, as bytes.
__device__ __forceinline__ u32 q_e4m3x2(const u32* slice, float q_scale, int e0, int e1) {
    return f32x2_to_e4m3x2(__fdiv_rn(q_element(slice, e0), q_scale), __fdiv_rn(q_element(slice, e1), q_scale));
}

// Two elements as f16x2: E4M3 values in class `fp8`, else q * factor.
__device__ __forceinline__ u32 q_f16x2(const u32* slice, float q_scale, float factor, int e0, int e1) {
    if constexpr (!EXACT) return e4m3x2_to_f16x2(q_e4m3x2(slice, q_scale, e0, e1));
    return f32x2_to_f16x2(q_element(slice, e0) * factor, q_element(slice, e1) * factor);
}

// Whether each query row is divided by a magnitude of its own.
constexpr bool ROWS_SCALED = EXACT && OUT_BF16;

// A power of two near the largest element of a bf16 row: divided by it, the row is in f16's range and its large
// elements are not rounded. The four lanes t of a row agree on it.
__device__ __forceinline__ float q_row_magnitude(const u32* slice) {
    float largest = 0.0f;
#pragma unroll
    for (int e = 0; e < K_SLICE; e++) largest = fmaxf(largest, fabsf(q_element(slice, e)));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 2));
    const u32 exponent = min(max(__float_as_uint(largest) & 0x7F800000, 0x01000000u), 0x7E000000u);
    return __uint_as_float(exponent);
}

// Registers of step `step` of one row: element pairs (f16) or quads (E4M3) of lane t's slice.
__device__ __forceinline__ uint2 q_step(const u32* slice, float q_scale, float factor, int step) {
    if constexpr (K_F16) {
        constexpr int PER_WORD = word_elements(K_FORMAT) / 2;   // registers a K word
        auto pair = [&](int r) {
            const int e = r / PER_WORD * word_elements(K_FORMAT);
            return q_f16x2(slice, q_scale, factor, e + k_pair(r % PER_WORD, 0), e + k_pair(r % PER_WORD, 1));
        };
        return {pair(2 * step), pair(2 * step + 1)};
    }
    auto quad = [&](int e) { return q_e4m3x2(slice, q_scale, e, e + 1) | q_e4m3x2(slice, q_scale, e + 2, e + 3) << 16; };
    return {quad(8 * step), quad(8 * step + 4)};
}

// Steps of one row into the operand registers; with wgmma into shared memory, each warp its share of the steps.
__device__ __forceinline__ void store_operand(const u32* slice, float q_scale, float factor, Lane lane, int b, int h, u32 shared_q, Queries& q) {
#pragma unroll
    for (int step = 0; step < Q_STEPS; step++) {
        if constexpr (K_MMA == Mma::wgmma) {
            if (threadIdx.x / 32 != step % WARPS) continue;
            // Core matrix (step, k half, b): 8 rows of 16 bytes, see Descriptor.
            const uint2 bytes = q_step(slice, q_scale, factor, step);
            const u32 core = shared_q + (step * 2 * Q_BLOCKS + b) * 128 + lane.g * 16 + lane.t * 4;
            store_shared(core, bytes.x);
            store_shared(core + Q_BLOCKS * 128, bytes.y);
        } else {
            // A: rows g, g + 8, then the second k half; B: the two k halves.
            const uint2 halves = q_step(slice, q_scale, factor, step);
            q.operand[b][step][h] = halves.x;
            q.operand[b][step][SWAPPED ? 1 : 2 + h] = halves.y;
        }
    }
}

__device__ __forceinline__ void prepare_queries(const DecodeParams& p, const RawQueries& raw, Lane lane, u32 shared_q, Queries& q) {
    constexpr float RESCALE = K_DEQUANT == Dequant::place ? PLACE_SCALE : 1.0f;
    const float base = p.sm_scale * p.k_scale * (EXACT ? 1.0f : p.q_scale) * LOG2E * RESCALE;
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++) {
        float magnitude[ROWS_A_BLOCK];
#pragma unroll
        for (int h = 0; h < ROWS_A_BLOCK; h++) {
            magnitude[h] = ROWS_SCALED ? q_row_magnitude(raw.words[b][h]) : 1.0f;
            store_operand(raw.words[b][h], p.q_scale, 1.0f / magnitude[h], lane, b, h, shared_q, q);
        }
#pragma unroll
        for (int s = 0; s < 2; s++) {
            float scale = base;
            // The lane that loaded the row of this slot knows its magnitude.
            if constexpr (ROWS_SCALED) scale *= SWAPPED ? __shfl_sync(0xFFFFFFFF, magnitude[0], (2 * lane.t + s) * 4) : magnitude[s % ROWS_A_BLOCK];
            // -inf times 0 would be NaN. Raw scores are below 2^40, so that a scale as small as this makes all weights 1 anyway.
            scale = fmaxf(scale, 0x1p-100f);
            q.scale[2 * b + s] = scale;
            if constexpr (SOFT_CAP) {
                q.cap_scale[2 * b + s] = 2.0f * scale / p.soft_cap;
                q.scale[2 * b + s] = p.soft_cap * LOG2E;
            }
        }
    }
    if constexpr (K_MMA == Mma::wgmma) fence_async_shared();
}
