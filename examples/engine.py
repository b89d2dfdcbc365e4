"""A small engine in Python: a paged NVFP4 cache, prefill by append, and a decode loop of one captured CUDA graph with the
append fused in. Weights are random; lengths grow, requests join and leave, and every step is compared with dense attention
in float64 over what the cache should hold, quantised here by plain PyTorch.

    python examples/engine.py kernels-out/sm_90a [steps]

The bundle needs the fused problem below and its append:
nvkv-tune --op fused,append --kv-format nvfp4 --numerics fp8 --head-dim 128 --group 8 --q-len 1 --page-size 16
"""

import math
import sys

import nvkv
import torch

HEAD_DIM, GROUP, PAGE, KV_HEADS = 128, 8, 16, 2
PLACES, MAX_CONTEXT = 4, 512  # requests that run at a time; a place without a request has length 0
SCALES = dict(k_scale=0.4, v_scale=0.7)
Q_SCALE = 0.02
TOLERANCE = 4e-3  # relative L2: the rounding of a bf16 output
DEVICE = "cuda"


def e4m3(x):
    """Rounded to E4M3, saturating."""
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()


def stored(rows, scale):
    """What the cache holds of these rows, as class fp8 reads it: NVFP4, then each element in E4M3, times the scale."""
    blocks = rows.float().unflatten(-1, (-1, 16))
    sf = e4m3(blocks.abs().amax(-1, keepdim=True) / (6 * torch.tensor(scale, device=rows.device)))
    x = torch.where(sf > 0, blocks / (sf.float() * scale), torch.zeros_like(blocks))
    steps = x.abs()
    # Nearest E2M1 value, ties to the even code.
    index = (steps > 0.25).long() + (steps >= 0.75) + (steps > 1.25) + (steps >= 1.75)
    index += (steps > 2.5).long() + (steps >= 3.5) + (steps > 5)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device=rows.device)
    return (e4m3(values[index] * x.sign() * sf) * scale).flatten(-2)


class Request:
    """A running request: its pages, and the dense rows that its cache should hold, `[tokens, Hkv, D]`."""

    def __init__(self, pages, end):
        self.pages, self.end = pages, end
        self.k = self.v = torch.empty(0, KV_HEADS, HEAD_DIM, dtype=torch.float64, device=DEVICE)

    def __len__(self):
        return len(self.k)

    def add(self, k, v):
        self.k = torch.cat([self.k, stored(k, SCALES["k_scale"])])
        self.v = torch.cat([self.v, stored(v, SCALES["v_scale"])])


class Engine:
    def __init__(self, bundle):
        self.runtime = nvkv.Runtime(bundle)
        pages = PLACES * MAX_CONTEXT // PAGE
        data = lambda row: torch.zeros(pages, KV_HEADS, PAGE, row, dtype=torch.uint8, device=DEVICE)
        self.cache = (data(HEAD_DIM // 2), data(HEAD_DIM // 2), data(HEAD_DIM // 16), data(HEAD_DIM // 16))
        self.free = list(range(pages))
        self.places = [None] * PLACES
        rows = lambda heads: torch.zeros(PLACES, heads, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
        self.q, self.k, self.v = rows(KV_HEADS * GROUP), rows(KV_HEADS), rows(KV_HEADS)
        self.out = torch.empty_like(self.q)
        self.table = torch.zeros(PLACES, MAX_CONTEXT // PAGE, dtype=torch.int32, device=DEVICE)
        self.kv_len = torch.zeros(PLACES, dtype=torch.int32, device=DEVICE)
        self.stream = torch.cuda.Stream()

    def launch(self):
        inputs = (self.q, *self.cache, self.table, self.kv_len)
        self.runtime.decode(*inputs, k=self.k, v=self.v, out=self.out, q_scale=Q_SCALE, **SCALES)

    def capture(self):
        """The step for all places, captured once: lengths, pages and rows are read from tensors when it is replayed."""
        self.stream.wait_stream(torch.cuda.current_stream())  # the tensors above were zeroed there
        with torch.cuda.stream(self.stream):
            self.launch()  # loads the kernel and makes the workspace; every length is 0, so nothing is written
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.launch()

    def prefill(self, place, length, end):
        """A request joins: its prompt's rows go into fresh pages by one append."""
        pages = [self.free.pop() for _ in range(-(-end // PAGE))]
        request = self.places[place] = Request(pages, end)
        k, v = (torch.randn(length, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE) for _ in "kv")
        slots = torch.tensor([pages[t // PAGE] * PAGE + t % PAGE for t in range(length)], device=DEVICE)
        self.runtime.append(k, v, slots, *self.cache, **SCALES)
        request.add(k, v)

    def advance(self):
        """One step of every running request by the graph, and densely; the largest error of an output."""
        for tensor in (self.q, self.k, self.v):
            tensor.normal_()
        for place, request in enumerate(self.places):
            if request:
                request.add(self.k[place : place + 1], self.v[place : place + 1])
                self.table[place, : len(request.pages)] = torch.tensor(request.pages, dtype=torch.int32)
        lengths = [len(request) if request else 0 for request in self.places]
        self.kv_len.copy_(torch.tensor(lengths, dtype=torch.int32))
        self.graph.replay()
        return max(self.error(place) for place in range(PLACES))

    def error(self, place):
        request, out = self.places[place], self.out[place].double()
        if request is None:
            return out.norm().item()  # nothing to attend to: zeros
        q = e4m3(self.q[place].float() / Q_SCALE).view(KV_HEADS, GROUP, HEAD_DIM) * Q_SCALE
        scores = q @ request.k.permute(1, 2, 0) / math.sqrt(HEAD_DIM)
        want = (scores.softmax(-1) @ request.v.transpose(0, 1)).reshape(-1, HEAD_DIM)
        return ((out - want).norm() / want.norm()).item()

    def retire(self):
        """Requests that reached their end leave, and their pages are free again."""
        done = [place for place, request in enumerate(self.places) if request and len(request) + 1 > request.end]
        for place in done:
            self.free += self.places[place].pages
            self.places[place] = None
        return len(done)


def main():
    bundle = sys.argv[1] if len(sys.argv) > 1 else "kernels-out/sm_90a"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    torch.manual_seed(7)
    engine = Engine(bundle)
    engine.capture()
    joined = left = 0
    largest = 0.0
    with torch.cuda.stream(engine.stream):
        for step in range(steps):
            if None in engine.places and step % 3 == 0:
                length = 1 + joined * 53 % 300
                engine.prefill(engine.places.index(None), length, min(length + 20 + joined * 31 % 120, MAX_CONTEXT))
                joined += 1
            error = engine.advance()
            if not error <= TOLERANCE:
                sys.exit(f"step {step}: relative error {error:.2e}, more than {TOLERANCE:.0e}")
            largest = max(largest, error)
            left += engine.retire()
    print(f"{steps} steps, {joined} requests joined, {left} left; largest relative error {largest:.2e}")


if __name__ == "__main__":
    main()
