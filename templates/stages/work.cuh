// Which tokens this block attends to: derived from kv_len on the device, so that a captured graph stays
// right when lengths change.

struct Work {
    int request, head, row_tile, split;
    int kv_len;
    int begin, end;                                     // tokens of this split
    int splits;                                         // non-empty splits of this request
    int window;                                         // WINDOW: tokens that a query sees, at most kv_len
    const int* pages;                                   // block table of this request
};

// Tokens up to that of query position `i` of the new ones, which sees none after it: causal among the new tokens.
__device__ __forceinline__ int visible_tokens(const Work& work, int i) { return work.kv_len - Q_LEN + i + 1; }
// WINDOW: the first token that query position `i` sees. No query sees one before that of position 0.
__device__ __forceinline__ int first_visible(const Work& work, int i) { return max(visible_tokens(work, i) - work.window, 0); }
// Whether no query sees some token of the tile at `token`.
__device__ __forceinline__ bool has_unseen(const Work& work, int token) {
    return token + TILE > work.kv_len || (WINDOW && token < first_visible(work, 0));
}

// False where the request is too short for this split.
__device__ __forceinline__ bool find_work(const DecodeParams& p, Work& work) {
    constexpr int STEP = WARPS * TILE;
    work.split = blockIdx.x;
    work.head = blockIdx.y / ROW_TILES;
    work.row_tile = blockIdx.y % ROW_TILES;
    work.request = blockIdx.z;
    work.kv_len = p.kv_len[work.request];
    work.pages = p.block_table + work.request * p.block_table_stride;
    int origin = 0;                                     // of the first split: its tile is the first that a query sees
    if constexpr (WINDOW) {
        work.window = min(p.window, (u32)work.kv_len);
        origin = first_visible(work, 0) / TILE * TILE;
    }
    const int span = work.kv_len - origin;
    const int even = (span + (int)p.max_splits - 1) / (int)p.max_splits;
    const int wanted = max(max(even, (int)p.min_split_tokens), 1);
    const int tokens = (wanted + STEP - 1) / STEP * STEP;
    work.splits = max((span + tokens - 1) / tokens, 1);
    work.begin = origin + work.split * tokens;
    work.end = min(work.begin + tokens, work.kv_len);
    return work.split < work.splits;
}
