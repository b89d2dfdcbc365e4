// Staging in shared memory: each warp fills its own ring of STAGES tiles by cp.async, whole rows at a time, and
// reads its fragments from there. No block-wide barrier: a ring belongs to one warp.

// Pages of the rows that this lane copies, 16 bytes (or the whole shorter row) of one row a step.
template <int ROW_BYTES>
struct RowPages {
    static constexpr int CHUNKS = ROW_BYTES / 16, ROWS_A_STEP = 32 / CHUNKS, STEPS = TILE / ROWS_A_STEP;
    int page[STEPS];
    __device__ __forceinline__ RowPages(Lane lane, int tile_page) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            constexpr int FIRST_OF_PAGE = PAGE > ROWS_A_STEP ? PAGE / ROWS_A_STEP : 1;
            const bool same = i % FIRST_OF_PAGE != 0 || (PAGES_A_TILE == 1 && i > 0);
            page[i] = same ? page[i - 1] : page_of(tile_page, ROWS_A_STEP > PAGE ? lane.index / CHUNKS + i * ROWS_A_STEP : i * ROWS_A_STEP);
        }
    }
};

// Where this lane's rows begin in page 0, one address for each of its places in a page: what is left of an address is
// one wide multiply-add with the page.
template <int ROW_BYTES>
struct RowOrigins {
    using Rows = RowPages<ROW_BYTES>;
    static constexpr int PLACES = PAGES_A_TILE > 1 && PAGE > Rows::ROWS_A_STEP ? PAGE / Rows::ROWS_A_STEP : 1;
    const u8* at[PLACES];
    __device__ __forceinline__ void start(const u8* from, long long token_stride, Lane lane) {
        const int row = lane.index / Rows::CHUNKS % PAGE;
#pragma unroll
        for (int i = 0; i < PLACES; i++) at[i] = advance(from + lane.index % Rows::CHUNKS * 16, row + i * Rows::ROWS_A_STEP, token_stride);
    }
};

template <int ROW_BYTES>
__device__ __forceinline__ void copy_rows(u32 to, const RowOrigins<ROW_BYTES>& origins, long long page_stride, long long token_stride, Lane lane, const RowPages<ROW_BYTES>& pages, int token) {
    using Rows = RowPages<ROW_BYTES>;
    constexpr int R = Rows::ROWS_A_STEP;
    const int own = lane.index / Rows::CHUNKS, byte = lane.index % Rows::CHUNKS * 16;
#pragma unroll
    for (int i = 0; i < Rows::STEPS; i++) {
        const u8* row = advance(origins.at[i % RowOrigins<ROW_BYTES>::PLACES], pages.page[i], page_stride);
        if constexpr (PAGES_A_TILE == 1) row = advance(row, token % PAGE + i * R, token_stride);
        copy_async<16>(to + swizzled<ROW_BYTES>(own + i * R % 8, byte, i * R / 8 * 8), row);
    }
}

struct ScalePages {
    static constexpr int STEPS = (TILE + 31) / 32;
    int page[STEPS];
    __device__ __forceinline__ ScalePages(Lane lane, int tile_page) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) page[i] = page_of(tile_page, (i * 32 + lane.index) % TILE);
    }
};

// Copies the tile's block scales, one token's row a lane and step, from `origin`: this lane's row in page 0 (32 rows
// further is the same place of a page, or a later one of a larger page).
template <int ROW_BYTES>
__device__ __forceinline__ void copy_scales(u32 to, const u8* origin, long long page_stride, long long row_stride, Lane lane, const ScalePages& pages, int token) {
#pragma unroll
    for (int i = 0; i < ScalePages::STEPS; i++) {
        const int row = i * 32 + lane.index;
        const u8* scales = advance(origin, pages.page[i], page_stride);
        if constexpr (PAGES_A_TILE == 1) scales = advance(scales, token % PAGE + i * 32, row_stride);
        else if constexpr (PAGE > 32) scales = advance(scales, i * 32 % PAGE, row_stride);
        if (TILE % 32 == 0 || row < TILE) copy_async<ROW_BYTES>(to + row * ROW_BYTES, scales);
    }
}

// In the interleaved order a "row" is a quarter of the four tokens' group, at the same place.
__device__ __forceinline__ long long v_scales_row(const DecodeParams& p) { return V_INTERLEAVED ? V_SCALES : p.v_scales_token; }

struct Origins {
    RowOrigins<K_ROW> k;
    RowOrigins<V_ROW> v;
    const u8 *k_scales, *v_scales;
    __device__ __forceinline__ void start(const DecodeParams& p, const Cache& cache, Lane lane) {
        const int scale_row = lane.index % smaller(TILE, PAGE);
        k.start(cache.k, p.k_data_token, lane);
        v.start(cache.v, p.v_data_token, lane);
        k_scales = advance(cache.k_scales, scale_row, p.k_scales_token);
        v_scales = advance(cache.v_scales, scale_row, v_scales_row(p));
    }
};

// The pages of V's rows: those of K's where both are as long.
template <int K_BYTES>
__device__ __forceinline__ RowPages<V_ROW> v_pages(const RowPages<K_BYTES>& k_pages, Lane lane, int page) {
    if constexpr (K_BYTES == V_ROW) return k_pages;
    else return RowPages<V_ROW>(lane, page);
}

// Copies a tile: K in a group of its own, V in the one that the caller closes.
__device__ __forceinline__ void copy_tile(const DecodeParams& p, const Origins& origins, Lane lane, int page, int token, u32 stage) {
    const RowPages<K_ROW> k_pages(lane, page);
    const ScalePages scale_pages(lane, page);
    copy_rows(stage, origins.k, p.k_data_page, p.k_data_token, lane, k_pages, token);
    if constexpr (K_SCALES > 0)
        copy_scales<K_SCALES>(stage + K_SCALE_OFFSET, origins.k_scales, p.k_scales_page, p.k_scales_token, lane, scale_pages, token);
    copy_commit();
    copy_rows(stage + V_OFFSET, origins.v, p.v_data_page, p.v_data_token, lane, v_pages(k_pages, lane, page), token);
    if constexpr (V_SCALES > 0)
        copy_scales<V_SCALES>(stage + V_SCALE_OFFSET, origins.v_scales, p.v_scales_page, v_scales_row(p), lane, scale_pages, token);
}

// Makes rows from..to - 1 of V zero, by their scales or by their bytes. In the interleaved order the scales of token t
// are every fourth byte of its group.
__device__ __forceinline__ void clear_rows(Lane lane, u32 stage, int from, int to) {
#pragma unroll 1
    for (int row = from; row < to; row++) {
        if constexpr (V_SCALES > 0) {
            if (lane.index < V_SCALES) store_shared_byte(stage + V_SCALE_OFFSET + (u32)v_scale_offset(row, lane.index, V_SCALES), 0);
        } else {
#pragma unroll 1
            for (int byte = 4 * lane.index; byte < V_ROW; byte += 128) store_shared(stage + V_OFFSET + swizzled<V_ROW>(row, byte), 0);
        }
    }
}

// V rows that no query sees hold anything, and 0 * NaN is NaN.
__device__ __forceinline__ void clear_unseen(const Work& work, Lane lane, int token, u32 stage) {
    clear_rows(lane, stage, max(work.kv_len - token, 0), TILE);
    if constexpr (WINDOW) clear_rows(lane, stage, 0, min(first_visible(work, 0) - token, TILE));
    __syncwarp();
}

__device__ __forceinline__ void read_k(u32 stage, Lane lane, int block, KBlock& k) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int first = k_token(lane, 0), extra = 16 * block + 8 * h, row = first + extra;
#pragma unroll
        for (int c = 0; c < K_CHUNKS; c++) {
            load_shared<K_CHUNK_WORDS>(k.words[h] + c * K_CHUNK_WORDS, stage + swizzled<K_ROW>(first, (4 * c + lane.t) * K_CHUNK, extra));
            if constexpr (K_SCALES > 0)
                k.scales[h][c] = load_shared_narrow<K_CHUNK_SCALES>(stage + K_SCALE_OFFSET + row * K_SCALES + (4 * c + lane.t) * K_CHUNK_SCALES);
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
