"""``deepasm bench gemm``: matrix products beside cuBLAS, Triton and others.

Three modes share the cases: the comparison (default), ``--variants`` (every row of the kernel table
on every case: what the planner should choose), and ``--host`` (what one eager call costs the CPU).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deepasm_torch.cli import CannotRun, Outcome

from . import report
from .gemm_cases import Case, own_shape, select
from .gemm_rows import PEERS, missed_targets, run_case
from .gemm_table import render
from .progress import Progress
from .timing import REGIMES, Settings

SUITE = "gemm"
PREPARE_S = 3.0  # first guess of what building a case costs before it is timed (Triton compiles)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--cases",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only families or case names that contain one of these",
    )
    add(
        "--shape",
        nargs="+",
        default=[],
        metavar="MxNxK[:nt[:bf16]]",
        help="cases of your own instead of the built-in ones",
    )
    add("--quick", action="store_true", help="a subset of the cases, steady regime, few rounds")
    add("--regime", choices=[*REGIMES, "both"], help="default: both (steady with --quick)")
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="for the whole run; cases that do not fit are left out (default 480, --quick 90)",
    )
    add(
        "--peers",
        nargs="+",
        choices=PEERS,
        default=list(PEERS[:3]),
        help=f"contestants beside ours (default: {', '.join(PEERS[:3])})",
    )
    add("--compile-mode", default="default", help="torch.compile mode of the peer 'compile'")
    add("--device", type=int, default=0, help="CUDA device index")
    add(
        "--out",
        type=Path,
        help="JSON file (default benchmarks/results/<device>/gemm.json, and only after a full run)",
    )
    add(
        "--update",
        action="store_true",
        help="keep the rows of other cases that the JSON file already has",
    )
    add("--commit", help="recorded in the JSON instead of what git says")
    add("--png", type=Path, help="chart (default: beside the JSON)")
    add(
        "--check",
        action="store_true",
        help="exit 1 when a case misses the speed it is meant to have",
    )
    add("--quiet", action="store_true", help="no progress on stderr")
    add(
        "--verbose",
        action="store_true",
        help="say what is about to run, so that a kernel that hangs is the last one named",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--variants",
        nargs="*",
        metavar="PATTERN",
        help="time every kernel of the table that takes the case (and whose name "
        "contains a PATTERN)",
    )
    mode.add_argument("--host", action="store_true", help="host cost of an eager 16x16 call")
    add("--list", action="store_true", help="print the cases and stop")  # fmt: skip


def execute(args) -> Outcome:
    try:
        cases = [own_shape(text) for text in args.shape] or select(args.cases, args.quick)
    except ValueError as error:
        raise CannotRun(str(error)) from error
    if args.list:
        lines = [f"{case.family:9} {case.name}" for case in cases]
        return Outcome(data={"cases": [case.name for case in cases]}, text="\n".join(lines))
    require_gpu()
    if args.host:
        from . import host_cost

        return host_cost.execute(args)
    if args.variants is not None:
        from . import gemm_variants

        return gemm_variants.execute(args, cases)
    return compare(args, cases)


def require_gpu() -> None:
    """Raise CannotRun, saying what is missing, unless the extension and a CUDA device are there."""
    try:
        import torch
    except ImportError as error:
        raise CannotRun(f"benchmarks need torch, which cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise CannotRun(
            "benchmarks need a CUDA device and torch sees none. Without one, `deepasm info` shows "
            "what is installed, and the test suite checks the operators on the CPU."
        )
    from deepasm_torch import _library

    try:
        _library.require()
    except ImportError as error:
        raise CannotRun(str(error)) from error


def settings_of(args, budget_s: float = 6.0) -> Settings:
    regime = args.regime or ("steady" if args.quick else "both")
    regimes = REGIMES if regime == "both" else (regime,)
    if args.quick:
        return Settings(min(budget_s, 2.0), regimes, warm_s=(0.2, 0.7), min_rounds=5)
    return Settings(budget_s, regimes)


class Clock:
    """Shares what is left of the whole budget among the cases that are left."""

    def __init__(self, budget_s: float, cases: int, now: Callable[[], float] = time.monotonic):
        self._now, self._start = now, now()
        self._budget, self._left = budget_s, cases
        self._prepare, self._done = PREPARE_S, 0

    def next(self) -> float | None:
        """Seconds the next case may measure for; None when even a short one no longer fits."""
        rest = self._budget - (self._now() - self._start)
        share = rest / max(1, self._left) - self._prepare
        if rest < self._prepare + 1.0:
            return None
        return max(1.0, min(8.0, share))

    def spent(self, preparing_s: float) -> None:
        self._left -= 1
        self._done += 1
        # A running mean, so that one slow compilation does not starve the rest.
        self._prepare += (preparing_s - self._prepare) / (self._done + 1)


def compare(args, cases: Sequence[Case]) -> Outcome:
    import torch

    from .device import CudaDevice, DeviceLost

    device = CudaDevice(args.device)
    result = report.header(
        SUITE, device.name, device.monitor.driver(), torch.__version__, args.commit
    )
    path, note = _destination(args, device.name)
    kept = _previous_rows(path, cases) if args.update and path else []
    findings: list[str] = []
    left_out: list[str] = []
    clock = Clock(args.budget or (90.0 if args.quick else 480.0), len(cases))
    with Progress(len(cases), quiet=args.quiet, verbose=args.verbose) as bar:
        for case in cases:
            share = clock.next()
            if share is None:
                left_out.append(case.name)
                continue
            began = time.monotonic()
            try:
                rows, faults = run_case(
                    case,
                    device,
                    settings_of(args, share),
                    args.peers,
                    compile_mode=args.compile_mode,
                    note=bar.note,
                )
            except DeviceLost as error:
                findings.append(f"{case.name}: the CUDA context died ({error}); stopped here")
                break
            except torch.OutOfMemoryError as error:
                rows, faults = [], [f"out of device memory: {error}"]
            findings += [f"{case.name}: {fault}" for fault in faults]
            clock.spent(max(0.0, time.monotonic() - began - share))
            result["rows"] += rows
            if path:
                report.write_json(path, {**result, "rows": kept + result["rows"]})
            bar.step(f"{case.name}: {_brief(rows)}")
    if args.check:
        findings += missed_targets(result["rows"])
    text = render(result)
    png = args.png or (path and path.with_suffix(".png"))
    if png and result["rows"]:
        note = "\n".join(filter(None, (note, _chart(png, result))))
    if path:
        text += f"\nwritten: {path}"
    if note:
        text += f"\n{note}"
    text += _absent_peers(result["rows"])
    if left_out:
        text += f"\nleft out, the budget was spent: {', '.join(left_out)}"
    return Outcome(data=result, text=text, errors=findings)


def _absent_peers(rows: Sequence[dict]) -> str:
    """Why a peer has no figure, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, reason in row["metrics"].get("failed", {}).items():
            if name != "deepasm":
                reasons.setdefault((name, reason), []).append(row["case"])
    return "".join(
        f"\nno figure for {name} in {len(set(cases))} case(s), first {cases[0]}: {reason}"
        for (name, reason), cases in reasons.items()
    )


def _brief(rows: Sequence[dict]) -> str:
    parts = []
    for row in rows:
        ratio = row["metrics"]["ratio"].get("cublas")
        if ratio is not None:
            parts.append(f"{ratio:.3f}x cublas ({row['mode']})")
    return ", ".join(parts) or "no figure"


def _destination(args, device_name: str) -> tuple[Path | None, str]:
    if args.out:
        return args.out, ""
    if args.quick or args.cases or args.shape:
        return None, "not written: a partial run needs --out"
    return report.default_path(SUITE, device_name), ""


def _previous_rows(path: Path, cases: Sequence[Case]) -> list[dict]:
    if not path.is_file():
        return []
    again = {case.name for case in cases}
    return [row for row in json.loads(path.read_text())["rows"] if row["case"] not in again]


def _chart(path: Path, result: Mapping) -> str | None:
    rows = [row for row in result["rows"] if row["mode"] == "steady"] or result["rows"]
    peers = list(dict.fromkeys(p for row in rows for p in row["peers_ms"]))
    series = {f"vs {p}": [row["metrics"]["ratio"].get(p) for row in rows] for p in peers}
    title = f"deepasm gemm on {result['device']} (torch {result['torch']})"
    return report.chart(path, title, [row["case"] for row in rows], series)
