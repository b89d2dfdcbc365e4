// One block of 16 elements of one new row of one head: item = (token * 2 + is_v) * ROW_BLOCKS + block, so neighbouring
// threads read and write neighbouring bytes. Returns its count of non-finite elements.
__device__ __forceinline__ u32 append_block(const AppendParams& p, u32 item, u32 head) {
    const u32 block = item % ROW_BLOCKS, is_v = item / ROW_BLOCKS % 2, token = item / (2 * ROW_BLOCKS);
    if (token >= p.tokens) return 0;
    const long long slot = p.slot_mapping[token];
    if (slot < 0) return 0;
    const long long page = (u64)slot / PAGE;
    const u32 in_page = (u64)slot % PAGE;
    const u8* from = is_v ? (const u8*)p.v + token * p.v_stride_token + head * p.v_stride_head
                          : (const u8*)p.k + token * p.k_stride_token + head * p.k_stride_head;
    return requantise_row_block<BF16>(p, is_v, from, head, page, in_page, block);
}
