// Merging partial softmax states: those of the warps of a block, then those of the splits of a request. A state travels
// as its lane's registers, STATE_FLOATS of them, 32 lanes side by side.

constexpr int STATE_FLOATS = O_TILES * Q_BLOCKS * 4 + 2 * SLOTS;
constexpr int SPLITS_AT_ONCE = 2;                       // what the main loop's registers hold
// A warp's slice of a merged state: its output tiles. Straight operands store tiles in pairs; warps past the last have none.
constexpr int SLICE_TILES = larger(O_TILES / WARPS, SWAPPED ? 1 : 2);
constexpr int SLICES = O_TILES / SLICE_TILES;
typedef Part<SLICE_TILES> Slice;

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

// Stores tiles `tile`.. of a state, and with the first its maxima and sums. `to` is this lane's first float of the state;
// the next is 32 further.
template <int TILES>
__device__ __forceinline__ void store_state(float* to, int tile, const Part<TILES>& state) {
    if (tile == 0)
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) to[32 * slot] = state.max[slot], to[32 * (SLOTS + slot)] = state.sum[slot];
    to += 32 * (2 * SLOTS + tile * Q_BLOCKS * 4);
#pragma unroll
    for (int o = 0; o < TILES; o++)
#pragma unroll
        for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) to[32 * ((o * Q_BLOCKS + b) * 4 + i)] = state.out[o][b][i];
}

// How much a part with `max` counts beside a whole with `whole`: two empty ones are -inf, whose difference would be NaN.
__device__ __forceinline__ float weight(float max, float whole, float scale) {
    return whole == -INFINITY_F32 ? 1.0f : exp2_approx((max - whole) * scale);
}

// Tiles `tile`.. of the stored states first, first + step, .. below `count`, merged. Their sums must be the rows' own.
// AT_ONCE of them are read together, so that their loads wait for each other's no more than their exponentials do.
template <int AT_ONCE, int TILES>
__device__ __forceinline__ void merge_states(const Queries& q, const float* states, int first, int step, int count, int tile, Part<TILES>& merged) {
    merged = {};
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) merged.max[slot] = -INFINITY_F32;
    for (int n = first; n < count; n += AT_ONCE * step) {
        const float* state[AT_ONCE];
        float weights[AT_ONCE][SLOTS], own[SLOTS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) state[i] = states + smaller(n + i * step, count - 1) * STATE_FLOATS * 32;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++) {
            float max[AT_ONCE], whole = merged.max[slot];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                max[i] = n + i * step < count ? state[i][32 * slot] : -INFINITY_F32;
                whole = fmaxf(whole, max[i]);
            }
            own[slot] = weight(merged.max[slot], whole, q.scale[slot]);
            merged.max[slot] = whole, merged.sum[slot] *= own[slot];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                weights[i][slot] = weight(max[i], whole, q.scale[slot]);
                merged.sum[slot] += state[i][32 * (SLOTS + slot)] * weights[i][slot];
            }
        }
#pragma unroll
        for (int o = 0; o < TILES; o++)
#pragma unroll
            for (int b = 0; b < Q_BLOCKS; b++)
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    float& out = merged.out[o][b][r];
                    const int slot = 2 * b + slot_of(r);
                    out *= own[slot];
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) out += state[i][32 * (2 * SLOTS + ((tile + o) * Q_BLOCKS + b) * 4 + r)] * weights[i][slot];
                }
    }
}

// This warp's slice of the merged states of all warps; none for warps past the last slice.
__device__ __forceinline__ void merge_warps(const Queries& q, float* shared, Lane lane, const State& state, Slice& slice) {
    const int warp = threadIdx.x / 32;
    __syncthreads();                                    // the last readers of what lay there are done
    store_state(shared + warp * STATE_FLOATS * 32 + lane.index, 0, state);
    __syncthreads();
    if (warp < SLICES) merge_states<WARPS>(q, shared + lane.index, 0, 1, WARPS, warp * SLICE_TILES, slice);
}
