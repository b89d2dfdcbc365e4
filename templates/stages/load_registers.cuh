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
                if constexpr (K_SCALES > 0)
                    tile.k[b].scales[h][c] = load_global_narrow<K_CHUNK_SCALES>(
                        cache.k_scales + at.page * p.k_scales_page + at.token * p.k_scales_token + (4 * c + lane.t) * K_CHUNK_SCALES);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Place at = locate(page, token, 16 * b + v_token(lane, i));
            const u8* row = cache.v + at.page * p.v_data_page + at.token * p.v_data_token;
#pragma unroll
            for (int c = 0; c < V_CHUNKS; c++)
                load_global<V_CHUNK_WORDS>(tile.v[b].words[i] + c * V_CHUNK_WORDS, row + (8 * c + lane.g) * V_CHUNK);
            if constexpr (V_SCALES > 0) {
                const u8* scales = cache.v_scales + at.page * p.v_scales_page;
                const int first = v_element(lane.g, 0) / 16;
                tile.v[b].scales[i] = load_global_narrow<1>(scales + v_scale_offset(at.token, first, p.v_scales_token));
                if constexpr (V_SLICE > 16)
                    tile.v[b].scales[i] |= load_global_narrow<1>(scales + v_scale_offset(at.token, first + 1, p.v_scales_token)) << 8;
            }
        }
    }
}
