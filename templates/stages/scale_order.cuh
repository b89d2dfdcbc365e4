// Byte offset of V scale `s` of token `t` of its page, in the problem's order (S = HEAD_DIM / 16 scales a row).
__device__ __forceinline__ long long v_scale_offset(int t, int s, long long token_stride) {
    if constexpr (V_INTERLEAVED) return (t >> 2) * 4 * (HEAD_DIM / 16) + 4 * s + (t & 3);
    return t * token_stride + s;
}
