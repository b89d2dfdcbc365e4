/* An engine's first steps in C: open a bundle, find the kernel of a step, ask why, and launch it where a GPU is.
 *
 *   cc guide.c -I<include> -L<lib> -lnvkv -lm -ldl -o guide && LD_LIBRARY_PATH=<lib> ./guide kernels-out/sm_90a
 *
 * Without a GPU it ends after the questions. The driver is loaded at run time, so that no CUDA toolkit is needed. */

#include "nvkv.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, KV_HEADS = 8, GROUP = 8, HEAD_DIM = 128, PAGE = 16, CONTEXT = 16 };

static void require(nvkv_status status, const char *what) {
    if (status != NVKV_OK) {
        fprintf(stderr, "%s: status %d: %s\n", what, (int)status, nvkv_last_error());
        exit(1);
    }
}

/* The few driver calls that an engine has anyway. */
typedef unsigned long long device_ptr;
static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*alloc)(device_ptr *, size_t);
    int (*fill)(device_ptr, unsigned char, size_t);
    int (*upload)(device_ptr, const void *, size_t);
    int (*download)(void *, device_ptr, size_t);
} cuda;

static int load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (library == NULL) return 0;
    *(void **)&cuda.init = dlsym(library, "cuInit");
    *(void **)&cuda.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&cuda.current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&cuda.alloc = dlsym(library, "cuMemAlloc_v2");
    *(void **)&cuda.fill = dlsym(library, "cuMemsetD8_v2");
    *(void **)&cuda.upload = dlsym(library, "cuMemcpyHtoD_v2");
    *(void **)&cuda.download = dlsym(library, "cuMemcpyDtoH_v2");
    return cuda.init(0) == 0 && cuda.retain(&context, 0) == 0 && cuda.current(context) == 0;
}

static void *zeroed(size_t bytes) {
    device_ptr at = 0;
    if (cuda.alloc(&at, bytes) != 0 || cuda.fill(at, 0, bytes) != 0) {
        fprintf(stderr, "cannot allocate %zu bytes on the device\n", bytes);
        exit(1);
    }
    return (void *)at;
}

/* One decode over a cache of zeros: the output is zero, and every log-sum-exp is ln(CONTEXT). */
static void launch(nvkv_runtime *runtime, const nvkv_problem *problem, const nvkv_shape *shape,
                   const nvkv_found *found) {
    const size_t row = HEAD_DIM / 2, scales = HEAD_DIM / 16, head = PAGE * row, page = KV_HEADS * head;
    const size_t scales_head = PAGE * scales, scales_page = KV_HEADS * scales_head, heads = KV_HEADS * GROUP;
    const int table[BATCH] = {0, 1}, lengths[BATCH] = {CONTEXT, CONTEXT};
    float lse[BATCH * KV_HEADS * GROUP];
    nvkv_decode_params p;
    memset(&p, 0, sizeof p);
    p.q = zeroed(BATCH * heads * HEAD_DIM * 2);
    p.out = zeroed(BATCH * heads * HEAD_DIM * 2);
    p.lse = zeroed(sizeof lse);
    p.k_data = zeroed(BATCH * page);
    p.v_data = zeroed(BATCH * page);
    p.k_scales = zeroed(BATCH * scales_page);
    p.v_scales = zeroed(BATCH * scales_page);
    p.block_table = zeroed(sizeof table);
    p.kv_len = zeroed(sizeof lengths);
    cuda.upload((device_ptr)p.block_table, table, sizeof table);
    cuda.upload((device_ptr)p.kv_len, lengths, sizeof lengths);
    p.q_stride_token = p.out_stride_token = heads * HEAD_DIM * 2;
    p.q_stride_head = p.out_stride_head = HEAD_DIM * 2;
    p.k_data_page = p.v_data_page = page;
    p.k_data_head = p.v_data_head = head;
    p.k_data_token = p.v_data_token = row;
    p.k_scales_page = p.v_scales_page = scales_page;
    p.k_scales_head = p.v_scales_head = scales_head;
    p.k_scales_token = p.v_scales_token = scales;
    p.block_table_stride = 1;
    p.batch = BATCH;
    p.kv_heads = KV_HEADS;
    p.sm_scale = 1.0f / sqrtf(HEAD_DIM);
    p.q_scale = p.k_scale = p.v_scale = 1.0f;
    if (found->workspace_bytes > 0) {
        p.workspace = zeroed(found->workspace_bytes);
        require(nvkv_zero_workspace(runtime, p.workspace, found->workspace_bytes, NULL), "nvkv_zero_workspace");
    }
    require(nvkv_decode(runtime, problem, shape, &p, found->workspace_bytes, NULL), "nvkv_decode");
    if (cuda.download(lse, (device_ptr)p.lse, sizeof lse) != 0 || fabsf(lse[0] - logf(CONTEXT)) > 1e-3f) {
        fprintf(stderr, "the log-sum-exp is %f, not %f\n", lse[0], logf(CONTEXT));
        exit(1);
    }
    printf("launched: log-sum-exp %.4f\n", lse[0]);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "kernels-out/sm_90a";
    nvkv_runtime *runtime = NULL;
    if (nvkv_open(folder, NULL, &runtime) != NVKV_OK) {
        fprintf(stderr, "cannot open the bundle: %s\n", nvkv_last_error());
        return 1;
    }
    nvkv_problem problem = {.operation = NVKV_DECODE,
                            .kv_format = NVKV_NVFP4,
                            .numerics = NVKV_NUMERICS_FP8,
                            .head_dim = HEAD_DIM,
                            .group = GROUP,
                            .q_len = 1,
                            .page_size = PAGE,
                            .dtype = NVKV_BF16,
                            .v_scale_order = NVKV_LINEAR};
    nvkv_shape shape = {.batch = BATCH, .max_context = CONTEXT, .kv_heads = KV_HEADS};
    nvkv_found found;
    require(nvkv_find(runtime, &problem, &shape, &found), "nvkv_find");
    printf("kernel %s, trust %d, workspace %llu bytes\n", found.kernel, (int)found.trust,
           (unsigned long long)found.workspace_bytes);

    char *text = NULL;
    require(nvkv_explain(runtime, &problem, &shape, 0, &text), "nvkv_explain");
    printf("%s", text);
    nvkv_string_free(text);

    nvkv_problem other = problem;
    other.head_dim = 96;
    if (nvkv_find(runtime, &other, &shape, &found) != NVKV_MISS) return 1;
    printf("miss: %s\n", nvkv_last_error());
    other.dtype = 7;
    if (nvkv_find(runtime, &other, &shape, &found) != NVKV_BAD_ARGUMENT) return 1;
    printf("bad argument: %s\n", nvkv_last_error());
    if (nvkv_find(NULL, &problem, &shape, &found) != NVKV_BAD_ARGUMENT) return 1;

    if (load_driver()) {
        require(nvkv_prepare(runtime, &problem), "nvkv_prepare");
        require(nvkv_find(runtime, &problem, &shape, &found), "nvkv_find");
        launch(runtime, &problem, &shape, &found);
    } else {
        nvkv_status status = nvkv_prepare(runtime, &problem);
        if (status != NVKV_NO_DEVICE) return 1;
        printf("no device: %s\n", nvkv_last_error());
    }

    require(nvkv_shape_histogram(runtime, &text), "nvkv_shape_histogram");
    printf("%s\n", text);
    nvkv_string_free(text);
    nvkv_close(runtime);
    return 0;
}
