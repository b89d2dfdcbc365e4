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

__device__ __forceinline__ void attend(const DecodeParams& p, const Work& work, Lane lane, u32 table, u32 shared_q, u32 rings, const Queries& q, State& state) {
    constexpr int STEP = WARPS * TILE;
    const Cache cache = cache_of_head(p, work.head);
    const u32 ring = rings + threadIdx.x / 32 * STAGES * TILE_BYTES;
    int token = work.begin + threadIdx.x / 32 * TILE;
    int page = work.begin < work.end ? load_page(work, lane, token) : 0;
    int ahead = 0;                                      // tokens from `token` to the next tile to copy
    u32 write = ring, read = ring;
    // One group a tile, an empty one past the end, so that the count of groups in flight stays the same.
    auto copy_next = [&](int begin) {
        if (begin < work.end) {
            copy_tile(p, cache, lane, page, token + ahead, write);
            page = load_page(work, lane, token + ahead + STEP);
        }
        copy_commit();
        write = write + TILE_BYTES == ring + STAGES * TILE_BYTES ? ring : write + TILE_BYTES;
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++, ahead += STEP) copy_next(work.begin + ahead);
    // All warps make the same number of steps (wgmma is a joint act of four); tiles past the end are masked.
    for (int begin = work.begin; begin < work.end; begin += STEP, token += STEP) {
        copy_wait<STAGES - 2>();
        __syncwarp();                                   // every lane's copies have landed, and the oldest stage is free
        copy_next(begin + ahead);
        RingSource source = {read, lane};
        attend_tile(work, lane, table, shared_q, q, source, token, state);
        read = read + TILE_BYTES == ring + STAGES * TILE_BYTES ? ring : read + TILE_BYTES;
    }
    copy_wait<0>();
}
