"""What needs no GPU: opening, finding, explaining, and every refusal of a call. `make test-python` runs it with the wheel
installed; NVKV_TEST_BUNDLE is the bundle that db/runtime/examples/fixture.rs writes."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import nvkv

BUNDLE = os.environ["NVKV_TEST_BUNDLE"]
GEOMETRY = dict(head_dim=128, page_size=16, group=8)


class Array:
    """A tensor at a made-up address, through the CUDA array interface."""

    def __init__(self, shape, typestr, address=1 << 20, strides=None):
        data = (address, False)
        self.__cuda_array_interface__ = dict(shape=shape, typestr=typestr, data=data, strides=strides, version=3)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


TENSOR, EXCHANGE = b"dltensor", b"dlpack_exchange_api"


def capsule(struct, name):
    """A capsule of that name around a ctypes structure; both must outlive it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(struct), name, None)


class Exported:
    """A tensor at a made-up address, through DLPack."""

    def __init__(self, shape, code, bits, device_type=2, address=1 << 20, lanes=1):
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.tensor = DLTensor(address, device_type, 0, len(shape), code, bits, lanes, self.shape, None, 0)

    def __dlpack__(self, stream=None):
        return capsule(self.tensor, TENSOR)


FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
WORK_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeTable(ctypes.Structure):
    """`DLPackExchangeAPI` of dlpack.h 1.3."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("managed", ctypes.c_void_p * 3),
        ("tensor_from_object", FROM_OBJECT),
        ("current_work_stream", WORK_STREAM),
    ]


class Exchanged(Exported):
    """The same through the C exchange, with a capsule that nobody may ask for."""

    asked = []

    def __dlpack__(self, stream=None):
        raise AssertionError("the C exchange comes first")

    @FROM_OBJECT
    def tensor_from_object(self, into):
        into[0] = self.tensor
        return 0

    @WORK_STREAM
    def current_work_stream(device_type, device, into):
        Exchanged.asked.append((device_type, device))
        into[0] = 77
        return 0

    table = ExchangeTable(1, 3, None, (ctypes.c_void_p * 3)(), tensor_from_object, current_work_stream)
    __dlpack_c_exchange_api__ = capsule(table, EXCHANGE)


class OfTomorrow(Exchanged):
    """A library with a table of version 2 before that of version 1."""

    newer = ExchangeTable(2, 0, ctypes.addressof(Exchanged.table))
    __dlpack_c_exchange_api__ = capsule(newer, EXCHANGE)


def call(**changed):
    """A right decode call of 4 requests, 8 KV heads and 64 pages; `changed` replaces its arguments."""
    arguments = dict(
        q=Array((4, 64, 128), "<V2"),
        k_cache=Array((64, 8, 16, 64), "|u1"),
        v_cache=Array((64, 8, 16, 64), "|u1"),
        k_scales=Array((64, 8, 16, 8), "|u1"),
        v_scales=Array((64, 8, 16, 8), "|u1"),
        block_table=Array((4, 32), "<i4"),
        kv_len=Array((4,), "<i4"),
        out=Array((4, 64, 128), "<V2"),
    )
    return {**arguments, **changed}


class Answers(unittest.TestCase):
    def setUp(self):
        self.runtime = nvkv.Runtime(BUNDLE)
        self.problem = nvkv.Problem("decode", **GEOMETRY)

    def test_problems_have_names(self):
        self.assertEqual(self.problem.key, "decode-nvfp4-fp8-d128-g8-q1-p16-bf16-linear")
        self.assertEqual(self.problem, nvkv.Problem("decode", **GEOMETRY))
        self.assertIn(self.problem, self.runtime.problems())
        self.assertEqual(self.runtime.target, "sm_90a")
        with self.assertRaisesRegex(nvkv.CallError, "unknown operation `prefill`; known: decode, fused, append"):
            nvkv.Problem("prefill", **GEOMETRY)

    def test_find_states_its_trust(self):
        found = self.runtime.find(self.problem, 8, 8192)
        self.assertEqual((found.trust, found.distance, found.grid), ("exact", 0.0, (8, 8, 8)))
        self.assertGreater(found.workspace_bytes, 1 << 20)
        near = self.runtime.find(self.problem, 16, 16384)
        self.assertEqual((near.trust, near.distance, near.regret), ("bucket", 2.0, None))
        self.assertEqual(self.runtime.find(self.problem, 1, 1 << 20).trust, "fallback")
        append = nvkv.Problem("append", head_dim=128, page_size=16)
        self.assertEqual(self.runtime.find(append, 100).grid, (7, 8, 1))

    def test_window_sinks_and_soft_cap_are_of_the_problem(self):
        for feature, value, suffix in [("window", 128, "-w128"), ("sinks", True, "-sinks"), ("soft_cap", True, "-cap")]:
            problem = nvkv.Problem("decode", **GEOMETRY, **{feature: value})
            self.assertEqual(problem.key, self.problem.key + suffix)
        with self.assertRaisesRegex(nvkv.CallError, "window is 0: a query sees itself"):
            nvkv.Problem("decode", **GEOMETRY, window=0)
        # A window that the bundle lacks is served by the kernels of another.
        other = nvkv.Problem("decode", **GEOMETRY, window=1024, sinks=True, soft_cap=True)
        self.assertIn("-w128-sinks-cap--", self.runtime.find(other, 8, 8192).kernel)
        self.assertIn("tuned at 128", self.runtime.explain(other, 8, 8192))

    def test_lengths_are_of_the_shape(self):
        found = self.runtime.find(self.problem, 8, 8192, lengths="log-uniform")
        self.assertEqual((found.trust, found.distance), ("bucket", 1.0))
        self.assertIn("--lengths log-uniform", self.runtime.explain(self.problem, 8, 8192, lengths="log-uniform"))
        with self.assertRaisesRegex(nvkv.CallError, "unknown distribution of lengths `mixed`; known: equal, log"):
            self.runtime.find(self.problem, 8, 8192, lengths="mixed")
        with self.assertRaisesRegex(nvkv.CallError, "leave lengths out"):
            append = nvkv.Problem("append", head_dim=128, page_size=16)
            self.runtime.find(append, 8, lengths="log-uniform")

    def test_a_miss_says_why(self):
        other = nvkv.Problem("decode", head_dim=64, page_size=16, group=8)
        with self.assertRaisesRegex(nvkv.Miss, "nvkv-tune --arch sm_90a --op decode"):
            self.runtime.find(other, 8, 8192)
        with self.assertRaisesRegex(nvkv.CallError, "pass max_context"):
            self.runtime.find(self.problem, 8)
        with self.assertRaisesRegex(nvkv.CallError, "is empty"):
            self.runtime.find(self.problem, 0, 8192)

    def test_explain_lists_what_is_near(self):
        self.assertIn("tuned at   b8-c8192-h8", self.runtime.explain(self.problem, 8, 9000))
        answer = json.loads(self.runtime.explain(self.problem, 8, 9000, json=True))
        self.assertEqual((answer["trust"], len(answer["nearest"])), ("bucket", 5))

    def test_traffic_is_counted(self):
        threads = [threading.Thread(target=self.runtime.find, args=(self.problem, 8, 8192)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        histogram = json.loads(self.runtime.shape_histogram())
        self.assertEqual([(asked["served"], asked["count"]) for asked in histogram["shapes"]], [("exact", 8)])

    def test_what_is_no_bundle_is_refused(self):
        with self.assertRaisesRegex(nvkv.BundleError, "no bundle in nowhere"):
            nvkv.Runtime("nowhere")
        with self.assertRaisesRegex(nvkv.Error, "none.sqlite"):
            nvkv.Runtime(Path(BUNDLE), "none.sqlite")


class Guide(unittest.TestCase):
    def test_the_example_runs(self):
        """docs/engine-guide.md's snippets, as far as a machine without a GPU goes."""
        guide = Path(__file__).parents[3] / "examples" / "guide.py"
        hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        said = subprocess.run([sys.executable, guide, BUNDLE], env=hidden, capture_output=True, text=True)
        self.assertEqual(said.returncode, 0, said.stderr)
        for text in ("fallback", "nvkv-tune --arch sm_90a", '"count": 1', "no device: "):
            self.assertIn(text, said.stdout)


class Calls(unittest.TestCase):
    def setUp(self):
        self.runtime = nvkv.Runtime(BUNDLE)

    def refused(self, text, error=nvkv.CallError, **changed):
        with self.assertRaisesRegex(error, text):
            self.runtime.decode(**call(**changed))

    def reaches_the_device(self, **changed):
        """Right as far as can be told here: the driver, the GPU or the machine code is what is missing."""
        with self.assertRaises(nvkv.DeviceError):
            self.runtime.decode(**call(**changed))

    def test_right_calls_reach_the_device(self):
        self.reaches_the_device()
        nhd, scales = Array((64, 16, 8, 64), "|u1"), Array((64, 16, 8, 8), "|u1")
        self.reaches_the_device(k_cache=nhd, v_cache=nhd, k_scales=scales, v_scales=scales, layout="NHD")
        # One block a page: K data, K scales, V data, V scales of 8 heads and 16 tokens.
        strides, scale_strides = (18432, 1024, 64, 1), (18432, 128, 8, 1)
        self.reaches_the_device(
            k_cache=Array((64, 8, 16, 64), "|u1", 1 << 20, strides),
            k_scales=Array((64, 8, 16, 8), "|u1", (1 << 20) + 8192, scale_strides),
            v_cache=Array((64, 8, 16, 64), "|u1", (1 << 20) + 9216, strides),
            v_scales=Array((64, 8, 16, 8), "|u1", (1 << 20) + 17408, scale_strides),
        )
        self.reaches_the_device(q=Exported((4, 1, 64, 128), 4, 16), out=Exported((4, 1, 64, 128), 4, 16))

    def test_tensors_come_through_the_c_exchange(self):
        for kind in (Exchanged, OfTomorrow):
            Exchanged.asked.clear()
            q, out = kind((4, 64, 128), 4, 16), kind((4, 64, 128), 4, 16)
            # Packed codes as a type of their own: two lanes of 4 bits.
            self.reaches_the_device(q=q, out=out, k_cache=kind((64, 8, 16, 64), 17, 4, lanes=2))
            self.assertEqual(Exchanged.asked, [(2, 0)], "the stream of q's device")
            self.refused("q is on no CUDA device", q=kind((4, 64, 128), 4, 16, device_type=1))
            self.refused("which nothing here takes", q=kind((4, 64, 128), 4, 16, lanes=3))
            self.refused("q has head dim 64, not 128", q=kind((4, 64, 64), 4, 16))

    def test_sinks_window_and_soft_cap_are_taken_and_checked(self):
        sinks = Array((64,), "<f4")
        features = dict(window=128, sinks=sinks, soft_cap=50.0)
        self.reaches_the_device(**features)
        self.reaches_the_device(**features | dict(window=1 << 20))
        self.refused("window is 0: a query sees itself", **features | dict(window=0))
        self.refused("sinks has heads 8, not 64", **features | dict(sinks=Array((8,), "<f4")))
        self.refused("sinks has elements of type bf16, not f32", **features | dict(sinks=Array((64,), "<V2")))
        self.refused(r"it must be \[Hq\]", **features | dict(sinks=Array((64, 1), "<f4")))
        # Each alone is another problem, which the bundle has no kernel for.
        for name, suffix in [("window", "w128"), ("sinks", "sinks"), ("soft_cap", "cap")]:
            self.refused(f"linear-{suffix} ", nvkv.Miss, **{name: features[name]})

    def test_the_scales_say_the_format(self):
        fp8 = Array((64, 8, 16, 128), "|u1")
        self.reaches_the_device(k_cache=fp8, k_scales=None)  # K in FP8, V in NVFP4
        nhd = dict(k_cache=Array((64, 16, 8, 128), "|u1"), v_cache=Array((64, 16, 8, 64), "|u1"))
        self.reaches_the_device(**nhd, k_scales=None, v_scales=Array((64, 16, 8, 8), "|u1"), layout="NHD")
        self.refused("decode-fp8_e4m3-fp8-d128", nvkv.Miss, k_cache=fp8, v_cache=fp8, k_scales=None, v_scales=None)
        mixed = dict(k_cache=fp8, k_scales=None)
        self.refused(r"v_cache has shape \[64, 8, 16, 128\].* it must be \[64, 8, 16, 64\]", **mixed, v_cache=fp8)
        self.refused(r"it must be \[64, 8, 16, 8\]", **mixed, v_scales=Array((64, 8, 16, 16), "|u1"))
        # K's codes alone are half as wide: without their scales they are a cache of half the head dim.
        self.refused(r"v_cache has shape .* it must be \[64, 8, 16, 32\]", k_scales=None)

    def test_lengths_are_taken(self):
        self.reaches_the_device(lengths="log-uniform")
        self.refused("unknown distribution of lengths `mixed`", lengths="mixed")

    def test_shapes_are_compared(self):
        self.refused("q has head dim 64, not 128", q=Array((4, 64, 64), "<V2"))
        self.refused("q has 60 heads, no multiple of the cache's 8", q=Array((4, 60, 128), "<V2"))
        self.refused("no multiple of the 4 requests", q=Array((6, 64, 128), "<V2"))
        self.refused("kv_len has batch 3, not 4", kv_len=Array((3,), "<i4"))
        self.refused(r"beside this k_cache it must be \[64, 8, 16, 8\]", v_scales=Array((64, 8, 16, 4), "|u1"))
        self.refused(r"v_cache has shape \[64, 8, 8, 64\]", v_cache=Array((64, 8, 8, 64), "|u1"))
        self.refused(r"it must be \[pages, Hkv, page, row\]", k_cache=Array((64, 8, 1024), "|u1"))
        self.refused(r"out has shape \[4, 64, 64\]", out=Array((4, 64, 64), "<V2"))
        self.refused("pass k_scales and v_scales \\(NVFP4\\), v_scales alone", v_scales=None)
        self.refused("pass both k and v", k=Array((4, 8, 128), "<V2"))
        # Pages of 8 tokens are another problem, which the bundle has no kernel for.
        small, scales = Array((64, 8, 8, 64), "|u1"), Array((64, 8, 8, 8), "|u1")
        tensors = dict(k_cache=small, v_cache=small, k_scales=scales, v_scales=scales)
        self.refused("p8-bf16", nvkv.Miss, **tensors)

    def test_types_are_compared(self):
        self.refused("q has elements of type f32, not f16 or bf16", q=Array((4, 64, 128), "<f4"))
        self.refused("kv_len has elements of type i64, not i32", kv_len=Array((4,), "<i8"))
        self.refused("out has elements of type f16, not bf16", out=Array((4, 64, 128), "<f2"))
        self.refused("which nothing here takes", q=Array((4, 64, 128), "<c8"))
        self.refused("q is a int: pass a tensor on the GPU", q=7)
        self.refused("q is on no CUDA device", q=Exported((4, 64, 128), 4, 16, device_type=1))
        self.refused("last axis is not contiguous", q=Array((4, 64, 128), "<V2", 1 << 20, (32768, 2, 128)))
        self.refused("layout is HDN; known: HND, NHD", layout="HDN")
        self.refused("unknown V scale order `tiled`", v_scale_order="tiled")

    def test_interleaved_scales_are_dense(self):
        nhd, scales = Array((64, 16, 8, 64), "|u1"), Array((64, 16, 8, 8), "|u1")
        tensors = dict(k_cache=nhd, v_cache=nhd, k_scales=scales, v_scales=scales, layout="NHD")
        self.refused("interleaved4 needs a dense", v_scale_order="interleaved4", **tensors)

    def test_appends_are_compared(self):
        tensors = {name: tensor for name, tensor in call().items() if name.startswith(("k_", "v_"))}
        rows, slots = Array((9, 8, 128), "<V2"), Array((9,), "<i8")
        with self.assertRaises(nvkv.DeviceError):
            self.runtime.append(rows, rows, slots, **tensors)
        with self.assertRaisesRegex(nvkv.CallError, r"v has shape \[9, 4, 128\]: it must be \[9, 8, 128\]"):
            self.runtime.append(rows, Array((9, 4, 128), "<V2"), slots, **tensors)
        with self.assertRaisesRegex(nvkv.CallError, "slot_mapping has elements of type i32, not i64"):
            self.runtime.append(rows, rows, Array((9,), "<i4"), **tensors)


if __name__ == "__main__":
    unittest.main()
