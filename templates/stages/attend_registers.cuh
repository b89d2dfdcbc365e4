// Main loop with staging in registers: the next tile's loads are in flight while this one is computed.

struct RegisterSource {
    Tile tile;
    __device__ __forceinline__ const KBlock& k(int b) const { return tile.k[b]; }
    __device__ __forceinline__ const VBlock& v(int b) const { return tile.v[b]; }
};

__device__ __forceinline__ void attend(const DecodeParams& p, const Work& work, Lane lane, u32 table, u32 shared_q, u32, const Queries& q, State& state) {
    constexpr int STEP = WARPS * TILE;
    const Cache cache = cache_of_head(p, work.head);
    int token = work.begin + threadIdx.x / 32 * TILE;
    RegisterSource next;
    if (work.begin < work.end) load_tile(p, cache, lane, load_page(work, lane, token), token, next.tile);
    int page = work.begin + STEP < work.end ? load_page(work, lane, token + STEP) : 0;
    // All warps make the same number of steps (wgmma is a joint act of four); tiles past the end are masked.
    for (int begin = work.begin; begin < work.end; begin += STEP, token += STEP) {
        RegisterSource now = next;
        if (begin + STEP < work.end) load_tile(p, cache, lane, page, token + STEP, next.tile);
        if (begin + 2 * STEP < work.end) page = load_page(work, lane, token + 2 * STEP);
        attend_tile(work, lane, table, shared_q, q, now, token, state);
    }
}
