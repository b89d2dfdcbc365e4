// Everything that follows from the constants: who holds what.
//
// g = lane / 4 and t = lane % 4 as in the MMA fragments. A warp works on tiles of TILE tokens, 16 at a time.
// Token `row` r of such a 16-block (an M row or an N column of the MMA) is the physical token
// (r >> 1 & 3) | (r & 1) << 2 | (r & 8): then lane (g, t) holds K of the physical tokens g/2 + 4(g%2) and + 8,
// and V of t, t + 4, t + 8, t + 12, and shared memory is read without bank conflicts.


__device__ constexpr int row_bytes(Format f) { return f == Format::nvfp4 ? HEAD_DIM / 2 : HEAD_DIM; }
__device__ constexpr int scale_bytes(Format f) { return f == Format::nvfp4 ? HEAD_DIM / 16 : 0; }
// Elements a 32-bit word.
__device__ constexpr int word_elements(Format f) { return f == Format::nvfp4 ? 8 : 4; }
constexpr float LOG2E = 1.4426950408889634f;
constexpr float INFINITY_F32 = __builtin_bit_cast(float, 0x7F800000);
__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__device__ constexpr int larger(int a, int b) { return a < b ? b : a; }

constexpr int THREADS = WARPS * 32;
constexpr int STEP_TOKENS = WARPS * TILE;               // a tile of each warp
constexpr int BLOCKS = TILE / 16;                       // 16-token blocks a tile
constexpr int ROWS = GROUP * Q_LEN;                     // query rows of one KV head
constexpr int ROW_TILES = (ROWS + QUERY_TILE - 1) / QUERY_TILE;

// Query rows on N in blocks of 8 (swapped), or on M in blocks of 16.
constexpr int Q_BLOCKS = SWAPPED ? QUERY_TILE / 8 : QUERY_TILE / 16;
constexpr int HALVES = SWAPPED ? 1 : 2;                 // straight: a 16-token block is two n8 blocks
constexpr int SLOTS = 2 * Q_BLOCKS;                     // query rows a lane holds scores of
constexpr int O_TILES = SWAPPED ? HEAD_DIM / 16 : HEAD_DIM / 8;

// The cache row of K, as lane t reads it: K_CHUNKS chunks, chunk c at byte (4c + t) * K_CHUNK.
constexpr int K_ROW = row_bytes(K_FORMAT), K_SCALES = scale_bytes(K_FORMAT);
constexpr int K_CHUNK = smaller(16, K_ROW / 4);
constexpr int K_CHUNKS = K_ROW / 4 / K_CHUNK;
constexpr int K_CHUNK_WORDS = K_CHUNK / 4;
constexpr int K_WORDS = K_CHUNKS * K_CHUNK_WORDS;
constexpr int K_CHUNK_ELEMENTS = K_CHUNK_WORDS * word_elements(K_FORMAT);
constexpr int K_CHUNK_SCALES = K_SCALES ? K_CHUNK_ELEMENTS / 16 : 0;

// The cache row of V, as lane g reads it: V_CHUNKS chunks, chunk c at byte (8c + g) * V_CHUNK.
constexpr int V_ROW = row_bytes(V_FORMAT), V_SCALES = scale_bytes(V_FORMAT);
constexpr int V_CHUNK = smaller(16, V_ROW / 8);
constexpr int V_CHUNKS = V_ROW / 8 / V_CHUNK;
constexpr int V_CHUNK_WORDS = V_CHUNK / 4;
constexpr int V_WORDS = V_CHUNKS * V_CHUNK_WORDS;
constexpr int V_CHUNK_ELEMENTS = V_CHUNK_WORDS * word_elements(V_FORMAT);

// What the chunks above and the swizzle of load.cuh divide by.
static_assert(K_ROW == 32 || K_ROW == 64 || K_ROW % 128 == 0, "a K row is 32, 64 or a multiple of 128 bytes");
static_assert(V_ROW == 32 || V_ROW == 64 || V_ROW % 128 == 0, "a V row is 32, 64 or a multiple of 128 bytes");
static_assert(TILE % 16 == 0 && PAGE % 8 == 0, "tiles come in sixteens, pages in eights");

// Elements of a row that one lane holds.
constexpr int K_SLICE = HEAD_DIM / 4, V_SLICE = HEAD_DIM / 8;
constexpr int V_SLICE_SCALES = V_SLICE > 16 ? 2 : 1;

// Head-dim index of element e of lane t's K slice, and of element e of lane g's V slice.
__device__ constexpr int k_element(int t, int e) {
    return (e / K_CHUNK_ELEMENTS * 4 + t) * K_CHUNK_ELEMENTS + e % K_CHUNK_ELEMENTS;
}
__device__ constexpr int v_element(int g, int e) {
    return (e / V_CHUNK_ELEMENTS * 8 + g) * V_CHUNK_ELEMENTS + e % V_CHUNK_ELEMENTS;
}

// Which of a lane's two query rows of a block accumulator register i belongs to: scores and output alike.
__device__ constexpr int slot_of(int i) { return SWAPPED ? i & 1 : i >> 1; }

struct Lane {
    int index, g, t;
};

__device__ __forceinline__ Lane this_lane() {
    const int lane = threadIdx.x & 31;
    return {lane, lane >> 2, lane & 3};
}

// Query row (within the block's QUERY_TILE) of this lane's slot s.
__device__ __forceinline__ int row_of_slot(Lane lane, int s) {
    return SWAPPED ? (s >> 1) * 8 + 2 * lane.t + (s & 1) : (s >> 1) * 16 + lane.g + 8 * (s & 1);
}

// Physical token (0..15) of score register i of half h.
__device__ __forceinline__ int token_of(Lane lane, int h, int i) {
    const int row = SWAPPED ? lane.g + 8 * (i >> 1) : 8 * h + 2 * lane.t + (i & 1);
    return (row >> 1 & 3) | (row & 1) << 2 | (row & 8);
}

// Physical token of K row `half` (0, 1), and of V row i (0..3), that this lane dequantises.
__device__ __forceinline__ int k_token(Lane lane, int half) { return (lane.g >> 1) + 4 * (lane.g & 1) + 8 * half; }
__device__ __forceinline__ int v_token(Lane lane, int i) { return lane.t + 4 * i; }

// Reduction over the lanes that hold other tokens of the same query rows.
constexpr int REDUCE_FIRST = SWAPPED ? 4 : 1, REDUCE_LAST = SWAPPED ? 16 : 2;

struct KBlock {                                         // K of 16 tokens: this lane's part
    u32 words[2][K_WORDS];
    u32 scales[2][K_CHUNKS];                            // K_CHUNK_SCALES bytes each
};
struct VBlock {                                         // V of 16 tokens: this lane's part
    u32 words[4][V_WORDS];
    u32 scales[4][V_SLICE_SCALES];                      // a byte each
};

// Softmax state of a warp, or of several merged, with output tiles of a part of the head dim, or of all of it.
template <int TILES>
struct Part {
    float max[SLOTS];                                   // of raw scores
    float sum[SLOTS];                                   // of exp2, this lane's tokens only until merged
    float out[TILES][Q_BLOCKS][4];
};
typedef Part<O_TILES> State;
