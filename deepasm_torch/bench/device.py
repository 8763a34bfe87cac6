"""The GPU as the timing core sees it: capture, replay, wait, idle, read the clock.

Everything that touches CUDA while measuring is behind this class, so that the core can be tested
with a simulated device.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable

import torch

from .nvml import Reading, open_monitor

SPACER_MS = 0.05


class DeviceLost(RuntimeError):
    """The CUDA context is unusable; nothing more can be measured in this process."""


@dataclasses.dataclass
class Program:
    """Many launches as one submission: a CUDA graph, or a loop where capture is impossible."""

    replay: Callable[[], object]
    launches: int
    captured: bool


class CudaDevice:
    """One CUDA device.

    Parameters
    ----------
    index : int
        torch's device index.
    hold : int
        How many results a contestant that allocates its output keeps alive while it is captured.
        With one, every launch would write the same block and find it in L2.
    """

    def __init__(self, index: int = 0, hold: int = 1):
        torch.cuda.set_device(index)
        props = torch.cuda.get_device_properties(index)
        self.name = props.name
        self.hold = hold
        self.monitor = open_monitor(str(props.uuid))
        clock_khz = getattr(props, "clock_rate", 0) or 1_500_000
        self._spacer_cycles = int(clock_khz * SPACER_MS)

    # Time -------------------------------------------------------------------------------------

    def now(self) -> float:
        return time.perf_counter()

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    def synchronize(self) -> None:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLost(str(error)) from error

    # Work -------------------------------------------------------------------------------------

    def once_ms(self, call: Callable[[int], object], count: int) -> float:
        """Milliseconds per call of ``count`` eager calls (host-bound when they are short)."""
        return self.elapsed_ms(self.submit(self.loop(call, count), spaced=True)) / count

    def capture(self, call: Callable[[int], object], launches: int) -> Program:
        """``call(0), ... call(launches - 1)`` as one CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        held = collections.deque(maxlen=self.hold)
        with torch.cuda.graph(graph):
            for index in range(launches):
                held.append(call(index))
        held.clear()
        return Program(graph.replay, launches, captured=True)

    def loop(self, call: Callable[[int], object], launches: int) -> Program:
        def replay() -> None:
            held = collections.deque(maxlen=self.hold)
            for index in range(launches):
                held.append(call(index))

        return Program(replay, launches, captured=False)

    def submit(self, program: Program, spaced: bool = False):
        """Queue one timed replay.

        spaced : keep the GPU busy for a moment first, so that the start event and the work behind
            it are both queued when it gets there and the host's latency is not measured.
        """
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if spaced:
            torch.cuda._sleep(self._spacer_cycles)
        start.record()
        program.replay()
        stop.record()
        return start, stop

    def elapsed_ms(self, ticket) -> float:
        start, stop = ticket
        try:
            stop.synchronize()
            return start.elapsed_time(stop)
        except RuntimeError as error:
            raise DeviceLost(str(error)) from error

    def read(self) -> Reading:
        return self.monitor.read()
