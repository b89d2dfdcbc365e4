// Warp-level data movement and special functions.

// Byte permute; selector nibbles 8..15 replicate the sign bit of byte (nibble - 8).
__device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 selector) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
    return out;
}

// Sum of the products of four unsigned bytes, plus c: picks and scales a byte by the multiplier, not the ALU pipe.
__device__ __forceinline__ u32 byte_product(u32 a, u32 b, u32 c) {
    u32 out;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// x >> BITS, by the multiplier as well.
template <int BITS>
__device__ __forceinline__ u32 shift_right(u32 x) {
    u32 out;
    asm("{ .reg .b64 wide; .reg .b32 low; mul.wide.u32 wide, %1, %2; mov.b64 {low, %0}, wide; }" : "=r"(out) : "r"(x), "n"(1u << (32 - BITS)));
    return out;
}

// Transpose of the 8x8 matrix of 16-bit elements that the warp holds as an MMA fragment.
__device__ __forceinline__ u32 transpose_8x8(u32 fragment) {
    u32 out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(fragment));
    return out;
}

// 2^x, relative error 2^-22; subnormal results flush to zero.
__device__ __forceinline__ float exp2_approx(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
