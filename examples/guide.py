"""An engine's first steps in Python: open a bundle, find the kernel of a step, ask why, and launch it where a GPU is.

python examples/guide.py kernels-out/sm_90a
"""

import math
import sys

import nvkv

bundle = sys.argv[1] if len(sys.argv) > 1 else "kernels-out/sm_90a"

rt = nvkv.Runtime(bundle)
problem = nvkv.Problem("decode", head_dim=128, group=8, page_size=16)
found = rt.find(problem, batch=2, max_context=16, kv_heads=8)
print(found.kernel, found.trust, found.workspace_bytes)

print(rt.explain(problem, batch=2, max_context=16, kv_heads=8))
print(rt.shape_histogram())

try:
    rt.prepare([problem])
except nvkv.DeviceError as error:
    print(f"no device: {error}")
    sys.exit()

import torch  # noqa: E402: only where a GPU is

data = torch.zeros(2, 2, 8, 16, 64, dtype=torch.uint8, device="cuda")
scales = torch.zeros(2, 2, 8, 16, 8, dtype=torch.uint8, device="cuda")
q = torch.randn(2, 64, 128, dtype=torch.bfloat16, device="cuda")
block_table = torch.tensor([[0], [1]], dtype=torch.int32, device="cuda")
kv_len = torch.tensor([16, 16], dtype=torch.int32, device="cuda")
lse = torch.empty(2, 64, device="cuda")

out = rt.decode(q, data[0], data[1], scales[0], scales[1], block_table, kv_len, lse=lse, sm_scale=128**-0.5)
torch.testing.assert_close(lse, torch.full_like(lse, math.log(16)), atol=1e-3, rtol=0)
print(f"launched: log-sum-exp {lse[0, 0]:.4f}")
