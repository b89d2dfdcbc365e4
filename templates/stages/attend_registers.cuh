// Main loop with staging in registers: the next tile's loads are in flight while this one is computed.

struct RegisterSource {
    Tile tile;
    __device__ __forceinline__ const KBlock& k(int b) const { return tile.k[b]; }
    __device__ __forceinline__ const VBlock& v(int b) const { return tile.v[b]; }
    __device__ __forceinline__ void wait_for_v(const Work& work, Lane lane, int token) {
        if (has_unseen(work, token)) clear_unseen(work, lane, token, tile);
    }
};

// A warp's next tile, on its way into registers, and the page of the one after.
struct Feed : NextTile {
    RegisterSource next;

    __device__ __forceinline__ void load_next(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane) {
        if (begin < work.end) load_tile(p, cache, lane, page, token, next.tile);
        begin += STEP_TOKENS, token += STEP_TOKENS;
        if (begin < work.end) page = load_page(work, lane, token);
    }

    __device__ __forceinline__ void start(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane, u32) { load_next(p, work, cache, lane); }
};

__device__ __forceinline__ void attend(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane, u32 table, u32 shared_q, const Queries& q, Feed& feed, State& state) {
    int token = work.begin + threadIdx.x / 32 * TILE;
    // All warps make the same number of steps (wgmma is a joint act of four); tiles past the end are masked.
    for (int begin = work.begin; begin < work.end; begin += STEP_TOKENS, token += STEP_TOKENS) {
        RegisterSource now = feed.next;
        feed.load_next(p, work, cache, lane);
        attend_tile(work, lane, table, shared_q, q, now, token, state);
    }
}
