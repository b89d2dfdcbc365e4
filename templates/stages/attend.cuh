// The main loop of a warp: tiles of this split, WARPS apart.

// One tile whose K and V blocks come from `source.k(b)` and `source.v(b)`.
template <typename Source>
__device__ __forceinline__ void attend_tile(const Work& work, Lane lane, u32 table, u32 shared_q, const Queries& q, Source& source, int token, State& state) {
    Scores s[BLOCKS], second[BLOCKS];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) start_scores(source.k(b), table, shared_q, q, s[b], second[b]);
    finish_scores(s, second);
    const bool tail = token + TILE > visible_tokens(work, 0);
    if (tail)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) mask_scores(work, lane, token + 16 * b, s[b]);
    raise_max(q, s, state);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        u32 p[Q_BLOCKS][P_REGISTERS];
        exponentials(q, s[b], state, p);
        VBlock v = source.v(b);
        if (tail) mask_values(work, lane, token + 16 * b, v);
        add_values<0>(v, table, p, state);
    }
}
