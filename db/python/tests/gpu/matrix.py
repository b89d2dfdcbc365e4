"""On a GPU, beside PyTorch: every kernel of a bundle against a dense float reference, in every layout that engines hold.

    python db/python/tests/gpu/matrix.py kernels-out/sm_90a [--steps 1000] [--out results.json]

Which problems are checked is what the bundle was tuned for. Where FlashInfer can be imported, its NVFP4 decode is compared
on its own layout; graphs are replayed over many steps and compared with eager launches bit for bit; and the time that a
call takes on the host is measured.
"""

import argparse
import json
import math
import re
import statistics
import sys
import time

import nvkv
import torch

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1.5e-3}  # relative L2: the output's rounding, and f16 products
Q_SCALE, K_SCALE, V_SCALE = 0.02, 0.4, 0.7
LENGTHS = [1, 15, 16, 17, 64, 333, 1000, 0]


KEY = re.compile(
    r"(?P<op>[a-z]+)-(?P<kv_format>[^-]+)(-(?P<numerics>fp8|exact))?-d(?P<d>\d+)(-g(?P<g>\d+)-q(?P<q>\d+))?-p(?P<p>\d+)"
    r"-(?P<dtype>bf16|f16)-(?P<v_scale_order>linear|interleaved4)(-w(?P<window>\d+))?(?P<sinks>-sinks)?(?P<cap>-cap)?"
)


def fields(problem):
    """The fields of a problem, from its key."""
    named = KEY.fullmatch(problem.key).groupdict()
    named |= {name: int(named[name]) for name in ("d", "g", "q", "p", "window") if named[name]}
    named["k_format"], *rest = named["kv_format"].split("+")
    return named | {"v_format": rest[0] if rest else named["k_format"]}


def e4m3(x):
    """Rounded to E4M3, saturating."""
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()


class Cache:
    """A random paged cache: canonical bytes `[pages, Hkv, page, row]`, and views of them in one arrangement."""

    def __init__(self, f, pages, kv_heads, arrangement):
        self.f, self.pages, self.kv_heads = f, pages, kv_heads
        page, dim = f["p"], f["d"]
        rows = [row for which in "kv" for row in ([dim // 2, dim // 16] if f[f"{which}_format"] == "nvfp4" else [dim, 0])]
        self.layout = "NHD" if arrangement == "NHD" else "HND"
        if arrangement == "one_block":
            block = torch.zeros(pages, kv_heads * page * sum(rows), dtype=torch.uint8, device="cuda")
            parts = block.split([kv_heads * page * row for row in rows], 1)
            views = [part.unflatten(1, (kv_heads, page, row)) if row else None for part, row in zip(parts, rows)]
        else:
            axes = (page, kv_heads) if arrangement == "NHD" else (kv_heads, page)
            views = [torch.zeros(pages, *axes, row, dtype=torch.uint8, device="cuda") if row else None for row in rows]
        self.k, self.k_scales, self.v, self.v_scales = views
        for view, row in zip(views, rows):
            if view is None:
                continue
            if row == dim // 16:
                # E4M3 of 2^-6 and up: normal scales, as caches have.
                view.copy_(torch.randint(0x20, 0x40, view.shape, dtype=torch.uint8, device="cuda"))
            elif row == dim // 2:
                view.copy_(torch.randint(0, 256, view.shape, dtype=torch.uint8, device="cuda"))
            else:
                view.copy_(torch.randn(view.shape, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8))

    def tensors(self):
        return (self.k, self.v, self.k_scales, self.v_scales)

    def clone(self):
        """The same bytes elsewhere, at the same strides."""
        other = object.__new__(Cache)
        other.__dict__ = dict(self.__dict__)
        for name in ("k", "k_scales", "v", "v_scales"):
            tensor = getattr(self, name)
            if tensor is not None:
                copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
                setattr(other, name, copy.copy_(tensor))
        return other

    def same_bytes(self, other):
        pairs = zip(self.tensors(), other.tensors())
        return all(a is None or torch.equal(a, b) for a, b in pairs)

    def values(self, which, pages):
        """Elements of these pages `[Hkv, tokens, D]`, float64, without the tensor's scale."""
        f = self.f
        data, scales = (self.k, self.k_scales) if which == "k" else (self.v, self.v_scales)
        hnd = lambda t: t[pages].transpose(1, 2) if self.layout == "NHD" else t[pages]
        if f[f"{which}_format"] == "fp8_e4m3":
            x = hnd(data).contiguous().view(torch.float8_e4m3fn).double()
        else:
            packed = hnd(data)
            codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
            sf = hnd(scales).contiguous()
            if which == "v" and f["v_scale_order"] == "interleaved4":
                sf = sf.flatten(2).unflatten(2, (f["p"] // 4, f["d"] // 16, 4)).transpose(3, 4).flatten(2, 3)
            x = E2M1.to("cuda")[codes] * sf.view(torch.float8_e4m3fn).double().repeat_interleave(16, -1)
            if f["numerics"] == "fp8":
                x = e4m3(x)
        return x.transpose(0, 1).flatten(1, 2)


def features(f, heads):
    """Arguments for what the problem has beyond plain attention: window, a sink each head, soft cap."""
    chosen = {"window": f["window"]} if f["window"] else {}
    if f["sinks"]:
        chosen["sinks"] = torch.randn(heads, device="cuda")
    if f["cap"]:
        chosen["soft_cap"] = 2.0  # scores here are about 1
    return chosen


def expected(f, cache, q, table, lengths, window=None, sinks=None, soft_cap=None):
    """Dense attention in float64: output `[batch * q_len, Hq, D]` and log-sum-exp."""
    heads, dim, q_len = cache.kv_heads, f["d"], f["q"]
    q = q.double()
    if f["numerics"] == "fp8":
        q = e4m3((q.float() / Q_SCALE)) * Q_SCALE
    out = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
    sink = torch.full(q.shape[1:2], -math.inf, device="cuda") if sinks is None else sinks
    lse = sink.double().expand(q.shape[:2]).clone()
    for request, length in enumerate(lengths):
        pages = table[request, : -(-length // f["p"])].long()
        if length == 0:
            continue
        k, v = (cache.values(which, pages)[:, :length] for which in "kv")
        for i in range(q_len):
            visible = length - (q_len - 1 - i)
            if visible <= 0:
                continue
            row, seen = request * q_len + i, slice(max(0, visible - window) if window else 0, visible)
            scores = q[row].view(heads, -1, dim) @ (k[:, seen] * K_SCALE).transpose(1, 2) / math.sqrt(dim)
            if soft_cap is not None:
                scores = soft_cap * (scores / soft_cap).tanh()
            lse[row] = scores.logsumexp(-1).flatten().logaddexp(lse[row])
            weights = (scores - lse[row].view(heads, -1, 1)).exp()
            out[row] = (weights @ (v[:, seen] * V_SCALE)).reshape(-1, dim)
    return out, lse


def error_of(got, want):
    """The largest relative L2 error of a row of requests."""
    got, want = got.double().flatten(1), want.flatten(1)
    return max(((g - w).norm() / w.norm().clamp_min(1e-30)).item() if w.any() else g.norm().item() for g, w in zip(got, want))


def paged(f, lengths, extra=0):
    """A block table over shuffled pages with room for `extra` more tokens, and the number of pages."""
    blocks = -(-(max(lengths) + extra) // f["p"])
    table = torch.randperm(len(lengths) * blocks).view(len(lengths), blocks).to(torch.int32)
    return table.cuda(), len(lengths) * blocks


def common(f, cache):
    scales = dict(q_scale=Q_SCALE, k_scale=K_SCALE, v_scale=V_SCALE)
    return dict(layout=cache.layout, v_scale_order=f["v_scale_order"], numerics=f["numerics"] or "fp8") | scales


def check(runtime, f, arrangement, kv_heads=2):
    """One problem in one arrangement; the largest error."""
    dtype = torch.bfloat16 if f["dtype"] == "bf16" else torch.float16
    lengths = [length for length in LENGTHS if length == 0 or length >= f["q"]]
    table, pages = paged(f, lengths)
    cache = Cache(f, pages, kv_heads, arrangement)
    tokens, heads = len(lengths) * f["q"], kv_heads * f["g"]
    q = torch.randn(tokens, heads, f["d"], dtype=dtype, device="cuda")
    kv_len = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    lse = torch.empty(tokens, heads, device="cuda")
    new = {}
    if f["op"] == "fused":
        new = {name: torch.randn(tokens, kv_heads, f["d"], dtype=dtype, device="cuda") for name in "kv"}
    extra = features(f, heads)
    out = runtime.decode(q, *cache.tensors(), table, kv_len, lse=lse, **new, **extra, **common(f, cache))
    want, want_lse = expected(f, cache, q, table, lengths, **extra)
    error = error_of(out, want)
    assert error < TOLERANCE[dtype], f"relative error {error:.2e}"
    finite = want_lse.isfinite()
    assert torch.equal(lse.isfinite(), finite), "log-sum-exp: another row is empty"
    apart = ((lse - want_lse).abs() / want_lse.abs().clamp_min(1))[finite].max().item()
    assert apart < 1e-3, f"log-sum-exp: {apart:.2e}"
    if new:
        check_rows(f, cache, new, table, lengths)
    return error


def check_rows(f, cache, new, table, lengths):
    """The fused kernel stored this step's rows: within NVFP4's or E4M3's step of what they were."""
    for which, scale in (("k", K_SCALE), ("v", V_SCALE)):
        for request, length in enumerate(lengths):
            if length == 0:
                continue
            pages = table[request, : -(-length // f["p"])].long()
            stored = cache.values(which, pages)[:, length - f["q"] : length] * scale
            rows = new[which][request * f["q"] : (request + 1) * f["q"]].double().transpose(0, 1)
            error = ((stored - rows).norm() / rows.norm()).item()
            assert error < 0.15, f"stored {which} of request {request}: {error:.2e}"


def check_append(runtime, f, arrangement, kv_heads=2):
    """Appended rows come back, and nothing else changes."""
    dtype = torch.bfloat16 if f["dtype"] == "bf16" else torch.float16
    cache = Cache(f, 16, kv_heads, arrangement)
    before = cache.clone()
    slots = torch.randperm(16 * f["p"], device="cuda")[: 8 * f["p"]]
    slots[::7] = -1
    k, v = (torch.randn(len(slots), kv_heads, f["d"], dtype=dtype, device="cuda") for _ in "kv")
    status = torch.zeros(1, dtype=torch.int32, device="cuda")
    arguments = dict(layout=cache.layout, v_scale_order=f["v_scale_order"], k_scale=K_SCALE, v_scale=V_SCALE)
    runtime.append(k, v, slots, *cache.tensors(), status=status, **arguments)
    kept = slots >= 0
    largest = 0.0
    pages = torch.arange(16, device="cuda")
    f = f | {"numerics": "exact"}
    cache.f = before.f = f
    for which, rows, scale in (("k", k, K_SCALE), ("v", v, V_SCALE)):
        stored, old = (c.values(which, pages) for c in (cache, before))
        error = ((stored[:, slots[kept]] * scale - rows[kept].double().transpose(0, 1)).norm() / rows[kept].double().norm()).item()
        untouched = torch.ones(16 * f["p"], dtype=torch.bool, device="cuda").index_fill_(0, slots[kept], False)
        assert torch.equal(stored[:, untouched], old[:, untouched]), f"{which}: a row that no slot names changed"
        assert error < 0.15, f"{which}: {error:.2e}"
        largest = max(largest, error)
    assert status.item() == 0
    return largest


def replay(runtime, f, steps):
    """A captured fused step over growing lengths, against eager launches on a copy: to the bit."""
    dtype = torch.bfloat16 if f["dtype"] == "bf16" else torch.float16
    start, kv_heads, q_len = [1, 7, 300, 1000], 2, f["q"]
    start = [max(length, q_len) for length in start]
    table, pages = paged(f, start, extra=steps * q_len)
    graphed = Cache(f, pages, kv_heads, "HND")
    eager = graphed.clone()
    tokens, heads = len(start) * q_len, kv_heads * f["g"]
    inputs = [torch.zeros(tokens, h, f["d"], dtype=dtype, device="cuda") for h in (heads, kv_heads, kv_heads)]
    kv_len = torch.tensor(start, dtype=torch.int32, device="cuda")
    out = torch.empty_like(inputs[0])

    def step(cache, q, k, v, out):
        return runtime.decode(q, *cache.tensors(), table, kv_len, k=k, v=v, out=out, **common(f, cache))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(graphed.clone(), *inputs, out)  # loads the kernel and makes the workspace of this stream
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step(graphed, *inputs, out)
        for at in range(steps):
            for tensor in inputs:
                tensor.normal_()
            kv_len.add_(q_len)
            graph.replay()
            want = step(eager, *inputs, torch.empty_like(out))
            assert torch.equal(out, want), f"step {at}: replay and eager differ"
    stream.synchronize()
    assert graphed.same_bytes(eager), "the caches differ"


def overhead(runtime, f):
    """Host time of one call, µs: the median of 20 rounds of 200 calls, the GPU waited for between rounds."""
    batch, kv_heads = 8, 8
    table, pages = paged(f, [1024] * batch)
    cache = Cache(f, pages, kv_heads, "HND")
    q = torch.randn(batch * f["q"], kv_heads * f["g"], f["d"], dtype=torch.bfloat16, device="cuda")
    if f["dtype"] != "bf16":
        q = q.half()
    kv_len = torch.full((batch,), f["q"], dtype=torch.int32, device="cuda")
    out, arguments = torch.empty_like(q), common(f, cache)
    tensors = cache.tensors()
    call = lambda: runtime.decode(q, *tensors, table, kv_len, out=out, max_context=1024, **arguments)
    rounds = []
    for _ in range(21):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        rounds.append((time.perf_counter() - start) / 200 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(rounds[1:])


def against_flashinfer(runtime, f, batch=4, context=1000, kv_heads=8):
    """FlashInfer's NVFP4 decode on its own tensors, and ours on the same ones: the relative difference. FlashInfer
    dequantises to bf16: class `exact` differs by both roundings, class `fp8` also by E4M3's of Q and of each element."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    table, pages = paged(f, [context] * batch)
    cache = Cache(f, pages, kv_heads, "HND")
    q = torch.randn(batch, kv_heads * f["g"], f["d"], dtype=torch.bfloat16, device="cuda")
    pages_each = table.shape[1]
    indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages_each
    last = torch.full((batch,), (context - 1) % f["p"] + 1, dtype=torch.int32, device="cuda")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(512 << 20, dtype=torch.uint8, device="cuda"), "HND", use_tensor_cores=True, backend="fa2"
    )
    wrapper.plan(
        indptr, table.flatten(), last, kv_heads * f["g"], kv_heads, f["d"], f["p"],
        q_data_type=q.dtype, kv_data_type=torch.uint8, o_data_type=q.dtype,
    )
    scales = tuple(s.view(torch.float8_e4m3fn) for s in (cache.k_scales, cache.v_scales))
    theirs = wrapper.run(q, (cache.k, cache.v), kv_cache_sf=scales, k_scale=K_SCALE, v_scale=V_SCALE)
    kv_len = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    ours = runtime.decode(q, cache.k, cache.v, *scales, table, kv_len, **common(f, cache))
    apart = error_of(ours, theirs.double())
    assert apart < (8e-3 if f["numerics"] == "exact" else 0.1), f"relative difference {apart:.2e}"
    return apart


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--steps", type=int, default=1000, help="steps of a replayed graph")
    parser.add_argument("--out", help="file for the results as JSON")
    arguments = parser.parse_args()
    torch.manual_seed(7)
    runtime = nvkv.Runtime(arguments.bundle)
    problems = [(problem, fields(problem)) for problem in runtime.problems()]
    results = []

    def run(name, what):
        try:
            value, failure = what(), None
        except Exception as error:  # every failure is counted, and the next check runs
            value, failure = None, f"{type(error).__name__}: {error}"
        results.append(dict(check=name, value=value, failure=failure))
        if failure or not name.startswith(("decode", "fused", "append")):
            print(f"{name}: {failure or ('passed' if value is None else value)}", flush=True)

    for problem, f in problems:
        for arrangement in ("HND", "NHD", "one_block"):
            if arrangement == "NHD" and f["v_scale_order"] == "interleaved4" and f["v_format"] == "nvfp4":
                continue  # no such cache: interleaved scales are dense in a head's page
            checked = check_append if f["op"] == "append" else check
            run(f"{problem.key} {arrangement}", lambda: checked(runtime, f, arrangement))
    for problem, f in problems:
        if f["op"] == "fused" and not features(f, 1):
            run(f"replay of {problem.key}", lambda: replay(runtime, f, arguments.steps))
            break
    for problem, f in problems:
        if (f["op"], f["kv_format"], f["d"]) == ("decode", "nvfp4", 128) and not features(f, 1):
            run(f"host µs a call of {problem.key}", lambda: round(overhead(runtime, f), 2))
            break
    try:
        import flashinfer  # noqa: F401
    except ImportError:
        print("FlashInfer cannot be imported: not compared")
    else:
        for problem, f in problems:
            theirs = (f["op"], f["kv_format"], f["d"], f["q"], f["dtype"], f["v_scale_order"])
            if theirs == ("decode", "nvfp4", 128, 1, "bf16", "linear") and not features(f, 1):
                run(f"difference from FlashInfer of {problem.key}", lambda: against_flashinfer(runtime, f))
    if arguments.out:
        json.dump(results, open(arguments.out, "w"), indent=1)
    errors = [r["value"] for r in results if r["value"] is not None and r["check"].startswith(("decode", "fused"))]
    print(f"largest relative error {max(errors, default=math.nan):.2e} over {len(errors)} decodes")
    failed = sum(r["failure"] is not None for r in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
