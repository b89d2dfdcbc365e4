// Online softmax over the scores of one tile, and P as an f16 MMA operand.

// P is 2^P_BIAS times its usual value, which keeps small probabilities out of f16's subnormals; it cancels
// against the sum. The reference point of the exponentials may lag the true maximum by P_SLACK (log2 units): P stays
// below 2^(P_BIAS + P_SLACK), in f16's range, and most tiles need neither a reduction across lanes nor a rescale.
constexpr float P_BIAS = 6.0f, P_SLACK = 8.0f;

__device__ __forceinline__ void scale_output(State& state, const float (&factor)[SLOTS]) {
#pragma unroll
    for (int o = 0; o < O_TILES; o++)
#pragma unroll
        for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.out[o][b][i] *= factor[2 * b + slot_of(i)];
}

// Raises the reference points to this tile's maxima where a score exceeds them by more than the slack, rescaling sums
// and output. A vote skips it for most tiles.
__device__ __forceinline__ void raise_max(const Queries& q, const Scores (&s)[BLOCKS], State& state) {
    float largest[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) largest[slot] = -INFINITY_F32;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
                for (int i = 0; i < 4; i++) largest[2 * b + slot_of(i)] = fmaxf(largest[2 * b + slot_of(i)], s[n][h][b][i]);
    bool raised = false;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) raised |= (largest[slot] - state.max[slot]) * q.scale[slot] > P_SLACK;
    if (!__any_sync(0xFFFFFFFF, raised)) return;
#pragma unroll
    for (int lanes = REDUCE_FIRST; lanes <= REDUCE_LAST; lanes *= 2)
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) largest[slot] = fmaxf(largest[slot], __shfl_xor_sync(0xFFFFFFFF, largest[slot], lanes));
    float factor[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const float next = fmaxf(state.max[slot], largest[slot]);
        // Nothing seen yet: -inf - -inf would be NaN.
        factor[slot] = next == -INFINITY_F32 ? 1.0f : exp2_approx((state.max[slot] - next) * q.scale[slot]);
        state.max[slot] = next;
        state.sum[slot] *= factor[slot];
    }
    scale_output(state, factor);
}

// P of one 16-token block: exponentials added to the sums, then packed as the MMA operand over tokens (B for
// swapped operands, by transposing the accumulator; A as it is for straight ones).
constexpr int P_REGISTERS = SWAPPED ? 2 : 4;
__device__ __forceinline__ void exponentials(const Queries& q, const Scores& s, State& state, u32 (&p)[Q_BLOCKS][P_REGISTERS]) {
#pragma unroll
    for (int b = 0; b < Q_BLOCKS; b++) {
        float shift[2];
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            const float max = state.max[2 * b + slot];
            shift[slot] = max == -INFINITY_F32 ? 0.0f : P_BIAS - max * q.scale[2 * b + slot];
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            float e[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int slot = slot_of(i);
                e[i] = exp2_approx(fmaf(s[h][b][i], q.scale[2 * b + slot], shift[slot]));
                state.sum[2 * b + slot] += e[i];
            }
            const u32 low = f32x2_to_f16x2(e[0], e[1]), high = f32x2_to_f16x2(e[2], e[3]);
            p[b][2 * h] = SWAPPED ? transpose_8x8(low) : low;
            p[b][2 * h + 1] = SWAPPED ? transpose_8x8(high) : high;
        }
    }
}
