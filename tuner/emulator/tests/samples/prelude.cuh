// What the samples use of cooperative groups, by the barriers that stand behind it.
namespace cg {
struct thread_block {
    __device__ unsigned thread_rank() const {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
};
template <int SIZE> struct thread_block_tile {};
__device__ inline thread_block this_thread_block() { return {}; }
template <int SIZE> __device__ thread_block_tile<SIZE> tiled_partition(thread_block) { return {}; }
__device__ inline void sync(thread_block) { __syncthreads(); }
__device__ inline void sync(thread_block_tile<32>) { __syncwarp(); }
}  // namespace cg
