"""Devices, streams, graphs, threads and processes (cases R*), for gemm.

What depends on the first call of a process, or may leave a broken CUDA context behind, runs in a
process of its own (`@isolated`).
"""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import torch
from harness import isolated
from harness.counters import counting, option

import deepasm_torch

gemm = torch.ops.deepasm.gemm
halves = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])


def _ones(*shape, dtype=torch.bfloat16):
    return torch.ones(*shape, device="cuda", dtype=dtype)


@pytest.mark.multigpu
def test_r01_tensors_on_another_device_than_the_current():
    with torch.cuda.device(0):
        a = torch.eye(64, device="cuda:1", dtype=torch.bfloat16) * 3
        a.requires_grad_()
        y = gemm(a, a)
        assert y.device == torch.device("cuda:1") and torch.equal(y, a * 3)
        y.sum().backward()
        assert torch.cuda.current_device() == 0
        with pytest.raises(RuntimeError, match="same device"):
            gemm(a, a.to("cuda:0"))
        assert torch.cuda.current_device() == 0


@pytest.mark.gpu
@halves
@isolated(timeout=120)
def test_r03_first_launch_on_the_autograd_thread(half):
    """The thread that runs backward has no current context when our kernels are first needed."""

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.clone()

        @staticmethod
        def backward(ctx, g):
            with torch.no_grad():
                return gemm(g.contiguous(), torch.eye(64, device=g.device, dtype=g.dtype))

    x = _ones(64, 64, dtype=half).requires_grad_()
    with counting() as counts:
        Fn.apply(x).sum().backward()
    assert bool((x.grad == 1).all()) and counts.launches == 1


@pytest.mark.gpu
@isolated(timeout=120)
def test_r03_first_launch_on_a_plain_thread():
    x, results = _ones(64, 64), []

    def work():
        results.append(gemm(x, x))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert bool((results[0] == 64).all())


@pytest.mark.gpu
def test_r03_many_threads_at_once():
    """Eight threads, each on its own stream, while the planner and the loader are shared."""
    failures = []

    def work(i):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                a = torch.full((65 + i, 72), float(i + 1), device="cuda", dtype=torch.float16)
                for _ in range(20):
                    y = gemm(a, torch.eye(72, device="cuda", dtype=torch.float16))
                if not torch.equal(y, a):
                    failures.append(i)
        except RuntimeError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["side", "per-thread default"])
def test_r04_kernels_follow_the_current_stream(kind):
    """The operand is written behind a long wait; any other stream would read it early."""
    stream = (
        torch.cuda.Stream() if kind == "side" else torch.cuda.ExternalStream(2)
    )  # CU_STREAM_PER_THREAD
    eye = torch.eye(256, device="cuda", dtype=torch.bfloat16)
    a = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)
    with torch.cuda.stream(stream):
        for i in range(1, 13):
            torch.cuda._sleep(5_000_000)
            a.fill_(float(i))
            wrong += (gemm(a, eye) != i).sum()
    stream.synchronize()
    assert int(wrong) == 0


@pytest.mark.gpu
def test_r04_backward_runs_on_the_stream_of_the_forward():
    stream = torch.cuda.Stream()
    a, b = _ones(128, 128).requires_grad_(), _ones(128, 128)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = gemm(a, b)
        torch.cuda._sleep(20_000_000)
        b.data.fill_(2.0)  # seen by the backward only if that is queued behind it
    y.backward(_ones(128, 128))
    torch.cuda.synchronize()
    assert bool((a.grad == 256).all())


def _driver_version() -> int:
    version = ctypes.c_int()
    assert ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0
    return version.value


def _first_call_in_capture(half):
    """From CUDA 12.3 on the driver loads modules during a capture; before, the call is refused."""
    a = _ones(96, 96, dtype=half)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if _driver_version() < 12030:
        with pytest.raises(RuntimeError, match=r"warmup\(\)"), torch.cuda.graph(graph):
            gemm(a, a)
    else:
        with torch.cuda.graph(graph):
            y = gemm(a, a)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((y == 96).all())
    assert bool((gemm(a, a) == 96).all())  # the process is usable either way


@pytest.mark.gpu
@halves
@isolated(timeout=120)
def test_r07_first_call_in_a_capture(half):
    _first_call_in_capture(half)


@pytest.mark.gpu
@isolated(timeout=120, env={"DEEPASM_TIER": "sm80"})
def test_r07_first_call_in_a_capture_on_tier_sm80():
    _first_call_in_capture(torch.bfloat16)


@pytest.mark.gpu
@isolated(timeout=120)
def test_r07_warmup_makes_capture_safe():
    deepasm_torch.warmup()
    a, graph = _ones(96, 96), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gemm(a, a)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 96).all())


@pytest.mark.gpu
@pytest.mark.slow
@isolated(timeout=280)
def test_r07_reduce_overhead_on_the_first_call():
    f = torch.compile(lambda x, w: gemm(x, w).relu(), mode="reduce-overhead", fullgraph=True)
    x, w = _ones(96, 64), _ones(64, 80)
    with torch.no_grad():
        for scale in (1, 2, 3):
            torch.compiler.cudagraph_mark_step_begin()
            assert bool((f(x * scale, w) == 64 * scale).all())


@pytest.mark.gpu
@isolated(timeout=120)
def test_r08_garbage_collection_during_a_capture():
    a = _ones(64, 64)
    gemm(a, a)
    torch.cuda.synchronize()

    class Cycle:
        pass

    for _ in range(3):
        cycle = Cycle()
        cycle.itself, cycle.op = cycle, torch.ops.deepasm.gemm.default
    del cycle
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gemm(a, a)
        gc.collect()
        z = gemm(y, a)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 64).all()) and bool((z == 4096).all())


@pytest.mark.gpu
@pytest.mark.parametrize("tier", [80, 90])
def test_replay_reads_the_new_contents(tier):
    """A captured launch keeps pointers, not values: new operands in the same memory are seen."""
    with option("tier", tier):
        a, b = _ones(200, 136), _ones(136, 264)
        bias = torch.zeros(264, device="cuda")
        gemm(a, b, bias)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = gemm(a, b, bias, activation=1)
    for value in (1.0, 2.0):
        a.fill_(value)
        bias.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((y == 136 * value + value).all())


@pytest.mark.gpu
def test_no_synchronisation(half):
    """Torch's sync detector stays silent, and a call returns while the device is still busy."""
    a = _ones(256, 256, dtype=half)
    gemm(a, a)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        done = torch.cuda.Event()
        torch.cuda._sleep(200_000_000)
        gemm(a, a, activation=2)
        done.record()
        assert not done.query(), "the call waited for the device"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


@pytest.mark.gpu
def test_thirty_runs_give_the_same_bits(half):
    gen = torch.Generator(device="cuda").manual_seed(3)
    a = torch.randn(1000, 1111, device="cuda", generator=gen).to(half)
    b = torch.randn(1111, 777, device="cuda", generator=gen).to(half)
    first = gemm(a, b, out_dtype=torch.float32)
    assert all(torch.equal(gemm(a, b, out_dtype=torch.float32), first) for _ in range(30))


def test_deterministic_algorithms_are_honoured(device, half):
    a = torch.ones(64, 64, device=device, dtype=half, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        y = gemm(a, a)
        y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert bool((y == 64).all()) and bool((a.grad == 128).all())


def test_r14_cpu_and_mixed_devices(device):
    a = torch.ones(4, 4)
    assert bool((gemm(a, a) == 4).all())
    meta = gemm(torch.ones(4, 5, device="meta"), torch.ones(5, 6, device="meta"))
    assert meta.device.type == "meta" and meta.shape == (4, 6) and meta.stride() == (6, 1)
    other = torch.ones(4, 4, device=device if device == "cuda" else "meta")
    for x, y in ((a, other), (other, a)):
        with pytest.raises(RuntimeError, match="same device"):
            gemm(x, y)
        with pytest.raises(RuntimeError, match="same device"):
            gemm(x, x, y[0])


@pytest.mark.gpu
@isolated(timeout=120)
def test_refused_calls_leave_the_context_intact():
    a = _ones(64, 64)
    bad = [
        (a, a.float()),
        (a, a[:63]),
        (a.long(), a.long()),
        (a.cfloat(), a.cfloat()),
        (a, a.cpu()),
        (a, torch.ones((), device="cuda", dtype=a.dtype)),
        (a.to_sparse(), a),
        (a.bool(), a.bool()),
    ]
    for x, y in bad:
        with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
            gemm(x, y)
    with pytest.raises((RuntimeError, ValueError)):
        gemm(a, a, activation=99)
    with pytest.raises((RuntimeError, ValueError)):
        torch.ops.deepasm._gemm(a, a, None, None, 1.0, 0.0, 0, None, 10_000)
    torch.cuda.synchronize()
    assert bool((gemm(a, a) == 64).all())
