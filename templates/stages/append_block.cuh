// One block of 16 elements of one token's new K and V rows of one head: item = token * ROW_BLOCKS + block, so neighbouring
// threads read and write neighbouring bytes. Returns its count of non-finite elements.
__device__ __forceinline__ u32 append_block(const AppendParams& p, u32 item, u32 head) {
    const u32 block = item % ROW_BLOCKS, token = item / ROW_BLOCKS;
    if (token >= p.tokens) return 0;
    // The rows travel together with the slot, which says only at the end whether they are kept.
    const long long slot = p.slot_mapping[token];
    NewRow k((const u8*)p.k + token * p.k_stride_token + head * p.k_stride_head + 32 * block);
    NewRow v((const u8*)p.v + token * p.v_stride_token + head * p.v_stride_head + 32 * block);
    return requantise_token_block<BF16>(p, k, v, head, (u32)((u64)slot / PAGE), (u64)slot % PAGE, block, slot >= 0);
}
