// Which tokens this block attends to: derived from kv_len on the device, so that a captured graph stays
// right when lengths change.

struct Work {
    int request, head, row_tile;
    int split;                                          // of the request, counted from its end
    int kv_len;
    int begin, end;                                     // tokens of this split
    int splits;                                         // non-empty splits of this request
    int window;                                         // WINDOW: tokens that a query sees, at most kv_len
    const int* pages;                                   // block table of this request
};

// Sizes of a request's splits in steps (WARPS tiles). Counted from its end they are, with a taper of 3 and a largest of 8:
// 1, 1, 2, 4, 8, 8, 8 .. Blocks start in the order of the grid, where the end of every request comes last: small splits
// fill the SMs while the last large ones end.
struct Cut {
    int smallest, taper;
    __device__ __forceinline__ Cut(const DecodeParams& p, int steps) : taper(p.taper) {
        const int wide = (int)p.max_splits - taper, even = (steps + wide - 1) / wide;
        const int largest = max(even, ((int)p.min_split_tokens + STEP_TOKENS - 1) / STEP_TOKENS);
        smallest = max((largest + (1 << taper) - 1) >> taper, 1);
    }
    // Steps in the last `splits` splits.
    __device__ __forceinline__ int last(int splits) const {
        if (splits <= taper) return splits == 0 ? 0 : smallest << (splits - 1);
        return smallest * (splits - taper) << taper;
    }
    // Splits that `steps` steps fill, at least one.
    __device__ __forceinline__ int splits(int steps) const {
        for (int n = 1; n <= taper; n++)
            if (last(n) >= steps) return n;
        return max(taper + ((steps + (smallest << taper) - 1) / (smallest << taper)), 1);
    }
};

// Where a first split may begin: tiles past the end read the last page's rows at their own place in a page, and those must
// not be new tokens of another split. Where splits begin with a page, or steps do not cross pages, they are not.
constexpr int ORIGIN_STEP = larger(TILE, smaller(PAGE, STEP_TOKENS));

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
    work.head = blockIdx.x / ROW_TILES;
    work.row_tile = blockIdx.x % ROW_TILES;
    work.request = blockIdx.y;
    work.split = p.max_splits - 1 - blockIdx.z;
    work.kv_len = p.kv_len[work.request];
    work.pages = p.block_table + work.request * p.block_table_stride;
    int origin = 0;                                     // of the first split: not far before the first token that a query sees
    if constexpr (WINDOW) {
        work.window = min(p.window, (u32)work.kv_len);
        origin = first_visible(work, 0) / ORIGIN_STEP * ORIGIN_STEP;
    }
    const int steps = (work.kv_len - origin + STEP_TOKENS - 1) / STEP_TOKENS;
    const Cut cut(p, steps);
    work.splits = cut.splits(steps);
    work.begin = origin + max(steps - cut.last(work.split + 1), 0) * STEP_TOKENS;
    work.end = min(origin + (steps - cut.last(work.split)) * STEP_TOKENS, work.kv_len);
    return work.split < work.splits;
}
