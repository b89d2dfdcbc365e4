// One block of 16 elements of one token's new K and V rows of one head: item = token * ROW_BLOCKS + block, so neighbouring
// threads read and write neighbouring bytes. Returns its count of non-finite elements.
__device__ __forceinline__ u32 append_block(const AppendParams& p, u32 item, u32 head) {
    const u32 block = item % ROW_BLOCKS, token = item / ROW_BLOCKS;
    if (token >= p.tokens) return 0;
    // The rows travel together with the slot, which says only at the end whether they are kept.
    const long long slot = p.slot_mapping[token];
    NewBlock<1> k((const u8*)p.k + token * p.k_stride_token + head * p.k_stride_head + 32 * block);
    NewBlock<1> v((const u8*)p.v + token * p.v_stride_token + head * p.v_stride_head + 32 * block);
    const u32 page = (u64)slot / PAGE, in_page = (u64)slot % PAGE;
    const Place k_to = k_place(p, head, page, in_page, block), v_to = v_place(p, head, page, in_page, block);
    return requantise<K_FORMAT, BF16>(k, p.k_scale, k_to, 0, slot >= 0) + requantise<V_FORMAT, BF16>(v, p.v_scale, v_to, 0, slot >= 0);
}
