"""The native half of nvkv; import from `nvkv`."""

from os import PathLike
from typing import Any, final

class Error(Exception):
    """Anything that nvkv refuses; the text says what is wrong and what to do."""

class BundleError(Error):
    """The bundle or the database cannot be used."""

class Miss(Error):
    """The bundle has no kernel for this."""

class CallError(Error):
    """A tensor or a number of the call is wrong; nothing was launched."""

class DeviceError(Error):
    """No driver, no GPU of the bundle's target, or the driver refused."""

@final
class Problem:
    """What is asked of a kernel; fixed when it is compiled."""

    def __new__(
        cls,
        op: str,
        *,
        head_dim: int,
        page_size: int,
        group: int = 1,
        q_len: int = 1,
        kv_format: str = "nvfp4",
        numerics: str = "fp8",
        dtype: str = "bf16",
        v_scale_order: str = "linear",
        window: int | None = None,
        sinks: bool = False,
        soft_cap: bool = False,
    ) -> Problem:
        """`op`: `decode`, `fused` or `append`. `head_dim`: 64, 128 or 256 elements. `page_size`: 8 to 128 tokens.
        `group`: query heads a KV head, 1 to 16. `q_len`: new tokens a request, 1 to 8. `kv_format`: `nvfp4`,
        `fp8_e4m3`, or `fp8_e4m3+nvfp4` (K in FP8, V in NVFP4). `numerics`: `fp8` or `exact`. `dtype`: `bf16` or `f16`.
        `v_scale_order`: `linear` or `interleaved4`. `window`: tokens that a query sees, its own among them, at least 1;
        None for all. `sinks`: a logit of each query head joins the denominator of its softmax. `soft_cap`: a score s
        becomes `cap * tanh(s / cap)`. An append reads neither `group`, `q_len`, `numerics`, `window`, `sinks` nor
        `soft_cap`."""

    @property
    def key(self) -> str:
        """Its name, as in bundles and tables."""

@final
class Found:
    """A kernel for one problem at one shape, and how it is launched."""

    @property
    def kernel(self) -> str:
        """Its id."""
    @property
    def trust(self) -> str:
        """`exact`, `bucket`, `predicted` or `fallback`."""
    @property
    def distance(self) -> float | None:
        """Distance of the tuned shape in doublings; None for a fallback."""
    @property
    def regret(self) -> float | None:
        """How much slower than the best it was measured to be at shapes it serves, as a share; None where not known."""
    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks in x, y, z."""
    @property
    def threads(self) -> int:
        """Threads a block."""
    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a block, bytes."""
    @property
    def max_splits(self) -> int:
        """Splits a request at most."""
    @property
    def min_split_tokens(self) -> int:
        """Tokens a split at least."""
    @property
    def taper(self) -> int:
        """How often a request's last split is halved."""
    @property
    def workspace_bytes(self) -> int:
        """Workspace that the launch needs, bytes."""

@final
class Runtime:
    """An open bundle: finds kernels and launches them. May be shared between threads.

    Tensors are PyTorch's, or anything with `__cuda_array_interface__` or `__dlpack__`. They may have any strides, as long
    as the last axis is contiguous: data, Q, output and new rows at multiples of 16 bytes, a row of scales at a multiple of
    its length. Launches go into PyTorch's current stream where PyTorch is imported, else into the default stream; `stream`
    (a `CUstream` as int) names another. They neither allocate nor wait, and may be captured into a CUDA graph.
    """

    def __new__(cls, bundle: str | PathLike[str], db: str | PathLike[str] | None = None) -> Runtime:
        """Opens and checks the bundle in the folder `bundle` (`<out>/<target>`), with the winners of the database `db`
        beside its own. Raises BundleError with the name of what is wrong."""

    @property
    def target(self) -> str:
        """What the bundle's machine code is compiled for, such as `sm_90a`."""
    def problems(self) -> list[Problem]:
        """The problems that have a kernel."""
    def refused(self) -> list[str]:
        """Rows of the database that were left out, since the bundle lacks their kernel."""
    def find(
        self,
        problem: Problem,
        batch: int,
        max_context: int | None = None,
        kv_heads: int = 8,
        *,
        lengths: str = "equal",
    ) -> Found:
        """The kernel for `batch` requests (for an append: tokens) of up to `max_context` tokens (not for an append).
        `lengths` says how these are distributed: `equal`, or `log-uniform` from 256 tokens to the longest; a choice of
        speed, right for any. Raises Miss with the reason."""
    def explain(
        self,
        problem: Problem,
        batch: int,
        max_context: int | None = None,
        kv_heads: int = 8,
        *,
        lengths: str = "equal",
        json: bool = False,
    ) -> str:
        """Why `find` answers as it does, what is near, and what would have to be tuned."""
    def shape_histogram(self) -> str:
        """Which shapes were asked for and how they were served: JSON for `nvkv-tune --shapes`."""
    def prepare(self, problems: list[Problem] | None = None, *, device: int = 0) -> None:
        """Loads the kernels of `problems` (None: all) onto the device ahead; the first launch of a problem does it
        otherwise. Not while a graph is captured."""
    def reserve(self, bytes: int, *, device: int = 0, stream: int = 0) -> None:
        """Allocates the runtime's own workspace of a stream ahead, so that a capture finds it."""
    def decode(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k_scales: Any | None,
        v_scales: Any | None,
        block_table: Any,
        kv_len: Any,
        *,
        k: Any | None = None,
        v: Any | None = None,
        out: Any | None = None,
        lse: Any | None = None,
        workspace: Any | None = None,
        status: Any | None = None,
        layout: str = "HND",
        v_scale_order: str = "linear",
        numerics: str = "fp8",
        max_context: int | None = None,
        lengths: str = "equal",
        sm_scale: float | None = None,
        q_scale: float = 1.0,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        window: int | None = None,
        sinks: Any | None = None,
        soft_cap: float | None = None,
        stream: int | None = None,
    ) -> Any:
        """Attention of each request's `q_len` newest tokens over its cached tokens; returns `out`.

        Args:
            q: queries `[batch * q_len, Hq, D]` or `[batch, q_len, Hq, D]`, bf16 or f16.
            k_cache, v_cache: `[pages, Hkv, page, D/2]` bytes (HND) or `[pages, page, Hkv, D/2]` (NHD) in NVFP4; D instead
                of D/2 in FP8. Views into one block a page, as vLLM keeps them, are taken as they are.
            k_scales, v_scales: E4M3 block scales as bytes or float8, the same with D/16; None where the tensor is FP8:
                both, neither, or K alone.
            block_table: page of each block of tokens, `[batch, pages]`, int32.
            kv_len: cached tokens a request, new ones included, `[batch]`, int32; read on the device.
            k, v: this step's rows `[batch * q_len, Hkv, D]`: they are requantised into the cache first, in the same
                kernel. Without them the cache must hold them already.
            out: like q; made by PyTorch where it is left out.
            lse: log-sum-exp `[batch * q_len, Hq]`, float32, natural logarithm.
            workspace: bytes, as many as `find(...).workspace_bytes`, the first MiB zeroed once; launches that share one
                must be ordered. Left out, the runtime keeps one for each stream.
            status: int32 `[1]`, to which the number of non-finite elements of k and v is added.
            max_context: the longest context of any launch, tokens; by default what the block table has room for.
            lengths: how they are distributed, as for `find`.
            sm_scale: softmax scale, by default 1 / sqrt(D).
            q_scale: scale of Q in class `fp8`: `q8 = RN_e4m3(q / q_scale)`.
            k_scale, v_scale: scale of the K and V tensor.
            window: tokens that a query sees, the newest up to its own, at least 1 (FlashInfer's `window_left` is one
                less); None for all. Kernels tuned at another window serve too.
            sinks: float32 `[Hq]`, a logit of each query head that joins the denominator of its softmax, natural units;
                -inf is none.
            soft_cap: bound of the scores, natural units, positive: s becomes `soft_cap * tanh(s / soft_cap)`.

        Raises CallError, Miss or DeviceError; then nothing was launched.
        """
    def append(
        self,
        k: Any,
        v: Any,
        slot_mapping: Any,
        k_cache: Any,
        v_cache: Any,
        k_scales: Any | None,
        v_scales: Any | None,
        *,
        status: Any | None = None,
        layout: str = "HND",
        v_scale_order: str = "linear",
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        stream: int | None = None,
    ) -> None:
        """Requantises rows into the cache, exact to the bit.

        Args:
            k, v: `[tokens, Hkv, D]`, bf16 or f16.
            slot_mapping: `page * page_size + offset` of each token, `[tokens]`, int64; negative ones are skipped, though their rows are read.
            k_cache, v_cache, k_scales, v_scales, status: as for `decode`.

        Raises CallError, Miss or DeviceError; then nothing was launched.
        """
