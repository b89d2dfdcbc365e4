/* libnvkv: find, load and launch NVFP4-KV attention kernels. Written by cbindgen from the Rust source: do not edit. The
   guide is docs/engine-guide.md. Pointers in nvkv_decode_params and nvkv_append_params are device addresses. */

#ifndef NVKV_H
#define NVKV_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
/**
 * What a decode or fused kernel takes. Strides are in bytes.
 */
typedef struct nvkv_decode_params {
  /**
   * queries [batch * q_len, Hq, D], f16 or bf16
   */
  const void* q;
  /**
   * output [batch * q_len, Hq, D], same type as q
   */
  void* out;
  /**
   * log-sum-exp [batch * q_len, Hq], natural log, the sink included; may be null
   */
  float* lse;
  /**
   * K codes, first byte of page 0
   */
  unsigned char* k_data;
  /**
   * K block scales; null where the format has none
   */
  unsigned char* k_scales;
  /**
   * V codes, first byte of page 0
   */
  unsigned char* v_data;
  /**
   * V block scales; null where the format has none
   */
  unsigned char* v_scales;
  /**
   * page of each block of tokens [batch, block_table_stride]
   */
  const int* block_table;
  /**
   * cached tokens a request, the q_len new ones included [batch]; 0 gives out = 0, lse = -inf or the sink
   */
  const int* kv_len;
  /**
   * this step's K [batch * q_len, Hkv, D]; fused append only
   */
  const void* new_k;
  /**
   * this step's V [batch * q_len, Hkv, D]; fused append only
   */
  const void* new_v;
  /**
   * count of non-finite new elements, added to; fused append only
   */
  unsigned int* status;
  /**
   * split counters, the first 1 MiB, zeroed once and left zeroed; then partial results. 256-byte aligned; unused where max_splits is 1
   */
  unsigned char* workspace;
  /**
   * bytes between query tokens
   */
  long long q_stride_token;
  /**
   * bytes between query heads
   */
  long long q_stride_head;
  /**
   * bytes between output tokens
   */
  long long out_stride_token;
  /**
   * bytes between output heads
   */
  long long out_stride_head;
  /**
   * bytes between pages, below 2^32, of k_data
   */
  long long k_data_page;
  /**
   * bytes between heads of k_data
   */
  long long k_data_head;
  /**
   * bytes between tokens, below 2^32, of k_data
   */
  long long k_data_token;
  /**
   * bytes between pages, below 2^32, of k_scales
   */
  long long k_scales_page;
  /**
   * bytes between heads of k_scales
   */
  long long k_scales_head;
  /**
   * bytes between tokens, below 2^32, of k_scales
   */
  long long k_scales_token;
  /**
   * bytes between pages, below 2^32, of v_data
   */
  long long v_data_page;
  /**
   * bytes between heads of v_data
   */
  long long v_data_head;
  /**
   * bytes between tokens, below 2^32, of v_data
   */
  long long v_data_token;
  /**
   * bytes between pages, below 2^32, of v_scales
   */
  long long v_scales_page;
  /**
   * bytes between heads of v_scales
   */
  long long v_scales_head;
  /**
   * bytes between tokens, below 2^32, of v_scales (linear order only)
   */
  long long v_scales_token;
  /**
   * bytes between tokens of new_k
   */
  long long new_k_stride_token;
  /**
   * bytes between heads of new_k
   */
  long long new_k_stride_head;
  /**
   * bytes between tokens of new_v
   */
  long long new_v_stride_token;
  /**
   * bytes between heads of new_v
   */
  long long new_v_stride_head;
  /**
   * entries between rows of block_table
   */
  long long block_table_stride;
  /**
   * requests
   */
  unsigned int batch;
  /**
   * KV heads
   */
  unsigned int kv_heads;
  /**
   * splits a request at most: the grid's z extent
   */
  unsigned int max_splits;
  /**
   * tokens a split at least, before the last ones are halved
   */
  unsigned int min_split_tokens;
  /**
   * how often a request's last split is halved; below max_splits, at most 16
   */
  unsigned int taper;
  /**
   * softmax scale, usually 1 / sqrt(D)
   */
  float sm_scale;
  /**
   * fp32 scale of Q where it is quantised to E4M3: q8 = RN_e4m3(q / q_scale)
   */
  float q_scale;
  /**
   * fp32 scale of the K tensor
   */
  float k_scale;
  /**
   * fp32 scale of the V tensor
   */
  float v_scale;
  /**
   * tokens that a query sees, at least 1: the newest up to its own; problems with a window only
   */
  unsigned int window;
  /**
   * bound of the scores, natural units, positive: s becomes soft_cap * tanh(s / soft_cap); problems with a soft cap only
   */
  float soft_cap;
  /**
   * logit of each query head that joins the denominator of its softmax, natural units; -inf is none [Hq]; problems with sinks only
   */
  const float* sinks;
} nvkv_decode_params;

/**
 * What an append kernel takes. Strides are in bytes.
 */
typedef struct nvkv_append_params {
  /**
   * new keys [tokens, Hkv, D], f16 or bf16
   */
  const void* k;
  /**
   * new values [tokens, Hkv, D], f16 or bf16
   */
  const void* v;
  /**
   * page * page_size + offset of each token; negative skips it, though its rows of k and v are read [tokens]
   */
  const long long* slot_mapping;
  /**
   * K codes, first byte of page 0
   */
  unsigned char* k_data;
  /**
   * K block scales; null where the format has none
   */
  unsigned char* k_scales;
  /**
   * V codes, first byte of page 0
   */
  unsigned char* v_data;
  /**
   * V block scales; null where the format has none
   */
  unsigned char* v_scales;
  /**
   * count of non-finite elements, added to
   */
  unsigned int* status;
  /**
   * bytes between tokens of k
   */
  long long k_stride_token;
  /**
   * bytes between heads of k
   */
  long long k_stride_head;
  /**
   * bytes between tokens of v
   */
  long long v_stride_token;
  /**
   * bytes between heads of v
   */
  long long v_stride_head;
  /**
   * bytes between pages, below 2^32, of k_data
   */
  long long k_data_page;
  /**
   * bytes between heads of k_data
   */
  long long k_data_head;
  /**
   * bytes between tokens, below 2^32, of k_data
   */
  long long k_data_token;
  /**
   * bytes between pages, below 2^32, of k_scales
   */
  long long k_scales_page;
  /**
   * bytes between heads of k_scales
   */
  long long k_scales_head;
  /**
   * bytes between tokens, below 2^32, of k_scales
   */
  long long k_scales_token;
  /**
   * bytes between pages, below 2^32, of v_data
   */
  long long v_data_page;
  /**
   * bytes between heads of v_data
   */
  long long v_data_head;
  /**
   * bytes between tokens, below 2^32, of v_data
   */
  long long v_data_token;
  /**
   * bytes between pages, below 2^32, of v_scales
   */
  long long v_scales_page;
  /**
   * bytes between heads of v_scales
   */
  long long v_scales_head;
  /**
   * bytes between tokens, below 2^32, of v_scales (linear order only)
   */
  long long v_scales_token;
  /**
   * new tokens
   */
  unsigned int tokens;
  /**
   * KV heads
   */
  unsigned int kv_heads;
  /**
   * fp32 scale of the K tensor
   */
  float k_scale;
  /**
   * fp32 scale of the V tensor
   */
  float v_scale;
} nvkv_append_params;


/**
 * Paged attention of 1 to 8 new tokens a request over the cache.
 */
#define NVKV_DECODE 0

/**
 * The same, with this step's K and V requantised into the cache first.
 */
#define NVKV_FUSED 1

/**
 * K and V rows to cache pages by slot mapping.
 */
#define NVKV_APPEND 2

/**
 * K and V in NVFP4: E2M1 codes, an E4M3 scale for 16 elements.
 */
#define NVKV_NVFP4 0

/**
 * K and V in E4M3.
 */
#define NVKV_FP8_E4M3 1

/**
 * K in E4M3, V in NVFP4.
 */
#define NVKV_FP8_E4M3_NVFP4 2

/**
 * Cached elements rounded to E4M3, Q in E4M3 with a scale a tensor.
 */
#define NVKV_NUMERICS_FP8 0

/**
 * Cached elements exact in f16, Q in f16.
 */
#define NVKV_NUMERICS_EXACT 1

/**
 * IEEE binary16.
 */
#define NVKV_F16 0

/**
 * bfloat16.
 */
#define NVKV_BF16 1

/**
 * V scale s of token t at t * token stride + s.
 */
#define NVKV_LINEAR 0

/**
 * Groups of four tokens side by side: (t / 4) * 4S + 4s + t % 4, S = head_dim / 16.
 */
#define NVKV_INTERLEAVED4 1

/**
 * Every request has about as many cached tokens as the longest.
 */
#define NVKV_EQUAL 0

/**
 * Short and long requests in one batch, from 256 tokens to the longest, evenly in their logarithm.
 */
#define NVKV_LOG_UNIFORM 1

/**
 * What came of a call. Past NVKV_OK, nvkv_last_error says what is wrong and what to do.
 */
typedef enum nvkv_status {
  /**
   * Done.
   */
  NVKV_OK = 0,
  /**
   * The bundle has no kernel for this.
   */
  NVKV_MISS = 1,
  /**
   * An argument is wrong: a null or misaligned pointer, a stride, a size, a number that names nothing.
   */
  NVKV_BAD_ARGUMENT = 2,
  /**
   * The bundle or the database cannot be used.
   */
  NVKV_UNUSABLE = 3,
  /**
   * No driver, no current context, or a GPU of another target.
   */
  NVKV_NO_DEVICE = 4,
  /**
   * The kernel is not loaded in the current context: call nvkv_prepare.
   */
  NVKV_NOT_LOADED = 5,
  /**
   * The CUDA driver refused.
   */
  NVKV_CUDA = 6,
  /**
   * A defect of nvkv.
   */
  NVKV_INTERNAL = 7,
} nvkv_status;

/**
 * Where a choice comes from.
 */
typedef enum nvkv_trust {
  /**
   * Verified and timed at this very shape.
   */
  NVKV_TRUST_EXACT = 0,
  /**
   * Verified, and timed at the nearest tuned shape.
   */
  NVKV_TRUST_BUCKET = 1,
  /**
   * Never timed: the order is a model's, at the nearest shape.
   */
  NVKV_TRUST_PREDICTED = 2,
  /**
   * The problem's default variant: no tuned shape is near.
   */
  NVKV_TRUST_FALLBACK = 3,
} nvkv_trust;

/**
 * An open bundle. Every function may be called from any thread at any time, except nvkv_close.
 */
typedef struct nvkv_runtime nvkv_runtime;

/**
 * What is asked of a kernel; fixed when it is compiled. An append reads neither numerics, group nor
 * q_len, nor what follows v_scale_order.
 */
typedef struct nvkv_problem {
  /**
   * NVKV_DECODE, NVKV_FUSED or NVKV_APPEND.
   */
  uint32_t operation;
  /**
   * NVKV_NVFP4, NVKV_FP8_E4M3 or NVKV_FP8_E4M3_NVFP4.
   */
  uint32_t kv_format;
  /**
   * NVKV_NUMERICS_FP8 or NVKV_NUMERICS_EXACT.
   */
  uint32_t numerics;
  /**
   * Elements of a head: 64, 128 or 256.
   */
  uint32_t head_dim;
  /**
   * Query heads a KV head, 1 to 16.
   */
  uint32_t group;
  /**
   * New tokens a request, 1 to 8.
   */
  uint32_t q_len;
  /**
   * Tokens a page: 8, 16, 32, 64 or 128.
   */
  uint32_t page_size;
  /**
   * Type of Q, of the output and of new K and V: NVKV_F16 or NVKV_BF16.
   */
  uint32_t dtype;
  /**
   * NVKV_LINEAR or NVKV_INTERLEAVED4: that of the cache.
   */
  uint32_t v_scale_order;
  /**
   * Sliding window, tokens that a query sees, its own among them; 0 for none. Kernels are tuned at this length, and run
   * at that of nvkv_decode_params.
   */
  uint32_t window;
  /**
   * 1 where each query head has a logit in the denominator of its softmax (nvkv_decode_params), else 0.
   */
  uint32_t sinks;
  /**
   * 1 where scores are bounded by a cap (nvkv_decode_params), else 0.
   */
  uint32_t soft_cap;
} nvkv_problem;

/**
 * Run-time sizes of a call.
 */
typedef struct nvkv_shape {
  /**
   * Requests; for an append, new tokens.
   */
  uint32_t batch;
  /**
   * Longest context of any request, tokens; shorter ones are served too. An append does not read it.
   */
  uint32_t max_context;
  /**
   * KV heads.
   */
  uint32_t kv_heads;
  /**
   * How the contexts of a batch are distributed up to max_context: NVKV_EQUAL or NVKV_LOG_UNIFORM. A choice of speed:
   * either is right for any. An append does not read it.
   */
  uint32_t lengths;
} nvkv_shape;

/**
 * What nvkv_find answers.
 */
typedef struct nvkv_found {
  /**
   * Id of the kernel; lives as long as the runtime.
   */
  const char *kernel;
  /**
   * Where the choice comes from.
   */
  enum nvkv_trust trust;
  /**
   * Distance of the tuned shape in doublings; NaN for a fallback.
   */
  double distance;
  /**
   * How much slower than the best it was measured to be at shapes it serves, as a share; NaN where not known.
   */
  double regret;
  /**
   * Blocks in x, y, z.
   */
  uint32_t grid[3];
  /**
   * Threads a block.
   */
  uint32_t threads;
  /**
   * Dynamic shared memory a block, bytes.
   */
  uint32_t shared_bytes;
  /**
   * Splits a request at most.
   */
  uint32_t max_splits;
  /**
   * Tokens a split at least.
   */
  uint32_t min_split_tokens;
  /**
   * How often a request's last split is halved.
   */
  uint32_t taper;
  /**
   * Workspace that the launch needs, bytes.
   */
  uint64_t workspace_bytes;
} nvkv_found;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Opens the bundle in the folder `bundle`, with the winners of the database file `db` beside its own where that is not
 * null. Checks schema, digest and hashes. Free with nvkv_close.
 *
 * # Safety
 * Strings end in a zero byte; `out` may be written to.
 */
enum nvkv_status nvkv_open(const char *bundle,
                           const char *db,
                           struct nvkv_runtime **out);

/**
 * Frees a runtime; null is allowed. Loaded kernels stay in their contexts: captured graphs stay valid.
 *
 * # Safety
 * `runtime` came from nvkv_open, and is used no more.
 */
void nvkv_close(struct nvkv_runtime *runtime);

/**
 * The kernel for `problem` at `shape`: NVKV_OK, or NVKV_MISS with the reason in nvkv_last_error. Nanoseconds where the
 * same was asked before.
 *
 * # Safety
 * Pointers are null or valid; `runtime` is open.
 */
enum nvkv_status nvkv_find(const struct nvkv_runtime *runtime,
                           const struct nvkv_problem *problem,
                           const struct nvkv_shape *shape,
                           struct nvkv_found *out);

/**
 * Why nvkv_find answers as it does, what is near, and what would have to be tuned, as text or as JSON. Free `out` with
 * nvkv_string_free.
 *
 * # Safety
 * Pointers are null or valid; `runtime` is open.
 */
enum nvkv_status nvkv_explain(const struct nvkv_runtime *runtime,
                              const struct nvkv_problem *problem,
                              const struct nvkv_shape *shape,
                              bool json,
                              char **out);

/**
 * Which shapes were asked for and how they were served, as JSON for `nvkv-tune --shapes`. Free `out` with
 * nvkv_string_free.
 *
 * # Safety
 * Pointers are null or valid; `runtime` is open.
 */
enum nvkv_status nvkv_shape_histogram(const struct nvkv_runtime *runtime,
                                      char **out);

/**
 * Frees a string that this library gave; null is allowed.
 *
 * # Safety
 * `text` came from this library, and is used no more.
 */
void nvkv_string_free(char *text);

/**
 * Loads the kernels of `problem` (null: of all problems) into the CUDA context that is current on this thread. Ahead of
 * launches and captures: it reads files and allocates.
 *
 * # Safety
 * Pointers are null or valid; `runtime` is open.
 */
enum nvkv_status nvkv_prepare(const struct nvkv_runtime *runtime,
                              const struct nvkv_problem *problem);

/**
 * Puts a decode or fused launch of `problem` into `stream` (a CUstream): it neither allocates nor waits, and may be
 * captured into a graph. `shape` is that of nvkv_find: its batch and KV heads are those of `params`, whose `max_splits`,
 * `min_split_tokens` and `taper` are set here. `workspace_bytes` is the size of `params->workspace`, whose first MiB was
 * zeroed once (nvkv_zero_workspace).
 *
 * # Safety
 * Host pointers are null or valid; device pointers are as the fields of `params` say, in the current context.
 */
enum nvkv_status nvkv_decode(const struct nvkv_runtime *runtime,
                             const struct nvkv_problem *problem,
                             const struct nvkv_shape *shape,
                             const nvkv_decode_params *params,
                             uint64_t workspace_bytes,
                             void *stream);

/**
 * Puts an append launch of `problem` into `stream` (a CUstream): it neither allocates nor waits, and may be captured.
 *
 * # Safety
 * As for nvkv_decode; no slot comes twice.
 */
enum nvkv_status nvkv_append(const struct nvkv_runtime *runtime,
                             const struct nvkv_problem *problem,
                             const nvkv_append_params *params,
                             void *stream);

/**
 * Zeroes what must be zero in a workspace of `bytes` bytes at device address `workspace`, in stream order: once after it
 * was allocated, and again only after a launch that failed.
 *
 * # Safety
 * `workspace` has so many bytes in the current context, and `stream` is one of its streams.
 */
enum nvkv_status nvkv_zero_workspace(const struct nvkv_runtime *runtime,
                                     void *workspace,
                                     uint64_t bytes,
                                     void *stream);

/**
 * What this thread's last call that failed says, and what to do; empty before the first. Lives until the thread's next
 * call that fails.
 */
const char *nvkv_last_error(void);

/**
 * What this thread's last call that failed says, and what to do; empty before the first. Lives until the thread's next
 * call that fails.
 */
const char *nvkv_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVKV_H */
