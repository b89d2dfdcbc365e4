// Merging partial softmax states: between the warps of a block, and between the splits of a request. A state travels
// as its lane's registers, FLOATS of them, 32 lanes side by side.

constexpr int OUT_FLOATS = O_TILES * Q_BLOCKS * 4;
constexpr int STATE_FLOATS = OUT_FLOATS + 2 * SLOTS;

__device__ __forceinline__ void clear(State& state) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) state.max[slot] = -INFINITY_F32, state.sum[slot] = 0.0f;
#pragma unroll
    for (int o = 0; o < O_TILES; o++)
#pragma unroll
        for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.out[o][b][i] = 0.0f;
}

// Each lane's sums become the row's: the lanes hold different tokens.
__device__ __forceinline__ void reduce_sums(State& state) {
#pragma unroll
    for (int lanes = REDUCE_FIRST; lanes <= REDUCE_LAST; lanes *= 2)
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) state.sum[slot] += __shfl_xor_sync(0xFFFFFFFF, state.sum[slot], lanes);
}

// `to` is this lane's first float of a state; the next is 32 further.
__device__ __forceinline__ void store_state(float* to, const State& state) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) to[32 * slot] = state.max[slot], to[32 * (SLOTS + slot)] = state.sum[slot];
#pragma unroll
    for (int n = 0; n < OUT_FLOATS; n++) to[32 * (2 * SLOTS + n)] = state.out[n / 4 / Q_BLOCKS][n / 4 % Q_BLOCKS][n % 4];
}

// state := state merged with the stored one. Sums must be the rows' own.
__device__ __forceinline__ void merge_state(const Queries& q, const float* from, State& state) {
    float mine[SLOTS], other[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const float max = from[32 * slot], next = fmaxf(state.max[slot], max);
        const bool empty = next == -INFINITY_F32;       // both: -inf - -inf would be NaN
        mine[slot] = empty ? 1.0f : exp2_approx((state.max[slot] - next) * q.scale[slot]);
        other[slot] = empty ? 1.0f : exp2_approx((max - next) * q.scale[slot]);
        state.max[slot] = next;
        state.sum[slot] = state.sum[slot] * mine[slot] + from[32 * (SLOTS + slot)] * other[slot];
    }
#pragma unroll
    for (int n = 0; n < OUT_FLOATS; n++) {
        float& out = state.out[n / 4 / Q_BLOCKS][n / 4 % Q_BLOCKS][n % 4];
        const int slot = 2 * (n / 4 % Q_BLOCKS) + slot_of(n % 4);
        out = out * mine[slot] + from[32 * (2 * SLOTS + n)] * other[slot];
    }
}

// The states of all warps into warp 0's, halving the warps each round.
__device__ __forceinline__ void merge_warps(const Queries& q, float* shared, Lane lane, State& state) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int half = WARPS / 2; half > 0; half /= 2) {
        __syncthreads();                                // the slots' last readers are done
        if (warp >= half && warp < 2 * half) store_state(shared + (warp - half) * STATE_FLOATS * 32 + lane.index, state);
        __syncthreads();
        if (warp < half) merge_state(q, shared + warp * STATE_FLOATS * 32 + lane.index, state);
    }
}
