// Tiles of K and V from pages to lanes: straight into registers, or through a ring in shared memory.

constexpr int PAGES_A_TILE = PAGE >= TILE ? 1 : TILE / PAGE;
constexpr int TILE_BYTES = TILE * (K_ROW + V_ROW + K_SCALES + V_SCALES);
// Offsets inside a ring stage.
constexpr int V_OFFSET = TILE * K_ROW, K_SCALE_OFFSET = V_OFFSET + TILE * V_ROW, V_SCALE_OFFSET = K_SCALE_OFFSET + TILE * K_SCALES;

// This KV head's pages: bases and strides.
struct Cache {
    const u8 *k, *v, *k_scales, *v_scales;
};

__device__ __forceinline__ Cache cache_of_head(const DecodeParams& p, int head) {
    return {p.k_data + head * p.k_data_head, p.v_data + head * p.v_data_head, p.k_scales + head * p.k_scales_head,
            p.v_scales + head * p.v_scales_head};
}

// The pages of the tile at `token`: lane l holds the page of the tile's page l % PAGES_A_TILE. Tokens at or past
// kv_len take the last valid page, those before all windows the first: what is read there is masked later, but the
// address must exist.
__device__ __forceinline__ int load_page(const Work& work, Lane lane, int token) {
    const int index = token / PAGE + (PAGES_A_TILE == 1 ? 0 : lane.index % PAGES_A_TILE);
    const int last = min(index, (work.kv_len - 1) / PAGE);
    return load_if(work.kv_len > 0, work.pages + (WINDOW ? max(last, first_visible(work, 0) / PAGE) : last));
}

// Page of token `i` of a tile.
__device__ __forceinline__ int page_of(int page, int i) { return PAGES_A_TILE == 1 ? page : __shfl_sync(0xFFFFFFFF, page, i / PAGE); }
// Place in its page of token `i` of the tile at `token`.
__device__ __forceinline__ int token_in_page(int token, int i) { return PAGES_A_TILE == 1 ? token % PAGE + i : i % PAGE; }


// Byte offset of byte `byte` of row `row` in a stage: swizzled in lines of 128 bytes so that neither the K reads (rows
// r, r + 4 of one instruction) nor the V reads (rows r..r + 3) meet in a bank. Only the row's low three bits matter, so
// eight rows further is a plain 8 * ROW_BYTES: `extra` rows, a multiple of eight known at compile time, cost nothing.
template <int ROW_BYTES>
__device__ __forceinline__ int swizzled(int row, int byte, int extra = 0) {
    const int half = (row >> 2 & 1) << 6, line = extra * ROW_BYTES;
    if constexpr (ROW_BYTES == 32) return ((row * 32 + byte) ^ half) + line;
    if constexpr (ROW_BYTES == 64) return ((row * 64 + byte) ^ half ^ (row >> 1 & 1) << 5) + line;
    return ((row * ROW_BYTES + byte) ^ half ^ (row & 3) << 5) + line;
}
