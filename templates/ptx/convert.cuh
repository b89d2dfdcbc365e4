// Conversions between storage and operand types. One PTX instruction a function.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;

// Two E4M3 bytes (low half of `bytes`) to f16x2: exact.
__device__ __forceinline__ u32 e4m3x2_to_f16x2(u32 bytes) {
    u32 out;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(out) : "r"(bytes));
    return out;
}

// Two E4M3 bytes in the high half of `bytes` to f16x2: exact.
__device__ __forceinline__ u32 e4m3x2_hi_to_f16x2(u32 bytes) {
    u32 out;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, hi; }" : "=r"(out) : "r"(bytes));
    return out;
}

// RN, saturating at 448: `lo` becomes the low byte.
__device__ __forceinline__ u32 f32x2_to_e4m3x2(float lo, float hi) {
    u16 out;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(out) : "f"(lo), "f"(hi));
    return out;
}

__device__ __forceinline__ u32 f32x2_to_f16x2(float lo, float hi) {
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(out) : "f"(lo), "f"(hi));
    return out;
}

__device__ __forceinline__ u32 f32x2_to_bf16x2(float lo, float hi) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(out) : "f"(lo), "f"(hi));
    return out;
}

__device__ __forceinline__ float f16_to_f32(u32 bits) {
    float out;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.f32.f16 %0, lo; }" : "=f"(out) : "r"(bits));
    return out;
}

__device__ __forceinline__ float bf16_to_f32(u32 bits) { return __uint_as_float(bits << 16); }

__device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
    u32 out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

// The larger of each half; NaN where either is.
template <bool BF16>
__device__ __forceinline__ u32 max_x2(u32 a, u32 b) {
    u32 out;
    if constexpr (BF16) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    else asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

// One E4M3 byte to f32: exact.
__device__ __forceinline__ float e4m3_to_f32(u32 byte) { return f16_to_f32(e4m3x2_to_f16x2(byte)); }
