// Staging in registers: each lane loads just what it dequantises, one tile ahead.

struct Tile {
    KBlock k[BLOCKS];
    VBlock v[BLOCKS];
};

__device__ __forceinline__ void load_tile(const DecodeParams& p, const Cache& cache, Lane lane, int page, int token, Tile& tile) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const Place at = locate(page, token, 16 * b + k_token(lane, h));
            const u8* row = cache.k + at.page * p.k_data_page + at.token * p.k_data_token;
#pragma unroll
            for (int c = 0; c < K_CHUNKS; c++) {
                load_global<K_CHUNK_WORDS>(tile.k[b].words[h] + c * K_CHUNK_WORDS, row + (4 * c + lane.t) * K_CHUNK);
#pragma unroll
                for (int s = 0; s < K_SCALE_LOADS; s++)
                    tile.k[b].scales[h][c * K_SCALE_LOADS + s] = load_global_narrow<K_SCALE_LOAD>(
                        cache.k_scales + at.page * p.k_scales_page + at.token * p.k_scales_token + (4 * c + lane.t) * K_CHUNK_SCALES + s);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Place at = locate(page, token, 16 * b + v_token(lane, i));
            const u8* row = cache.v + at.page * p.v_data_page + at.token * p.v_data_token;
#pragma unroll
            for (int c = 0; c < V_CHUNKS; c++)
                load_global<V_CHUNK_WORDS>(tile.v[b].words[i] + c * V_CHUNK_WORDS, row + (8 * c + lane.g) * V_CHUNK);
#pragma unroll
            for (int s = 0; s < V_SLICE_SCALES && V_SCALES > 0; s++) {
                const long long offset = v_scale_offset(at.token, v_element(lane.g, 0) / 16 + s, p.v_scales_token);
                tile.v[b].scales[i][s] = load_global_narrow<1>(cache.v_scales + at.page * p.v_scales_page + offset);
            }
        }
    }
}
