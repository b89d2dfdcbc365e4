// Output rows and log-sum-exp; with several splits, the last block of a request to finish combines them.

__device__ __forceinline__ void store_pair(u8* row, int d, float first, float second) {
    *(u32*)(row + 2 * d) = OUT_BF16 ? f32x2_to_bf16x2(first, second) : f32x2_to_f16x2(first, second);
}

__device__ __forceinline__ void store_output(const DecodeParams& p, const Work& work, Lane lane, const Queries& q, int slice, const Slice& state) {
    constexpr float LN2 = 0.6931471805599453f;
    constexpr float RESCALE = V_DEQUANT == Dequant::place ? PLACE_SCALE : 1.0f;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const int r = work.row_tile * QUERY_TILE + row_of_slot(lane, slot);
        if (r >= ROWS) continue;
        const long long token = (long long)work.request * Q_LEN + r / GROUP;
        const int head = work.head * GROUP + r % GROUP, heads = p.kv_heads * GROUP;
        const float sum = state.sum[slot], scale = sum > 0.0f ? p.v_scale * RESCALE / sum : 0.0f;
        u8* row = (u8*)p.out + token * p.out_stride_token + head * p.out_stride_head;
#pragma unroll
        for (int o = 0; o < SLICE_TILES; o += SWAPPED ? 1 : 2) {
            // Two neighbouring elements of the row: rows g, g + 8 of one tile, or one column of two tiles.
            const int tile = slice * SLICE_TILES + o, b = slot / 2, s = slot % 2;
            if constexpr (SWAPPED) {
                store_pair(row, v_element(lane.g, 2 * tile), state.out[o][b][s] * scale, state.out[o][b][2 + s] * scale);
            } else {
                store_pair(row, v_element(2 * lane.t, tile), state.out[o][b][2 * s] * scale, state.out[o + 1][b][2 * s] * scale);
                store_pair(row, v_element(2 * lane.t + 1, tile), state.out[o][b][2 * s + 1] * scale, state.out[o + 1][b][2 * s + 1] * scale);
            }
        }
        const bool writes_lse = slice == 0 && (SWAPPED ? lane.g == 0 : lane.t == 0);
        if (p.lse != nullptr && writes_lse)
            p.lse[token * heads + head] = sum > 0.0f ? LN2 * (state.max[slot] * q.scale[slot] - P_BIAS + __log2f(sum)) : -INFINITY_F32;
    }
}

// Publishes this split's state, a slice a warp; true in the block that finds all splits of the request published.
__device__ __forceinline__ bool publish_split(const DecodeParams& p, const Work& work, Lane lane, int group, float* partials, volatile u32* ticket, const Slice& slice) {
    const int warp = threadIdx.x / 32;
    if (warp < SLICES) store_state(partials + (long long)work.split * STATE_FLOATS * 32 + lane.index, warp * SLICE_TILES, slice);
    __syncthreads();
    if (threadIdx.x == 0) *ticket = take_ticket((u32*)p.workspace + group);
    __syncthreads();
    return *ticket == work.splits - 1;
}

__device__ __forceinline__ void finish(const DecodeParams& p, const Work& work, Lane lane, const Queries& q, float* shared, State& state) {
    const int warp = threadIdx.x / 32;
    Slice slice;
    merge_warps(q, shared, lane, state, slice);
    if (work.splits > 1) {
        const int group = (work.request * (int)p.kv_heads + work.head) * ROW_TILES + work.row_tile;
        float* partials = (float*)(p.workspace + COUNTER_BYTES) + (long long)group * p.max_splits * STATE_FLOATS * 32;
        // The merge is done with its room: the ticket lies there.
        if (!publish_split(p, work, lane, group, partials, (volatile u32*)shared, slice)) return;
        if (threadIdx.x == 0) ((u32*)p.workspace)[group] = 0;   // as found, for the next launch
        if constexpr (QUERY_TILE <= 16) {
            merge_states<SPLITS_AT_ONCE>(q, partials + lane.index, warp, WARPS, work.splits, 0, state);
            merge_warps(q, shared, lane, state, slice);
        } else if (warp < SLICES) {                     // two whole states of more rows would fill the registers
            merge_states<SPLITS_AT_ONCE>(q, partials + lane.index, 0, 1, work.splits, warp * SLICE_TILES, slice);
        }
    }
    if (warp >= SLICES) return;
    if constexpr (SINKS) join_sinks(p, work, lane, q, slice);
    store_output(p, work, lane, q, warp, slice);
}
