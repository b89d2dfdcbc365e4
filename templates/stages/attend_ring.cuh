// Main loop with staging in shared memory: STAGES - 1 tiles in flight while one is computed. A tile is two groups of
// copies, so that its scores are computed while V is still on its way.

struct RingSource {
    u32 stage;
    Lane lane;
    __device__ __forceinline__ KBlock k(int b) const {
        KBlock block;
        read_k(stage, lane, b, block);
        return block;
    }
    __device__ __forceinline__ VBlock v(int b) const {
        VBlock block;
        read_v(stage, lane, b, block);
        return block;
    }
    __device__ __forceinline__ void wait_for_v(const Work& work, Lane lane, int token) const {
        copy_wait<2 * (STAGES - 1)>();
        __syncwarp();
        if (has_unseen(work, token)) clear_unseen(work, lane, token, stage);
    }
};

// A warp's tiles on their way: STAGES - 1 of them in flight.
struct Feed : NextTile {
    u32 ring, write;                                    // first stage; stage that the next tile goes to
    Origins origins;

    __device__ __forceinline__ u32 following(u32 stage) const { return stage + TILE_BYTES == ring + STAGES * TILE_BYTES ? ring : stage + TILE_BYTES; }

    // Two groups a tile, empty ones past the end, so that the count of groups in flight stays the same.
    __device__ __forceinline__ void copy_next(const DecodeParams& p, const Work& work, Lane lane) {
        if (begin < work.end) {
            copy_tile(p, origins, lane, page, token, write);
            page = load_page(work, lane, token + STEP_TOKENS);
        } else {
            copy_commit();
        }
        copy_commit();
        write = following(write);
        begin += STEP_TOKENS, token += STEP_TOKENS;
    }

    __device__ __forceinline__ void start(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane, u32 rings) {
        write = ring = rings + threadIdx.x / 32 * STAGES * TILE_BYTES;
        origins.start(p, cache, lane);
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) copy_next(p, work, lane);
    }
};

__device__ __forceinline__ void attend(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane, u32 table, u32 shared_q, const Queries& q, Feed& feed, State& state) {
    int token = work.begin + threadIdx.x / 32 * TILE;
    u32 read = feed.ring;
    // All warps make the same number of steps (wgmma is a joint act of four); tiles past the end are masked.
    for (int begin = work.begin; begin < work.end; begin += STEP_TOKENS, token += STEP_TOKENS) {
        copy_wait<2 * (STAGES - 1) - 1>();
        __syncwarp();                                   // every lane's copies of K have landed, and the oldest stage is free
        feed.copy_next(p, work, lane);
        RingSource source = {read, lane};
        attend_tile(work, lane, table, shared_q, q, source, token, state);
        read = feed.following(read);
    }
    copy_wait<0>();
}
