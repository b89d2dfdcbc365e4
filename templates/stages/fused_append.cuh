// Fused append: the block that attends to the new tokens first writes them to the cache, then reads them as stored.

__device__ __forceinline__ void append_new_tokens(const DecodeParams& p, const Work& work) {
    constexpr int LANES = 8, ROW_LANES = HEAD_DIM / 16 * LANES;
    static_assert(ROW_LANES % 32 == 0, "the lanes of a warp are of one row: all or none come to the shuffles");
    if (work.end <= work.kv_len - Q_LEN) return;
    u32 non_finite = 0;
#pragma unroll 1
    for (int item = threadIdx.x; item < Q_LEN * 2 * ROW_LANES; item += THREADS) {
        const int lane = item % LANES, block = item % ROW_LANES / LANES, i = item / (2 * ROW_LANES);
        const bool is_v = item / ROW_LANES % 2;
        const int token = work.kv_len - Q_LEN + i;
        if (token < work.begin || token >= work.end) continue;
        const long long row = (long long)work.request * Q_LEN + i;
        const u8* from = is_v ? (const u8*)p.new_v + row * p.new_v_stride_token + work.head * p.new_v_stride_head
                              : (const u8*)p.new_k + row * p.new_k_stride_token + work.head * p.new_k_stride_head;
        NewBlock<LANES> elements(from + 32 * block + 32 / LANES * lane);
        const int page = work.pages[token / PAGE], in_page = token % PAGE;
        const Place to = is_v ? v_place(p, work.head, page, in_page, block) : k_place(p, work.head, page, in_page, block);
        // Formats that are one have one code: what is not in the way of the main loop does not slow it.
        if (is_v && V_FORMAT != K_FORMAT) non_finite += requantise<V_FORMAT, OUT_BF16>(elements, p.v_scale, to, lane, true);
        else non_finite += requantise<K_FORMAT, OUT_BF16>(elements, is_v ? p.v_scale : p.k_scale, to, lane, true);
    }
    // Blocks of other row tiles write the same bytes; the first one counts.
    if (non_finite != 0 && work.row_tile == 0) atomicAdd(p.status, non_finite);
    __syncthreads();
}
