// The shared table of RN_e4m3(magnitude * scale): 8 bytes for each of the 256 scale bytes.

__device__ __forceinline__ void build_table(u32 table) {
    for (int scale = threadIdx.x; scale < 256; scale += THREADS) {
        const float sf = e4m3_to_f32(scale);
        const u32 a = f32x2_to_e4m3x2(0.0f * sf, 0.5f * sf), b = f32x2_to_e4m3x2(sf, 1.5f * sf);
        const u32 c = f32x2_to_e4m3x2(2.0f * sf, 3.0f * sf), d = f32x2_to_e4m3x2(4.0f * sf, 6.0f * sf);
        store_shared(table + 8 * scale, a | b << 16, c | d << 16);
    }
}

// The eight magnitudes times the scale in byte `byte` of `scales`.
__device__ __forceinline__ uint2 table_entry(u32 table, u32 scales, int byte = 0) {
    u32 entry[2];
    load_shared<2>(entry, byte_product(scales, 8u << 8 * byte, table));
    return {entry[0], entry[1]};
}
