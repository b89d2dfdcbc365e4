// Global to shared or registers. Cache data is read once: it goes around L1.

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// `count` strides further: one wide multiply-add, which a compiler that sees the sum takes apart. Page and token strides
// are below 4 GiB.
__device__ __forceinline__ const u8* advance(const u8* from, u32 count, long long stride) {
    const u8* to;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(to) : "r"(count), "r"((u32)stride), "l"(from));
    return to;
}

// Asynchronous copy of BYTES (4, 8 or 16), aligned to BYTES on both sides.
template <int BYTES>
__device__ __forceinline__ void copy_async(u32 to, const void* from) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING groups of this thread are in flight.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// WORDS 32-bit words from global memory, aligned to min(16, 4 * WORDS) bytes. Not `.nc`: a fused kernel
// reads rows that it wrote itself.
template <int WORDS>
__device__ __forceinline__ void load_global(u32* to, const void* from) {
    if constexpr (WORDS == 1)
        asm volatile("ld.global.L1::no_allocate.b32 %0, [%1];" : "=r"(to[0]) : "l"(from));
    if constexpr (WORDS == 2)
        asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
    if constexpr (WORDS == 4)
        asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}

__device__ __forceinline__ void store_global(void* to, uint2 words) { asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y) : "memory"); }
__device__ __forceinline__ void store_global(void* to, uint4 words) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
}
__device__ __forceinline__ void store_global_half(void* to, u32 half) { asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"((u16)half) : "memory"); }
__device__ __forceinline__ void store_global_byte(void* to, u32 byte) { asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(byte) : "memory"); }

__device__ __forceinline__ void store_shared(u32 to, u32 word) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory"); }
__device__ __forceinline__ void store_shared(u32 to, u32 first, u32 second) { asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory"); }
__device__ __forceinline__ void store_shared_byte(u32 to, u32 byte) { asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(byte) : "memory"); }

// WORDS 32-bit words from shared memory, same alignment.
template <int WORDS>
__device__ __forceinline__ void load_shared(u32* to, u32 from) {
    if constexpr (WORDS == 1)
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(to[0]) : "r"(from));
    if constexpr (WORDS == 2)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
    if constexpr (WORDS == 4)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
}

// The next number of `counter`, in global memory. What the block wrote before its last barrier is there for whoever takes
// a later number; what it reads after its next barrier is what those before it wrote.
__device__ __forceinline__ u32 take_ticket(u32* counter) {
    u32 number;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(number) : "l"(counter) : "memory");
    return number;
}

// *from where `wanted`, else 0. Asked for where it stands, and not where it is used first.
__device__ __forceinline__ int load_if(bool wanted, const int* from) {
    int number;
    asm volatile("{ .reg .pred wanted; setp.ne.u32 wanted, %1, 0; mov.b32 %0, 0; @wanted ld.global.b32 %0, [%2]; }" : "=r"(number) : "r"((u32)wanted), "l"(from));
    return number;
}

// BYTES (1 or 2) zero-extended.
template <int BYTES>
__device__ __forceinline__ u32 load_global_narrow(const void* from) {
    u16 out;
    if constexpr (BYTES == 1) asm volatile("ld.global.u8 %0, [%1];" : "=h"(out) : "l"(from));
    if constexpr (BYTES == 2) asm volatile("ld.global.u16 %0, [%1];" : "=h"(out) : "l"(from));
    return out;
}
template <int BYTES>
__device__ __forceinline__ u32 load_shared_narrow(u32 from) {
    u16 out;
    if constexpr (BYTES == 1) asm volatile("ld.shared.u8 %0, [%1];" : "=h"(out) : "r"(from));
    if constexpr (BYTES == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=h"(out) : "r"(from));
    return out;
}
