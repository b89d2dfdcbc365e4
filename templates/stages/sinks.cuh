// Attention sinks: a logit of each query head joins the denominator of its softmax, as a token whose value is zero would.
// It joins once, where a row's final state is: as part of the running maximum a large one would push P, an f16, into its
// subnormals.

__device__ __forceinline__ void join_sinks(const DecodeParams& p, const Work& work, Lane lane, const Queries& q, Slice& state) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const int row = min(work.row_tile * QUERY_TILE + row_of_slot(lane, slot), ROWS - 1);
        // In log2 units, as the reference points.
        const float sink = p.sinks[work.head * GROUP + row % GROUP] * LOG2E, own = state.max[slot] * q.scale[slot];
        const float next = fmaxf(own, sink);
        if (next == -INFINITY_F32) continue;            // no token and no sink: -inf - -inf would be NaN
        const float factor = exp2_approx(own - next);
        state.sum[slot] = state.sum[slot] * factor + exp2_approx(sink - next + P_BIAS);
        state.max[slot] = next / q.scale[slot];
#pragma unroll
        for (int o = 0; o < SLICE_TILES; o++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (slot_of(i) == slot % 2) state.out[o][slot / 2][i] *= factor;
    }
}
