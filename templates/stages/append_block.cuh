// One block of 16 elements of one new row of one head: item = (token * 2 + is_v) * ROW_BLOCKS + block, so neighbouring
// threads read and write neighbouring bytes. Returns its count of non-finite elements.
__device__ __forceinline__ u32 append_block(const AppendParams& p, u32 item, u32 head) {
    const u32 block = item % ROW_BLOCKS, is_v = item / ROW_BLOCKS % 2, token = item / (2 * ROW_BLOCKS);
    if (token >= p.tokens) return 0;
    const long long slot = p.slot_mapping[token];
    if (slot < 0) return 0;
    const u64 page = (u64)slot / PAGE;
    const u32 in_page = (u64)slot % PAGE;
    if (is_v == 0) {
        const u8* from = (const u8*)p.k + (long long)token * p.k_stride_token + head * p.k_stride_head;
        u8* data = p.k_data + page * p.k_data_page + head * p.k_data_head + in_page * p.k_data_token;
        u8* scale = p.k_scales + page * p.k_scales_page + head * p.k_scales_head + in_page * p.k_scales_token + block;
        return requantise<K_FORMAT, BF16>(from, p.k_scale, data, scale, block);
    }
    const u8* from = (const u8*)p.v + (long long)token * p.v_stride_token + head * p.v_stride_head;
    u8* data = p.v_data + page * p.v_data_page + head * p.v_data_head + in_page * p.v_data_token;
    u8* scale = p.v_scales + page * p.v_scales_page + head * p.v_scales_head + v_scale_offset(in_page, block, p.v_scales_token);
    return requantise<V_FORMAT, BF16>(from, p.v_scale, data, scale, block);
}
