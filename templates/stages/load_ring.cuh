// Staging in shared memory: each warp fills its own ring of STAGES tiles by cp.async, whole rows at a time, and
// reads its fragments from there. No block-wide barrier: a ring belongs to one warp.

// Copies ROWS_BYTES-long rows of the tile's tokens, 16 bytes (or the whole shorter row) a lane and step.
template <int ROW_BYTES>
__device__ __forceinline__ void copy_rows(u32 to, const u8* from, long long page_stride, long long token_stride, Lane lane, int page, int token) {
    constexpr int CHUNKS = ROW_BYTES / 16;
#pragma unroll
    for (int i = 0; i < TILE * CHUNKS / 32; i++) {
        constexpr int ROWS_A_STEP = 32 / CHUNKS;
        const int row = lane.index / CHUNKS + i * ROWS_A_STEP % 8, extra = i * ROWS_A_STEP / 8 * 8, byte = lane.index % CHUNKS * 16;
        const Place at = locate(page, token, row + extra);
        copy_async<16>(to + swizzled<ROW_BYTES>(row, byte, extra), from + at.page * page_stride + at.token * token_stride + byte);
    }
}

// Copies the tile's block scales, one token's row a lane and step. In the interleaved order a "row" is a quarter of
// the four tokens' group, at the same place.
template <int ROW_BYTES, bool INTERLEAVED>
__device__ __forceinline__ void copy_scales(u32 to, const u8* from, long long page_stride, long long token_stride, Lane lane, int page, int token) {
#pragma unroll
    for (int i = 0; i < (TILE + 31) / 32; i++) {
        const int row = i * 32 + lane.index;
        const Place at = locate(page, token, row % TILE);
        const long long offset = INTERLEAVED ? at.token * ROW_BYTES : at.token * token_stride;
        if (TILE % 32 == 0 || row < TILE) copy_async<ROW_BYTES>(to + row * ROW_BYTES, from + at.page * page_stride + offset);
    }
}

__device__ __forceinline__ void copy_tile(const DecodeParams& p, const Cache& cache, Lane lane, int page, int token, u32 stage) {
    copy_rows<K_ROW>(stage, cache.k, p.k_data_page, p.k_data_token, lane, page, token);
    copy_rows<V_ROW>(stage + V_OFFSET, cache.v, p.v_data_page, p.v_data_token, lane, page, token);
    if constexpr (K_SCALES > 0)
        copy_scales<K_SCALES, false>(stage + K_SCALE_OFFSET, cache.k_scales, p.k_scales_page, p.k_scales_token, lane, page, token);
    if constexpr (V_SCALES > 0)
        copy_scales<V_SCALES, V_INTERLEAVED>(stage + V_SCALE_OFFSET, cache.v_scales, p.v_scales_page, p.v_scales_token, lane, page, token);
}

__device__ __forceinline__ void read_k(u32 stage, Lane lane, int block, KBlock& k) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int first = k_token(lane, 0), extra = 16 * block + 8 * h, row = first + extra;
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            load_shared<K_CHUNK_WORDS>(k.words[h] + c * K_CHUNK_WORDS, stage + swizzled<K_ROW>(first, (4 * c + lane.t) * K_CHUNK, extra));
#pragma unroll
            for (int s = 0; s < K_SCALE_LOADS; s++)
                k.scales[h][c * K_SCALE_LOADS + s] =
                    load_shared_narrow<K_SCALE_LOAD>(stage + K_SCALE_OFFSET + row * K_SCALES + (4 * c + lane.t) * K_CHUNK_SCALES + s);
        }
    }
}

__device__ __forceinline__ void read_v(u32 stage, Lane lane, int block, VBlock& v) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int first = v_token(lane, i % 2), extra = 16 * block + 8 * (i / 2), row = first + extra;
#pragma unroll
        for (int c = 0; c < V_CHUNKS; c++)
            load_shared<V_CHUNK_WORDS>(v.words[i] + c * V_CHUNK_WORDS, stage + V_OFFSET + swizzled<V_ROW>(first, (8 * c + lane.g) * V_CHUNK, extra));
#pragma unroll
        for (int s = 0; s < V_SLICE_SCALES && V_SCALES > 0; s++) {
            const long long offset = v_scale_offset(row, v_element(lane.g, 0) / 16 + s, V_SCALES);
            v.scales[i][s] = load_shared_narrow<1>(stage + V_SCALE_OFFSET + (u32)offset);
        }
    }
}
