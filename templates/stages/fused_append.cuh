// Fused append: the block that attends to the new tokens first writes them to the cache, then reads them as stored.

__device__ __forceinline__ void append_new_tokens(const DecodeParams& p, const Work& work) {
    constexpr int ROW_BLOCKS = HEAD_DIM / 16;
    u32 non_finite = 0;
    for (int item = threadIdx.x; item < Q_LEN * 2 * ROW_BLOCKS; item += THREADS) {
        const int block = item % ROW_BLOCKS, is_v = item / ROW_BLOCKS % 2, i = item / (2 * ROW_BLOCKS);
        const int token = work.kv_len - Q_LEN + i;
        if (token < work.begin || token >= work.end) continue;
        const long long page = work.pages[token / PAGE], row = (long long)work.request * Q_LEN + i;
        const int in_page = token % PAGE;
        if (is_v == 0) {
            const u8* from = (const u8*)p.new_k + row * p.new_k_stride_token + work.head * p.new_k_stride_head;
            u8* data = p.k_data + page * p.k_data_page + work.head * p.k_data_head + in_page * p.k_data_token;
            u8* scale = p.k_scales + page * p.k_scales_page + work.head * p.k_scales_head + in_page * p.k_scales_token + block;
            non_finite += requantise<K_FORMAT, OUT_BF16>(from, p.k_scale, data, scale, block);
        } else {
            const u8* from = (const u8*)p.new_v + row * p.new_v_stride_token + work.head * p.new_v_stride_head;
            u8* data = p.v_data + page * p.v_data_page + work.head * p.v_data_head + in_page * p.v_data_token;
            u8* scale = p.v_scales + page * p.v_scales_page + work.head * p.v_scales_head + v_scale_offset(in_page, block, p.v_scales_token);
            non_finite += requantise<V_FORMAT, OUT_BF16>(from, p.v_scale, data, scale, block);
        }
    }
    // Blocks of other row tiles write the same bytes; the first one counts.
    if (non_finite != 0 && work.row_tile == 0) atomicAdd(p.status, non_finite);
    __syncthreads();
}
