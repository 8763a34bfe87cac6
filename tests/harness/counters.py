"""What a call did besides computing: launches, fallbacks, memory, nodes of a captured graph."""

from __future__ import annotations

import contextlib
import ctypes
import json
from dataclasses import dataclass, field

import torch


@dataclass
class Counts:
    """Difference of the extension's counters over a block of code."""

    launches: int = 0
    fallbacks: int = 0
    copies: int = 0
    reason: str | None = None
    kernels: dict[str, int] = field(default_factory=dict)


def _read(op: str) -> dict:
    from deepasm_torch import _C

    return json.loads(_C.counters())[op]


@contextlib.contextmanager
def counting(op: str = "gemm"):
    """Yield a `Counts` that is filled in when the block ends."""
    before, counts = _read(op), Counts()
    yield counts
    after = _read(op)
    for name in ("launches", "fallbacks", "copies"):
        setattr(counts, name, after[name] - before[name])
    counts.reason = after["last_fallback"]
    kernels = {k: v - before["kernels"].get(k, 0) for k, v in after["kernels"].items()}
    counts.kernels = {k: v for k, v in kernels.items() if v}


@contextlib.contextmanager
def option(name: str, value: int):
    """Set one of the extension's process-wide options for a block."""
    from deepasm_torch import _C

    kept = _C.get_option(name)
    _C.set_option(name, value)
    try:
        yield
    finally:
        _C.set_option(name, kept)


@dataclass
class Peak:
    """Bytes asked of torch's caching allocator, above what was held before."""

    nbytes: int = 0


@contextlib.contextmanager
def peak_memory():
    """Yield a `Peak`.  Counts requested bytes, which block rounding and caching do not change."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, peak = torch.cuda.memory_stats()["requested_bytes.all.current"], Peak()
    yield peak
    peak.nbytes = torch.cuda.memory_stats()["requested_bytes.all.peak"] - held


_NODE_KINDS = {0: "kernel", 1: "memcpy", 2: "memset", 3: "host"}


def graph_nodes(fn) -> list[str]:
    """Kinds of the nodes that `fn` adds to a CUDA graph: one entry per kernel, copy or memset.

    Counts what reaches the device without a profiler, so that a hidden `.contiguous()` or a second
    kernel for the activation has nowhere to hide.  `fn` is called once outside the capture first.
    """
    # Autograd runs a backward on the streams of its forward: whoever captures one must have built
    # its graph on a side stream, which is then the one to capture.
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream):
        kept = fn()
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    if cuda.cuGraphGetNodes(handle, None, ctypes.byref(count)) != 0:
        raise RuntimeError("cuGraphGetNodes failed on a captured graph")
    nodes = (ctypes.c_void_p * max(1, count.value))()
    if cuda.cuGraphGetNodes(handle, nodes, ctypes.byref(count)) != 0:
        raise RuntimeError("cuGraphGetNodes failed on a captured graph")
    kinds = []
    for node in nodes[: count.value]:
        kind = ctypes.c_int(-1)
        cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds.append(_NODE_KINDS.get(kind.value, f"type {kind.value}"))
    del kept
    return kinds
