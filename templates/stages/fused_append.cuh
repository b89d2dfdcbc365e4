// Fused append: the block that attends to the new tokens first writes them to the cache, then reads them as stored.

__device__ __forceinline__ void append_new_tokens(const DecodeParams& p, const Work& work) {
    constexpr int ROW_BLOCKS = HEAD_DIM / 16;
    u32 non_finite = 0;
    for (int item = threadIdx.x; item < Q_LEN * ROW_BLOCKS; item += THREADS) {
        const int block = item % ROW_BLOCKS, i = item / ROW_BLOCKS;
        const int token = work.kv_len - Q_LEN + i;
        if (token < work.begin || token >= work.end) continue;
        const long long row = (long long)work.request * Q_LEN + i;
        NewRow k((const u8*)p.new_k + row * p.new_k_stride_token + work.head * p.new_k_stride_head + 32 * block);
        NewRow v((const u8*)p.new_v + row * p.new_v_stride_token + work.head * p.new_v_stride_head + 32 * block);
        non_finite += requantise_token_block<OUT_BF16>(p, k, v, work.head, work.pages[token / PAGE], token % PAGE, block, true);
    }
    // Blocks of other row tiles write the same bytes; the first one counts.
    if (non_finite != 0 && work.row_tile == 0) atomicAdd(p.status, non_finite);
    __syncthreads();
}
