// Stored codes to tensor-core operands, a 32-bit word (eight E2M1 codes or four E4M3 bytes) at a time.

// f16 values here are e2m1 * 2^-14 (Dequant::place); the power is folded into the softmax and output scales.
constexpr float PLACE_SCALE = 16384.0f;

// A left shift by the multiplier, as shift_right is one. Of a constant factor the compiler would make a shift again, so the
// powers of two are variables to it.
struct Powers {
    u32 of[16];
    __device__ constexpr Powers() : of() {
        for (int bits = 0; bits < 16; bits++) of[bits] = 1u << bits;
    }
};
__constant__ Powers POWERS;
__device__ __forceinline__ u32 shift_left(u32 x, int bits) { return x * POWERS.of[bits]; }

// Codes n[i] (low half) and n[i + 4] (high half) to out[i]: sign to bit 15, the three magnitude bits to 11..9.
// A code of its own byte plus 0x38 carries its sign from bit 3 to bit 6, three above where f16 has it; what else the sum
// leaves is masked. Shift and sum are one multiply-add.
__device__ __forceinline__ void place_nibble_pairs(u32 codes, u32 (&out)[4]) {
    constexpr u32 CODES = 0x0F0F0F0F, CARRY = 0x38383838, PLACED = 0x8E008E00;
    const u32 even = codes & CODES, odd = codes >> 4 & CODES;
    out[0] = (shift_left(even, 9) + (CARRY << 9)) & PLACED, out[2] = (shift_left(even, 1) + (CARRY << 1)) & PLACED;
    out[1] = (shift_left(odd, 9) + (CARRY << 9)) & PLACED, out[3] = (shift_left(odd, 1) + (CARRY << 1)) & PLACED;
}

// Magnitudes of eight codes as E4M3 bytes in order: picked from the table entry with the codes as selectors.
__device__ __forceinline__ uint2 pick_magnitudes(uint2 entry, u32 codes) {
    const u32 selectors = codes & 0x77777777;
    return {prmt(entry.x, entry.y, selectors), prmt(entry.x, entry.y, shift_right<16>(selectors))};
}

// Eight codes to eight E4M3 bytes in order: signs spread by prmt's sign-replicate mode.
__device__ __forceinline__ uint2 pick_e4m3(uint2 entry, u32 codes) {
    const u32 shifted = shift_left(codes, 4);
    const auto [low, high] = pick_magnitudes(entry, codes);
    const u32 low_sign = prmt(codes, shifted, 0x9D8C), high_sign = prmt(codes, shifted, 0xBFAE);
    return {low ^ (low_sign & 0x80808080), high ^ (high_sign & 0x80808080)};
}

// Element pair (word-local indices) that register r of a K word holds after dequantisation to f16.
constexpr bool K_PAIRS_APART = K_DEQUANT == Dequant::place;
__device__ constexpr int k_pair(int r, int half) { return K_PAIRS_APART ? r + 4 * half : 2 * r + half; }
