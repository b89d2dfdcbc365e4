"""Time FlashInfer's paged decode (BF16, FP8, NVFP4 KV cache) and check it in float32.

A yardstick: run it beside our own kernels, on the same card. Bytes count K, V and block scales once.
`python flashinfer_decode.py FOLDER` also writes FOLDER/flashinfer_<cache>.json for `nvkv-tune bench --peer`.
Needs PyTorch with CUDA 13 and `flashinfer-python==0.6.13`; FlashInfer compiles three modules at first use.
"""
import json
import math
import os
import sys

os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
os.environ.setdefault("FLASHINFER_DISABLE_VERSION_CHECK", "1")

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper

HEAD_DIM, KV_HEADS, GROUP, PAGE = 128, 8, 8, 16
SHAPES = [(1, 32768), (1, 131072), (8, 8192), (16, 32768), (64, 4096), (64, 16384), (128, 8192), (64, "256 to 65536")]
BYTES_PER_ELEMENT = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}
KV_DTYPE = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "nvfp4": torch.uint8}
E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], device="cuda")


def lengths_of(batch, context):
    """Equal lengths, or the log-uniform quantiles of `nvkv-tune`'s ragged batch (their order does not matter here)."""
    if context == "256 to 65536":
        return [round(256 * 256 ** ((i + 0.5) / batch)) for i in range(batch)]
    return [context] * batch


def median_us(run, count=20, warmup=3):
    for i in range(warmup):
        run(i)
    torch.cuda.synchronize()
    times = []
    for i in range(count):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # about 1 ms: the host launches ahead, so that its time is not measured
        start.record()
        run(i)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return sorted(times)[count // 2]


def random_cache(kind, pages):
    shape = (pages, KV_HEADS, PAGE)
    if kind == "nvfp4":
        data = [torch.randint(0, 256, (*shape, HEAD_DIM // 2), dtype=torch.uint8, device="cuda") for _ in "kv"]
        scales = [torch.randint(0x20, 0x40, (*shape, HEAD_DIM // 16), dtype=torch.uint8, device="cuda")
                  .view(torch.float8_e4m3fn) for _ in "kv"]
        return data, scales
    data = [torch.randn(*shape, HEAD_DIM, device="cuda", dtype=torch.bfloat16).to(KV_DTYPE[kind]) for _ in "kv"]
    return data, None


def dequantised(data, scales, pages):
    if scales is None:
        return data[pages].float()
    packed = data[pages]
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return E2M1[codes] * scales[pages].float().repeat_interleave(16, -1)


def measure(kind, batch, context, k_scale):
    lengths = lengths_of(batch, context)
    pages_each = [math.ceil(n / PAGE) for n in lengths]
    pages = sum(pages_each)
    indptr = torch.tensor([0, *pages_each], device="cuda").cumsum(0).to(torch.int32)
    indices = torch.randperm(pages, device="cuda").to(torch.int32)
    last = torch.tensor([(n - 1) % PAGE + 1 for n in lengths], dtype=torch.int32, device="cuda")
    q = torch.randn(batch, KV_HEADS * GROUP, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(512 << 20, dtype=torch.uint8, device="cuda"), "HND", use_tensor_cores=True, backend="fa2")
    wrapper.plan(indptr, indices, last, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, PAGE,
                 q_data_type=q.dtype, kv_data_type=KV_DTYPE[kind], o_data_type=q.dtype)
    total = BYTES_PER_ELEMENT[kind] * 2 * sum(lengths) * KV_HEADS * HEAD_DIM
    caches = [random_cache(kind, pages) for _ in range(4 if total < 3e8 else 1)]  # keep L2 cold

    def run(i):
        data, scales = caches[i % len(caches)]
        extra = {"kv_cache_sf": tuple(scales)} if scales else {}
        if kind != "bf16":
            extra |= {"k_scale": k_scale, "v_scale": 1.0}
        return wrapper.run(q, tuple(data), out=out, **extra)

    us = median_us(run)
    error = float("nan")
    if max(lengths) <= 8192:
        run(0)
        data, scales = caches[0]
        mine = indices[pages - pages_each[-1]:].long()
        k, v = (dequantised(data[i], scales and scales[i], mine).permute(1, 0, 2, 3)
                .reshape(KV_HEADS, -1, HEAD_DIM)[:, :context] for i in range(2))
        scores = q[-1].float().view(KV_HEADS, GROUP, HEAD_DIM) @ (k * (k_scale if kind != "bf16" else 1)).transpose(1, 2)
        want = ((scores / math.sqrt(HEAD_DIM)).softmax(-1) @ v).view(-1, HEAD_DIM)
        error = ((out[-1].float() - want).norm() / want.norm()).item()
    print(f"{kind:6s} batch {batch:4d} context {context!s:>12s} {us:9.1f} us {total / us / 1e3:6.0f} GB/s error {error:.2e}", flush=True)
    ragged = {"lengths": "log-uniform"} if context != lengths[-1] else {}
    return {"head_dim": HEAD_DIM, "group": GROUP, "q_len": 1, "page_size": PAGE, "kv_heads": KV_HEADS, "batch": batch,
            "context": 65536 if ragged else context, **ragged, "us": us}


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    for kind, k_scale in (("nvfp4", 0.05), ("fp8", 1.0), ("bf16", 1.0)):
        rows = []
        for batch, context in SHAPES:
            rows.append(measure(kind, batch, context, k_scale))
            torch.cuda.empty_cache()
        if folder:
            with open(os.path.join(folder, f"flashinfer_{kind}.json"), "w") as file:
                json.dump({"peer": f"FlashInfer 0.6.13 {kind.upper()}", "rows": rows}, file)
