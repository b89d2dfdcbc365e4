// Stored codes to tensor-core operands, a 32-bit word (eight E2M1 codes or four E4M3 bytes) at a time.

// f16 values here are e2m1 * 2^-14 (Dequant::place); the power is folded into the softmax and output scales.
constexpr float PLACE_SCALE = 16384.0f;

// Codes n[i] (low half) and n[i + 4] (high half) to out[i]: sign to bit 15, the three magnitude bits to 11..9.
__device__ __forceinline__ void place_nibble_pairs(u32 codes, u32 (&out)[4]) {
    constexpr u32 SIGN = 0x80008000, MAGNITUDE = 0x0E000E00;
    out[0] = (codes << 9 & MAGNITUDE) | (codes << 12 & SIGN);
    out[1] = (codes << 5 & MAGNITUDE) | (codes << 8 & SIGN);
    out[2] = (codes << 1 & MAGNITUDE) | (codes << 4 & SIGN);
    out[3] = (codes >> 3 & MAGNITUDE) | (codes & SIGN);
}

// The high half of x, by the multiplier: the ALU pipe is what these kernels wait for.
__device__ __forceinline__ u32 high_half(u32 x) {
    u32 out;
    asm("{ .reg .b64 wide; .reg .b32 low; mul.wide.u32 wide, %1, 65536; mov.b64 {low, %0}, wide; }" : "=r"(out) : "r"(x));
    return out;
}

// Eight codes to eight E4M3 bytes in order: magnitudes picked from the table entry with the codes as
// selectors, signs spread by prmt's sign-replicate mode.
__device__ __forceinline__ uint2 pick_e4m3(uint2 entry, u32 codes) {
    const u32 selectors = codes & 0x77777777, shifted = codes << 4;
    const u32 low = prmt(entry.x, entry.y, selectors), high = prmt(entry.x, entry.y, high_half(selectors));
    const u32 low_sign = prmt(codes, shifted, 0x9D8C), high_sign = prmt(codes, shifted, 0xBFAE);
    return {low ^ (low_sign & 0x80808080), high ^ (high_sign & 0x80808080)};
}

// Element pair (word-local indices) that register r of a K word holds after dequantisation to f16.
constexpr bool K_PAIRS_APART = K_DEQUANT == Dequant::place;
__device__ constexpr int k_pair(int r, int half) { return K_PAIRS_APART ? r + 4 * half : 2 * r + half; }
