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
            const int i = 16 * b + k_token(lane, h), at = token_in_page(token, i), row_page = page_of(page, i);
            const u8* row = advance(advance(cache.k, row_page, p.k_data_page), at, p.k_data_token);
            const u8* scales = advance(advance(cache.k_scales, row_page, p.k_scales_page), at, p.k_scales_token);
#pragma unroll
            for (int c = 0; c < K_CHUNKS; c++) {
                load_global<K_CHUNK_WORDS>(tile.k[b].words[h] + c * K_CHUNK_WORDS, row + (4 * c + lane.t) * K_CHUNK);
                if constexpr (K_SCALES > 0) tile.k[b].scales[h][c] = load_global_narrow<K_CHUNK_SCALES>(scales + (4 * c + lane.t) * K_CHUNK_SCALES);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = 16 * b + v_token(lane, i), at = token_in_page(token, n), row_page = page_of(page, n);
            const u8* row = advance(advance(cache.v, row_page, p.v_data_page), at, p.v_data_token);
#pragma unroll
            for (int c = 0; c < V_CHUNKS; c++)
                load_global<V_CHUNK_WORDS>(tile.v[b].words[i] + c * V_CHUNK_WORDS, row + (8 * c + lane.g) * V_CHUNK);
#pragma unroll
            for (int s = 0; s < V_SLICE_SCALES && V_SCALES > 0; s++) {
                const long long offset = v_scale_offset(at, v_element(lane.g, 0) / 16 + s, p.v_scales_token);
                tile.v[b].scales[i][s] = load_global_narrow<1>(advance(cache.v_scales, row_page, p.v_scales_page) + offset);
            }
        }
    }
}

// V rows that no query sees hold anything: 0 * NaN is NaN, so they become zero, by their scale or by their bytes.
__device__ __forceinline__ void clear_unseen(const Work& work, Lane lane, int token, Tile& tile) {
#pragma unroll
    for (int n = 0; n < 4 * BLOCKS; n++) {
        VBlock& v = tile.v[n / 4];
        const int at = token + 16 * (n / 4) + v_token(lane, n % 4);
        if (at < work.kv_len && !(WINDOW && at < first_visible(work, 0))) continue;
#pragma unroll
        for (int s = 0; s < V_SLICE_SCALES; s++) v.scales[n % 4][s] = 0;
        if constexpr (V_SCALES == 0) {
#pragma unroll
            for (int w = 0; w < V_WORDS; w++) v.words[n % 4][w] = 0;
        }
    }
}
