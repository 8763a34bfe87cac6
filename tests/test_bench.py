"""The measuring core against a simulated device whose answers are known, and what suites write."""

from __future__ import annotations

import json
import math
import random
import re
import sys

import pytest

from deepasm_torch.bench import nvml, report
from deepasm_torch.bench.device import Program
from deepasm_torch.bench.nvml import Reading
from deepasm_torch.bench.progress import Progress
from deepasm_torch.bench.timing import Settings, race


class SimulatedDevice:
    """A device that runs in virtual time.

    A contestant asks for it with :meth:`work`. Eager launches cost the host ``host_ms`` each; a
    captured graph costs the GPU's own time. ``slowdown(now)`` stretches all work, as a falling
    clock does.
    """

    def __init__(
        self, host_ms=0.01, slowdown=lambda now: 1.0, can_capture=True, power=lambda t: 600
    ):
        self.clock, self.hold = 0.0, 1
        self.host_ms, self.slowdown, self.can_capture = host_ms, slowdown, can_capture
        self.power = power
        self.log: list[str] = []
        self._recording: list[float] | None = None

    def work(self, ms: float) -> None:
        self._recording.append(ms)

    def now(self) -> float:
        return self.clock

    def idle(self, seconds: float) -> None:
        self.log.append("idle")
        self.clock += seconds

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def _record(self, call, launches) -> list[float]:
        self._recording = []
        for index in range(launches):
            call(index)
        done, self._recording = self._recording, None
        return done

    def capture(self, call, launches):
        if not self.can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        return self._program(self._record(call, launches), True, call)

    def loop(self, call, launches):
        return self._program(
            [max(ms, self.host_ms) for ms in self._record(call, launches)], False, call
        )

    def _program(self, work, captured, call):
        program = Program(lambda: sum(work), len(work), captured)
        program.name = getattr(call, "name", "?")
        return program

    def once_ms(self, call, count):
        return self.elapsed_ms(self.submit(self.loop(call, count), spaced=True)) / count

    def submit(self, program, spaced=False):
        took = program.replay() * self.slowdown(self.clock)
        self.clock += took / 1e3
        self.log.append(program.name)
        return took

    def elapsed_ms(self, ticket):
        return ticket

    def read(self):
        return Reading(1500.0 if self.slowdown(self.clock) > 1 else 1980.0, self.power(self.clock))


def contestant(device, ms, name="?"):
    def call(index):
        device.work(ms if not callable(ms) else ms(index))

    call.name = name
    return call


QUICK = Settings(budget_s=2.0, idle_s=0.15, warm_s=(0.1, 0.3), max_rounds=50)


def test_race_measures_what_the_device_took():
    device = SimulatedDevice()
    result = race(
        {"a": contestant(device, 0.2), "b": contestant(device, 0.1)}, device, QUICK, twins=["b"]
    )
    for regime in ("steady", "burst"):
        assert result.ms(regime, "a") == pytest.approx(0.2)
        assert result.ms(regime, "b") == pytest.approx(0.1)
        assert result.noise[regime] == pytest.approx(0.0, abs=1e-9)
        assert result.regimes[regime]["b#2"].captured
        assert result.power_w[regime] == 600
    assert not result.failed
    assert result.ms("steady", "missing") is None


def test_small_kernels_are_timed_in_a_graph_and_not_at_the_host_pace():
    # 2 us of GPU work behind 10 us of host work: the eager guess is five times too few launches.
    device = SimulatedDevice(host_ms=0.01)
    result = race({"a": contestant(device, 0.002)}, device, QUICK)
    first = result.regimes["steady"]["a"]
    assert first.ms == pytest.approx(0.002)
    assert first.launches == pytest.approx(1.6 / 0.002, rel=0.05)


def test_large_kernels_get_one_launch_per_replay():
    device = SimulatedDevice()
    result = race({"a": contestant(device, 12.0)}, device, QUICK)
    assert result.regimes["steady"]["a"].launches == 1
    assert result.ms("steady", "a") == pytest.approx(12.0)


def test_a_contestant_that_cannot_be_captured_is_timed_by_events_and_marked():
    device = SimulatedDevice(host_ms=0.01, can_capture=False)
    result = race({"a": contestant(device, 0.002)}, device, QUICK)
    assert not result.regimes["steady"]["a"].captured
    assert result.ms("steady", "a") == pytest.approx(0.01)


def test_a_contestant_that_raises_is_reported_and_the_others_are_measured():
    device = SimulatedDevice()

    def broken(index):
        raise RuntimeError("no kernel image\nsecond line")

    result = race({"a": contestant(device, 0.2), "b": broken}, device, QUICK)
    assert result.failed == {"b": "RuntimeError: no kernel image"}
    assert set(result.regimes["steady"]) == {"a"}
    assert race({"b": broken}, device, QUICK).regimes == {}


def test_drift_of_the_clock_leaves_the_ratio_alone():
    # The clock falls by 40 % over the run. Timing one contestant after the other would show it.
    device = SimulatedDevice(slowdown=lambda now: 1.0 + 0.2 * now)
    settings = Settings(budget_s=2.0, regimes=("steady",), warm_s=(0.1, 0.2), max_rounds=400)
    result = race(
        {"a": contestant(device, 0.2), "b": contestant(device, 0.2)}, device, settings, twins=["a"]
    )
    assert result.ms("steady", "a") / result.ms("steady", "b") == pytest.approx(1, abs=0.01)
    assert result.noise["steady"] < 0.01
    assert result.clock_mhz["steady"] == 1500


def test_order_is_random_and_every_round_has_everybody():
    device = SimulatedDevice()
    names = list("abcd")
    settings = Settings(budget_s=1.0, regimes=("steady",), warm_s=(0.0, 0.0), max_rounds=40)
    race({n: contestant(device, 0.5, n) for n in names}, device, settings)
    replays = [entry for entry in device.log if entry in names][-4 * 30 :]
    rounds = [tuple(replays[i : i + 4]) for i in range(0, len(replays), 4)]
    assert all(sorted(one) == names for one in rounds)
    assert len(set(rounds)) > 5


def test_burst_waits_idle_before_every_replay_and_steady_never():
    for regime, expected in (("burst", True), ("steady", False)):
        device = SimulatedDevice()
        settings = Settings(budget_s=1.0, regimes=(regime,), max_rounds=6, warm_s=(0.0, 0.1))
        race({"a": contestant(device, 0.5, "a")}, device, settings)
        assert ("idle" in device.log) is expected
        if expected:
            places = [i for i, entry in enumerate(device.log) if entry == "idle"]
            assert all(device.log[i + 1] == "a" for i in places)


def test_warm_up_ends_when_the_power_has_settled_and_is_not_counted():
    # Cold, the same work takes 10 times as long; power climbs for 0.5 s.
    def slow(now):
        return 10.0 if now < 0.4 else 1.0

    device = SimulatedDevice(slowdown=slow, power=lambda now: min(600, 100 + 1000 * now))
    settings = Settings(budget_s=6.0, regimes=("steady",), warm_s=(0.3, 5.0), max_rounds=30)
    result = race({"a": contestant(device, 1.0)}, device, settings)
    assert result.ms("steady", "a") == pytest.approx(1.0)
    assert result.regimes["steady"]["a"].high == pytest.approx(1.0)
    assert device.clock < 2.5  # settled long before the 2 s that a third of the budget allows


@pytest.mark.parametrize("regime", ["steady", "burst"])
def test_the_budget_bounds_the_rounds_and_the_minimum_is_kept(regime):
    device = SimulatedDevice()
    call = contestant(device, 1.0)
    settings = Settings(budget_s=3.0, regimes=(regime,), max_rounds=10**6, warm_s=(0.1, 0.2))
    before = device.clock
    result = race({"a": call}, device, settings)
    assert 2.0 < device.clock - before < 3.6
    assert result.regimes[regime]["a"].rounds > 10
    tight = Settings(budget_s=0.0, regimes=(regime,), min_rounds=7, warm_s=(0.0, 0.0))
    assert race({"a": call}, device, tight).regimes[regime]["a"].rounds == 7


def test_median_ignores_outliers():
    device = SimulatedDevice()
    rng = random.Random(0)
    noisy = contestant(device, 0.4)
    slow = {"left": 8}

    def stretch(now):
        if slow["left"] and rng.random() < 0.1:
            slow["left"] -= 1
            return 50.0
        return 1.0

    device.slowdown = stretch
    result = race({"a": noisy}, device, Settings(2.0, ("steady",), warm_s=(0, 0.1), max_rounds=100))
    assert result.ms("steady", "a") == pytest.approx(0.4)


# ---- reports -----------------------------------------------------------------------------------


def row(**changes) -> dict:
    base = {
        "case": "4096x4096x4096 nt bf16",
        "pass": "fwd",
        "ours_ms": 0.2,
        "peers_ms": {"cublas": 0.21},
        "rel_err": 1.6e-3,
        "peer_rel_err": 1.6e-3,
        "variant": "gemm_sm90_bf16_nt_128x256x64_coop",
    }
    return {**base, **changes}


def result_of(*rows) -> dict:
    return {**report.header("gemm", "NVIDIA H200", "580.1", "2.11.0"), "rows": list(rows)}


def test_schema_accepts_what_it_should_and_names_what_it_should_not():
    assert report.validate(result_of(row(), row(family="x", batch=4, metrics={"a": 1}))) == []
    assert report.validate(result_of(row(ours_ms=None, variant=None))) == []
    bad = report.validate(result_of(row(speed=3), row(ours_ms="fast"), {"case": "x"}))
    assert any("unknown 'speed'" in problem for problem in bad)
    assert any("'ours_ms' is str" in problem for problem in bad)
    assert any("missing 'peers_ms'" in problem for problem in bad)
    assert report.validate({"rows": []})[0] == "missing 'suite'"
    assert "unknown 'extra'" in report.validate({**result_of(), "extra": 1})


def test_header_says_where_and_when():
    head = report.header("gemm", "NVIDIA H200", None, "2.11.0")
    assert head["driver"] == "unknown"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", head["date"])
    assert head["commit"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
        ("", "unknown"),
    ],
)
def test_device_folder(name, short):
    assert report.short_device_name(name) == short


def test_json_is_valid_with_one_row_per_line(tmp_path):
    path = tmp_path / "deep" / "gemm.json"
    data = result_of(row(), row(case="other"))
    report.write_json(path, data)
    text = path.read_text()
    assert json.loads(text) == data
    assert sum(line.strip().startswith('{"case"') for line in text.splitlines()) == 2
    report.write_json(path, result_of())
    assert json.loads(path.read_text())["rows"] == []
    assert [p.name for p in path.parent.iterdir()] == ["gemm.json"]  # no scratch file is left


def test_table_is_aligned():
    text = report.table(["case", "us", "kernel"], [["a", "1.50", "x"], ["longer", "10.25", "-"]])
    assert text.splitlines() == [
        "case       us  kernel",
        "------  -----  ------",
        "a        1.50  x",
        "longer  10.25  -",
    ]


def test_geomean_and_rounding():
    assert report.geomean([2.0, 0.5]) == pytest.approx(1.0)
    assert report.geomean([None, 4.0, 1.0]) == pytest.approx(2.0)
    assert report.geomean([]) is None
    assert report.significant(0.000123456, 3) == 0.000123
    assert report.significant(123456.0, 2) == 120000.0
    assert report.significant(None) is None and report.significant(0.0) == 0.0
    assert math.isnan(report.significant(float("nan")))


def test_chart_says_why_when_it_cannot_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reason = report.chart(tmp_path / "x.png", "t", ["a"], {"vs cublas": [1.0]})
    assert "matplotlib" in reason and not (tmp_path / "x.png").exists()


def test_chart(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (extra 'bench') is not installed")
    path = tmp_path / "x.png"
    assert report.chart(path, "t", ["a", "b"], {"vs x": [1.0, None], "vs y": [0.5, 2]}) is None
    assert path.stat().st_size > 1000


def test_progress_is_plain_lines_off_a_terminal(capsys):
    with Progress(2) as bar:
        bar.note("not shown")
        bar.step("one")
        bar.step("two")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == ["one", "two"]
    assert lines[0].startswith("[1/2]")
    with Progress(1, quiet=True) as bar:
        bar.step("silent")
    with Progress(1, verbose=True) as bar:
        bar.note("what runs now")
    err = capsys.readouterr().err
    assert "silent" not in err and "what runs now" in err


# ---- clock and power ---------------------------------------------------------------------------


def test_nvidia_smi_is_parsed(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in *driver_version*) echo 580.1;; *) echo "1455, 689.5";; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = nvml.NvidiaSmi("abc")
    assert smi.driver() == "580.1"
    assert smi.read() == Reading(1455.0, 689.5)
    tool.write_text('#!/bin/sh\necho "[N/A], [N/A]"\n')
    assert smi.read() == Reading(None, None)


def test_without_any_source_readings_are_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvml, "Nvml", lambda uuid: (_ for _ in ()).throw(OSError("no library")))
    monitor = nvml.open_monitor("abc")
    assert monitor.read() == Reading(None, None) and monitor.driver() is None
