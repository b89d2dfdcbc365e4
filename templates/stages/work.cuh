// Which tokens this block attends to: derived from kv_len on the device, so that a captured graph stays
// right when lengths change.

struct Work {
    int request, head, row_tile, split;
    int kv_len;
    int begin, end;                                     // tokens of this split
    int splits;                                         // non-empty splits of this request
    const int* pages;                                   // block table of this request
};

// False where the request is too short for this split.
__device__ __forceinline__ bool find_work(const DecodeParams& p, Work& work) {
    constexpr int STEP = WARPS * TILE;
    work.split = blockIdx.x;
    work.head = blockIdx.y / ROW_TILES;
    work.row_tile = blockIdx.y % ROW_TILES;
    work.request = blockIdx.z;
    work.kv_len = p.kv_len[work.request];
    work.pages = p.block_table + work.request * p.block_table_stride;
    const int even = (work.kv_len + (int)p.max_splits - 1) / (int)p.max_splits;
    const int wanted = max(max(even, (int)p.min_split_tokens), 1);
    const int tokens = (wanted + STEP - 1) / STEP * STEP;
    work.splits = max((work.kv_len + tokens - 1) / tokens, 1);
    work.begin = work.split * tokens;
    work.end = min(work.begin + tokens, work.kv_len);
    return work.split < work.splits;
}

// Tokens that query position `i` of the new ones sees: causal among the new tokens.
__device__ __forceinline__ int visible_tokens(const Work& work, int i) { return work.kv_len - Q_LEN + i + 1; }
