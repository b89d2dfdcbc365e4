// The main loop of a warp: tiles of this split, WARPS apart.

// The tile that a warp asks for next.
struct NextTile {
    int page, token;
    int begin;                                          // of the block's step that the tile belongs to

    __device__ __forceinline__ void find_page(const Work& work, Lane lane) {
        begin = work.begin;
        token = work.begin + threadIdx.x / 32 * TILE;
        page = load_page(work, lane, token);
    }
};

// One tile whose K and V blocks come from `source.k(b)` and, once it has been waited for, `source.v(b)`; V is zero where no
// query sees it.
template <typename Source>
__device__ __forceinline__ void attend_tile(const Work& work, Lane lane, u32 table, u32 shared_q, const Queries& q, Source& source, int token, State& state) {
    Scores s[BLOCKS];
    score_tile(source, table, shared_q, q, s);
    if constexpr (SOFT_CAP) cap_scores(q, s);
    if (partly_hidden(work, token))
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) mask_scores(work, lane, token + 16 * b, s[b]);
    raise_max(q, s, state);
    source.wait_for_v(work, lane, token);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        u32 p[Q_BLOCKS][P_REGISTERS];
        exponentials(q, s[b], state, p);
        add_values<0>(source.v(b), table, p, state);
    }
}
