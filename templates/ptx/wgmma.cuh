// Hopper's warpgroup MMA, E4M3 or f16 operands: A in registers (each warp of the four brings its 16 rows),
// B in shared memory, fp32 accumulators with the fragment layout of mma.sync (one m16n8 block per 8 columns).

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Shared memory written by ordinary stores becomes visible to wgmma.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Descriptor of an unswizzled K-major B operand made of 8x16-byte core matrices: `k_stride` bytes between
// core matrices along K, `n_stride` along N (PTX ISA, "Matrix descriptor format").
struct Descriptor {
    u32 low, high;
    __device__ __forceinline__ Descriptor(u32 shared_address, u32 k_stride, u32 n_stride) : low((shared_address & 0x3FFFF) >> 4 | k_stride >> 4 << 16), high(n_stride >> 4) {}
    // Of the operand `bytes` further.
    __device__ __forceinline__ u64 at(u32 bytes) const { return (u64)high << 32 | low + bytes / 16; }
};

#define WGMMA_N8(form, last) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.b32 p, %9, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n8" form " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1" last "; }" \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define WGMMA_N16(form, last) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.b32 p, %13, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n16" form " {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1" last "; }" \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), \
          "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define WGMMA_N32(form, last) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.b32 p, %21, 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n32" form " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1" last "; }" \
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), \
          "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), \
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), \
          "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

// d[N / 8][4] = (accumulate ? d : 0) + A[64, 32] B[32, N].
template <int N>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[N / 8][4], const u32 (&a)[4], u64 b, int accumulate) {
    if constexpr (N == 8) WGMMA_N8("k32.f32.e4m3.e4m3", "");
    if constexpr (N == 16) WGMMA_N16("k32.f32.e4m3.e4m3", "");
    if constexpr (N == 32) WGMMA_N32("k32.f32.e4m3.e4m3", "");
}

// d[N / 8][4] = (accumulate ? d : 0) + A[64, 16] B[16, N].
template <int N>
__device__ __forceinline__ void wgmma_f16(float (&d)[N / 8][4], const u32 (&a)[4], u64 b, int accumulate) {
    if constexpr (N == 8) WGMMA_N8("k16.f32.f16.f16", ", 0");
    if constexpr (N == 16) WGMMA_N16("k16.f32.f16.f16", ", 0");
    if constexpr (N == 32) WGMMA_N32("k16.f32.f16.f16", ", 0");
}
