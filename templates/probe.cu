// What a measurement needs beside its candidates: a plain read kernel (the read ceiling, and the L2
// flush: reads leave no dirty lines behind, a memset would), a plain transfer (what a call takes that
// only moves its bytes) and a fill kernel (random caches of several GB are made on the device).
// Compiled as it is; no template.

struct ReadParams {
  const uint4* data;           // vectors * 16 bytes
  unsigned int* sink;          // one word; written only if the data hashes to a value that it does not have
  unsigned long long vectors;  // 16-byte vectors to read
};

// Independent loads in flight a thread.
constexpr int kUnroll = 8;

extern "C" __global__ void __launch_bounds__(512) nvkv_probe_read(const ReadParams p) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned int x = 0;
  for (; i + (kUnroll - 1) * step < p.vectors; i += kUnroll * step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = p.data[i + u * step];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  for (; i < p.vectors; i += step) {
    const uint4 v = p.data[i];
    x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  // Keeps the loads alive; for random data the store happens once in 2^32 threads, and harms nothing.
  if (x == 0x9e3779b9u) *p.sink = x;
}

struct TransferParams {
  const uint4* source;         // read * 16 bytes
  uint4* destination;          // written * 16 bytes
  unsigned int* sink;          // as of ReadParams
  unsigned long long read;     // 16-byte vectors to read
  unsigned long long written;  // 16-byte vectors to write: those read at the same index, zeros past them
};

// Small transfers are what this is for: few threads have kUnroll vectors then, so each vector is
// tested, and all that there are stay in flight together.
extern "C" __global__ void __launch_bounds__(512) nvkv_probe_transfer(const TransferParams p) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  const unsigned long long end = p.read > p.written ? p.read : p.written;
  unsigned int x = 0;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += kUnroll * step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = i + u * step < p.read ? p.source[i + u * step] : uint4{0, 0, 0, 0};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < p.written) p.destination[i + u * step] = v[u];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (x == 0x9e3779b9u) *p.sink = x;
}

struct FillParams {
  uint4* data;                 // vectors * 16 bytes
  unsigned long long vectors;  // 16-byte vectors to write
  unsigned long long first;    // index of the first word in the random sequence
  unsigned int keep;           // bits of a word that stay random
  unsigned int add;            // added to the word afterwards, without carries between bytes
};

// The 32-bit mixer "lowbias32" (Chris Wellons, hash-prospector). measure/fill.rs computes the same.
__device__ unsigned int mix(unsigned int x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ unsigned int random_word(unsigned long long index) {
  return mix((unsigned int)index ^ mix((unsigned int)(index >> 32) + 0x9e3779b9u));
}

extern "C" __global__ void nvkv_probe_fill(const FillParams p) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.vectors; i += step) {
    const unsigned long long word = p.first + 4 * i;
    uint4 v;
    v.x = (random_word(word) & p.keep) + p.add;
    v.y = (random_word(word + 1) & p.keep) + p.add;
    v.z = (random_word(word + 2) & p.keep) + p.add;
    v.w = (random_word(word + 3) & p.keep) + p.add;
    p.data[i] = v;
  }
}
