"""Pick the fastest of a few launches: compile them side by side, time them in turn.

Triton's own autotuner times eagerly, which for small problems measures the launch and not the
kernel, and it compiles one configuration after the other. This one replays CUDA graphs, in random
order and several rounds, so that clock drift falls on every candidate alike.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

log = logging.getLogger(__name__)

ROUNDS = 5
GRAPH_MS = 1.0


def compile_all(warmups: Sequence[Callable[[], object]]) -> list[Exception | None]:
    """Run every warm-up (a compile without a launch), in threads where Triton allows it.

    Returns
    -------
    list
        One entry per warm-up: None, or why that candidate cannot be used.
    """
    failures: list[Exception | None] = [None] * len(warmups)
    handles: list[object] = [None] * len(warmups)
    with contextlib.ExitStack() as stack:
        mode = _async_mode(stack)
        for index, warmup in enumerate(warmups):
            try:
                handles[index] = warmup()
            except Exception as error:  # too much shared memory, a compiler assertion, ...
                failures[index] = error
        if mode:
            for index, handle in enumerate(handles):
                if failures[index] is None and hasattr(handle, "result"):
                    try:
                        handle.result()
                    except Exception as error:
                        failures[index] = error
    return failures


def _async_mode(stack: contextlib.ExitStack) -> bool:
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:  # an older Triton: one after the other
        return False
    pool = stack.enter_context(ThreadPoolExecutor(min(8, os.cpu_count() or 1)))
    stack.enter_context(AsyncCompileMode(pool, ignore_errors=True))
    return True


def fastest(launches: Sequence[Callable[[], object] | None]) -> tuple[int, list[float]]:
    """Time the launches against each other.

    Parameters
    ----------
    launches : sequence of callable or None
        None marks a candidate that did not compile.

    Returns
    -------
    (int, list of float)
        Index of the fastest, and every candidate's milliseconds (inf for unusable ones).
    """
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, int]] = {}
    for index, launch in enumerate(launches):
        if launch is None:
            continue
        try:
            graphs[index] = _capture(launch)
        except Exception as error:
            log.debug("candidate %d does not run: %s", index, error)
    if not graphs:
        raise RuntimeError("no Triton configuration runs this problem on this device")
    samples: dict[int, list[float]] = {index: [] for index in graphs}
    order = list(graphs)
    for _ in range(ROUNDS):
        random.shuffle(order)
        for index in order:
            graph, count = graphs[index]
            samples[index].append(_elapsed(graph.replay) / count)
    times = [
        statistics.median(samples[index]) if index in samples else float("inf")
        for index in range(len(launches))
    ]
    return min(range(len(times)), key=times.__getitem__), times


def _capture(launch: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
    launch()
    torch.cuda.synchronize()
    once = min(_elapsed(launch) for _ in range(2))
    count = max(1, min(64, round(GRAPH_MS / max(once, 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    graph.replay()
    return graph, count


def _elapsed(call: Callable[[], object]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)
