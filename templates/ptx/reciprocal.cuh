// 1 / x, 1 ulp; subnormal results flush to zero.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
