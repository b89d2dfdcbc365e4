// Dequant::convert of NVFP4: Blackwell's conversion instruction, two codes at a time.

// Codes 2i (low half) and 2i + 1 (high half) to out[i].
__device__ __forceinline__ void convert_codes(u32 codes, u32 (&out)[4]) {
    out[0] = e2m1x2_to_f16x2<0>(codes), out[1] = e2m1x2_to_f16x2<1>(codes);
    out[2] = e2m1x2_to_f16x2<2>(codes), out[3] = e2m1x2_to_f16x2<3>(codes);
}

// Code e of `first` (low half) and of `second` (high half) to out[e].
__device__ __forceinline__ void convert_code_pairs(u32 first, u32 second, u32 (&out)[8]) {
    const u32 even = (first & 0x0F0F0F0F) | (second << 4 & 0xF0F0F0F0), odd = (first >> 4 & 0x0F0F0F0F) | (second & 0xF0F0F0F0);
    out[0] = e2m1x2_to_f16x2<0>(even), out[1] = e2m1x2_to_f16x2<0>(odd);
    out[2] = e2m1x2_to_f16x2<1>(even), out[3] = e2m1x2_to_f16x2<1>(odd);
    out[4] = e2m1x2_to_f16x2<2>(even), out[5] = e2m1x2_to_f16x2<2>(odd);
    out[6] = e2m1x2_to_f16x2<3>(even), out[7] = e2m1x2_to_f16x2<3>(odd);
}
