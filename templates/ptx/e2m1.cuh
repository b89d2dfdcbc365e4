// Blackwell's E2M1 conversions. On other targets ptxas would emulate the one with ~20 instructions, and has not the other.

// Two E2M1 codes (byte `BYTE` of `codes`, even element in the low nibble) to f16x2: exact.
template <int BYTE>
__device__ __forceinline__ u32 e2m1x2_to_f16x2(u32 codes) {
    u32 out;
    if constexpr (BYTE == 0)
        asm("{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, a; }" : "=r"(out) : "r"(codes));
    if constexpr (BYTE == 1)
        asm("{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, b; }" : "=r"(out) : "r"(codes));
    if constexpr (BYTE == 2)
        asm("{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, c; }" : "=r"(out) : "r"(codes));
    if constexpr (BYTE == 3)
        asm("{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %1; cvt.rn.f16x2.e2m1x2 %0, d; }" : "=r"(out) : "r"(codes));
    return out;
}

// RN, saturating at 6: the code of `lo` in the low nibble of a byte.
__device__ __forceinline__ u32 f32x2_to_e2m1x2(float lo, float hi) {
    u32 out;
    asm("{ .reg .b8 byte; cvt.rn.satfinite.e2m1x2.f32 byte, %2, %1; cvt.u32.u8 %0, byte; }" : "=r"(out) : "f"(lo), "f"(hi));
    return out;
}
