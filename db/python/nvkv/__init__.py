"""Tuned attention kernels that read a paged KV cache in NVFP4: find the one for this step, and launch it.

Open a bundle with :class:`Runtime`; docs/engine-guide.md goes from there to the first token.
"""

from ._native import BundleError, CallError, DeviceError, Error, Found, Miss, Problem, Runtime

__all__ = ["BundleError", "CallError", "DeviceError", "Error", "Found", "Miss", "Problem", "Runtime"]
