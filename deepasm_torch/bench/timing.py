"""The measuring core: contestants raced against each other on one device.

Why a race: a loaded GPU runs at its power limit, where single timings drift by 10 %, so only
figures taken alternately, in one process, can be compared.

1. Each contestant becomes one CUDA graph of many launches over rotating buffers, sized to last
   about ``graph_ms``; where capture fails it is an event-timed loop instead, and marked.
2. *steady*: graphs are replayed back to back, in a new random order every round, after the power
   has settled; this is how a training step sees the kernel.
3. *burst*: every replay follows a short idle and runs at full clock; this is how an isolated call
   sees it.
4. Every contestant's figure is its median. A peer can be entered twice: the distance between the
   two is the noise, and any difference smaller than it means nothing.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

Contestant = Callable[[int], object]
REGIMES = ("steady", "burst")
TWIN = "#2"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how hard to measure.

    Attributes
    ----------
    budget_s : float
        Wall-clock seconds for the measuring of one case (preparation is not bounded by it).
    graph_ms : float
        Aimed length of one replay.
    idle_s : float
        Pause before each replay of the burst regime.
    warm_s : (float, float)
        Shortest and longest warm-up before the steady rounds; it ends once the power has settled.
    min_rounds, max_rounds : int
        Per regime. The minimum is kept even when the budget is too small.
    """

    budget_s: float = 6.0
    regimes: Sequence[str] = REGIMES
    graph_ms: float = 1.6
    idle_s: float = 0.15
    warm_s: tuple[float, float] = (0.3, 1.5)
    min_rounds: int = 5
    max_rounds: int = 200
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Timing:
    """One contestant in one regime, milliseconds per launch."""

    ms: float  # median
    low: float  # first and third quartile
    high: float
    rounds: int
    launches: int  # per replay
    captured: bool  # False: an event-timed loop, host gaps included


@dataclasses.dataclass
class Race:
    """The result: ``regimes["steady"]["cublas"].ms`` and so on."""

    regimes: dict[str, dict[str, Timing]] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    noise: dict[str, float] = dataclasses.field(default_factory=dict)
    clock_mhz: dict[str, float | None] = dataclasses.field(default_factory=dict)
    power_w: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def ms(self, regime: str, name: str) -> float | None:
        timing = self.regimes.get(regime, {}).get(name)
        return timing.ms if timing else None


def race(
    contestants: Mapping[str, Contestant],
    device,
    settings: Settings | None = None,
    twins: Sequence[str] = (),
) -> Race:
    """Race the contestants.

    Parameters
    ----------
    contestants : mapping of str to callable(int)
        ``call(i)`` does one launch on buffer set ``i % sets`` (the callable rotates by itself) and
        may return its result. It has to have run once already.
    device : object
        :class:`deepasm_torch.bench.device.CudaDevice`, or a simulated one.
    twins : sequence of str
        Contestants entered twice, to show the noise.

    Returns
    -------
    Race
        A contestant that raised is in ``failed`` and in no regime.

    Raises
    ------
    DeviceLost
        The CUDA context died: nothing after it can be trusted.
    """
    settings = settings or Settings()
    rng = random.Random(settings.seed)
    result = Race()
    programs = {}
    entries = [(name, call) for name, call in contestants.items()]
    entries += [(name + TWIN, contestants[name]) for name in twins if name in contestants]
    for name, call in entries:
        try:
            programs[name] = _prepare(call, device, settings)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            result.failed[name] = f"{type(error).__name__}: {first[:300]}"
            device.synchronize()  # raises DeviceLost when the error was a sticky one
    if not programs:
        return result

    share = settings.budget_s / max(1, len(settings.regimes))
    for regime in settings.regimes:
        run = {"steady": _steady, "burst": _burst}[regime]
        samples, readings = run(programs, device, settings, share, rng)
        result.regimes[regime] = {
            name: _summary(values, programs[name]) for name, values in samples.items()
        }
        result.noise[regime] = _noise(result.regimes[regime])
        clocks = [r.clock_mhz for r in readings if r.clock_mhz is not None]
        powers = [r.power_w for r in readings if r.power_w is not None]
        # Bursts are shorter than a sensor's period: their clock is the highest one seen.
        pick = max if regime == "burst" else statistics.median
        result.clock_mhz[regime] = pick(clocks) if clocks else None
        result.power_w[regime] = round(statistics.fmean(powers), 1) if powers else None
    return result


def _prepare(call: Contestant, device, settings: Settings):
    """A program that lasts about ``graph_ms``: guess from an eager loop, correct from a replay."""
    device.synchronize()
    device.once_ms(call, 2)  # first-use costs
    launches = _launches(device.once_ms(call, 4), settings)
    for _ in range(2):
        program = _capture(call, launches, device)
        device.elapsed_ms(device.submit(program))  # the first replay uploads the graph
        took = device.elapsed_ms(device.submit(program))
        wanted = _launches(took / launches, settings)
        if 0.6 <= wanted / launches <= 1.6:
            break
        # Small kernels: the eager guess was the host's time per call, not the kernel's.
        launches = wanted
    return program


def _launches(ms: float, settings: Settings) -> int:
    return max(1, min(4096, round(settings.graph_ms / max(ms, 1e-4))))


def _capture(call: Contestant, launches: int, device):
    try:
        return device.capture(call, launches)
    except Exception:
        device.synchronize()
        return device.loop(call, launches)


def _steady(programs, device, settings: Settings, share: float, rng: random.Random):
    names = list(programs)
    readings = []
    start = device.now()
    queue: list[tuple[str, object]] = []
    samples: dict[str, list[float]] = {name: [] for name in names}
    shortest, longest = settings.warm_s
    longest = max(shortest, min(longest, share / 3))
    warm, rounds, last_reading = True, 0, start
    powers: list[float] = []
    while True:
        rng.shuffle(names)
        pending = [(name, device.submit(programs[name])) for name in names]
        # The previous round is read while this one runs, so that the device never waits.
        for name, ticket in queue:
            ms = device.elapsed_ms(ticket) / programs[name].launches
            if not warm:
                samples[name].append(ms)
        queue = pending
        now = device.now()
        if now - last_reading >= 0.05:
            last_reading = now
            reading = device.read()
            if not warm:
                readings.append(reading)
            elif reading.power_w is not None:
                powers.append(reading.power_w)
        if warm:
            settled = now - start >= shortest and _settled(powers)
            if settled or now - start >= longest:
                # The round in flight was queued warm: read it away first.
                for _, ticket in queue:
                    device.elapsed_ms(ticket)
                queue, warm = [], False
            continue
        rounds += 1
        over = now - start >= share and rounds >= settings.min_rounds
        if over or rounds >= settings.max_rounds:
            break
    for name, ticket in queue:
        samples[name].append(device.elapsed_ms(ticket) / programs[name].launches)
    return samples, readings or [device.read()]


def _settled(powers: list[float]) -> bool:
    tail = powers[-4:]
    return len(tail) == 4 and max(tail) - min(tail) <= 0.03 * max(tail)


def _burst(programs, device, settings: Settings, share: float, rng: random.Random):
    names = list(programs)
    samples: dict[str, list[float]] = {name: [] for name in names}
    readings = []
    start = device.now()
    rounds = 0
    while True:
        rng.shuffle(names)
        for name in names:
            device.synchronize()
            device.idle(settings.idle_s)
            ticket = device.submit(programs[name], spaced=True)
            samples[name].append(device.elapsed_ms(ticket) / programs[name].launches)
            readings.append(device.read())
        rounds += 1
        spent = device.now() - start
        another = spent * (rounds + 1) / rounds  # what one more round would bring it to
        if rounds >= settings.max_rounds or (another > share and rounds >= settings.min_rounds):
            return samples, readings


def _summary(values: list[float], program) -> Timing:
    if len(values) > 1:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = middle = high = values[0]
    return Timing(middle, low, high, len(values), program.launches, program.captured)


def _noise(timings: dict[str, Timing]) -> float:
    """Largest relative distance between a contestant and its twin; 0 when nobody has one."""
    worst = 0.0
    for name, timing in timings.items():
        if name.endswith(TWIN) and name.removesuffix(TWIN) in timings:
            worst = max(worst, abs(timings[name.removesuffix(TWIN)].ms / timing.ms - 1))
    return worst
