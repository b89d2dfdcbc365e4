// Main loop with staging in shared memory: STAGES - 1 tiles in flight while one is computed.

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
};

// A warp's tiles on their way: STAGES - 1 of them in flight.
struct Feed {
    u32 ring, write;                                    // first stage; stage that the next tile goes to
    int page, token;                                    // of the next tile to copy
    int begin;                                          // of the block's step that the tile belongs to
    Origins origins;

    __device__ __forceinline__ u32 following(u32 stage) const { return stage + TILE_BYTES == ring + STAGES * TILE_BYTES ? ring : stage + TILE_BYTES; }

    // One group a tile, an empty one past the end, so that the count of groups in flight stays the same.
    __device__ __forceinline__ void copy_next(const DecodeParams& p, const Work& work, Lane lane) {
        if (begin < work.end) {
            copy_tile(p, origins, lane, page, token, write);
            page = load_page(work, lane, token + STEP_TOKENS);
        }
        copy_commit();
        write = following(write);
        begin += STEP_TOKENS, token += STEP_TOKENS;
    }

    __device__ __forceinline__ void start(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane, u32 rings) {
        write = ring = rings + threadIdx.x / 32 * STAGES * TILE_BYTES;
        origins.start(p, cache, lane);
        begin = work.begin;
        token = work.begin + threadIdx.x / 32 * TILE;
        page = begin < work.end ? load_page(work, lane, token) : 0;
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) copy_next(p, work, lane);
    }
};

__device__ __forceinline__ void attend(const DecodeParams& p, const Work& work, const Cache& cache, Lane lane, u32 table, u32 shared_q, const Queries& q, Feed& feed, State& state) {
    int token = work.begin + threadIdx.x / 32 * TILE;
    u32 read = feed.ring;
    // All warps make the same number of steps (wgmma is a joint act of four); tiles past the end are masked.
    for (int begin = work.begin; begin < work.end; begin += STEP_TOKENS, token += STEP_TOKENS) {
        copy_wait<STAGES - 2>();
        __syncwarp();                                   // every lane's copies have landed, and the oldest stage is free
        feed.copy_next(p, work, lane);
        if (has_unseen(work, token)) clear_unseen(work, lane, token, read);
        RingSource source = {read, lane};
        attend_tile(work, lane, table, shared_q, q, source, token, state);
        read = feed.following(read);
    }
    copy_wait<0>();
}
