"""One GEMM case measured: build it, check every contestant, race them, and write the rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

from . import report
from .gemm_cases import CASES, Case
from .timing import TWIN, Race, Settings, race

PEERS = ("cublas", "cublas_fused", "triton", "compile", "quack")


def run_case(
    case: Case,
    device,
    settings: Settings,
    peers: Sequence[str],
    torch_device: str = "cuda",
    rotate_bytes: int | None = None,
    compile_mode: str = "default",
    note: Callable[[str], object] = lambda text: None,
) -> tuple[list[dict], list[str]]:
    """Build, check and race one case.

    Returns
    -------
    (list of dict, list of str)
        One row per regime, and what was wrong: errors too large, fallbacks, failures of ours.
    """
    import torch

    from . import gemm_contest as contest

    with torch.no_grad():
        kwargs = {"rotate_bytes": rotate_bytes} if rotate_bytes else {}
        buffers = contest.Buffers(case, torch_device, **kwargs)
        device.hold = buffers.sets
        reference = contest.Reference(buffers)
        available: dict[str, Callable] = {
            "deepasm": contest.ours,
            "cublas": contest.cublas,
            "cublas_fused": contest.cublaslt_fused,
            "triton": contest.triton,
            "compile": lambda buffers: contest.compiled(buffers, compile_mode),
            "quack": contest.quack,
        }
        calls, errors, failed = {}, {}, {}
        counted: dict = {}
        for name in ("deepasm", *peers):
            note(f"{case.name}: {name}")
            try:
                call = available[name](buffers)
                if call is None:
                    continue
                buffers.poison()
                before = counters()
                errors[name] = reference.error(call(0))
                if name == "deepasm":
                    counted = difference(before, counters())
                elif name == "triton":
                    counted["triton"] = contest.triton_choice()
                calls[name] = call
            except Exception as error:
                failed[name] = _first_line(error)
                device.synchronize()  # raises DeviceLost when nothing works any more
        outcome = race(calls, device, settings, twins=[n for n in ("cublas",) if n in calls])
    failed.update(outcome.failed)
    faults = _faults(case, errors, failed, counted, contest.ULP[case.out_dtype])
    rows = [
        _row(case, regime, outcome, errors, failed, counted, buffers.sets)
        for regime in outcome.regimes
    ]
    return rows, faults


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def counters() -> dict:
    """deepasm's own gemm counters; empty where there is no compiled module."""
    from deepasm_torch import _library

    if _library.C is None:
        return {}
    return json.loads(_library.C.counters()).get("gemm", {})


def difference(before: Mapping, after: Mapping) -> dict:
    """What one call did: launches, fallbacks, and the kernels that ran."""
    old = before.get("kernels", {})
    return {
        "launches": after.get("launches", 0) - before.get("launches", 0),
        "fallbacks": after.get("fallbacks", 0) - before.get("fallbacks", 0),
        "kernels": [
            name for name, count in after.get("kernels", {}).items() if count > old.get(name, 0)
        ],
        "reason": after.get("last_fallback"),
    }


def _faults(case, errors, failed, counted, ulp: float) -> list[str]:
    faults = []
    if "deepasm" in failed:
        faults.append(f"deepasm failed: {failed['deepasm']}")
    mine, peer = errors.get("deepasm"), errors.get("cublas")
    if mine is not None:
        limit = 2 * (peer if peer is not None and math.isfinite(peer) else 0.0) + ulp
        if not mine <= limit:
            faults.append(f"relative error {mine:.2e}, allowed {limit:.2e} (torch has {peer})")
    triton = errors.get("triton")
    if triton is not None and not triton <= 2 * (errors.get("cublas") or 0.0) + ulp:
        faults.append(f"the Triton baseline is wrong: relative error {triton:.2e}")
    if counted.get("fallbacks"):
        faults.append(f"fell back to torch: {counted.get('reason')}")
    return faults


def _row(case: Case, regime: str, outcome: Race, errors, failed, counted, sets: int) -> dict:
    timings = outcome.regimes[regime]
    mine = timings.get("deepasm")
    peers = {n: t.ms for n, t in timings.items() if n != "deepasm" and not n.endswith(TWIN)}
    sig = report.significant
    metrics: dict = {
        "ratio": {n: sig(ms / mine.ms) for n, ms in peers.items()} if mine else {},
        "tflops": sig(case.flops / mine.ms / 1e9) if mine else None,
        "noise": sig(outcome.noise.get(regime), 2),
        "spread": sig((mine.high - mine.low) / mine.ms, 2) if mine else None,
        "rounds": max((t.rounds for t in timings.values()), default=0),
        "buffer_sets": sets,
        "peer_errors": {n: _finite(e) for n, e in errors.items() if n not in ("deepasm", "cublas")},
    }
    if counted.get("triton"):
        metrics["triton"] = counted["triton"]
    loops = [name for name, timing in timings.items() if not timing.captured]
    if loops:
        metrics["not_captured"] = loops
    if failed:
        metrics["failed"] = failed
    kernels = counted.get("kernels") or []
    return {
        "case": case.name,
        "pass": "fwd",
        "family": case.family,
        "mode": regime,
        "batch": max(1, case.batch),
        "ours_ms": sig(mine.ms, 5) if mine else None,
        "peers_ms": {name: sig(ms, 5) for name, ms in peers.items()},
        "rel_err": _finite(errors.get("deepasm")),
        "peer_rel_err": _finite(errors.get("cublas")),
        "variant": " + ".join(kernels) or ("torch" if counted.get("fallbacks") else None),
        "gbs": sig(case.bytes / mine.ms / 1e6) if mine else None,
        "clock_mhz": outcome.clock_mhz.get(regime),
        "power_w": outcome.power_w.get(regime),
        "launches": counted.get("launches"),
        "fallbacks": counted.get("fallbacks"),
        "metrics": metrics,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN; a wrong result has no error figure but a finding."""
    return report.significant(value, 3) if value is not None and math.isfinite(value) else None


def missed_targets(rows: Sequence[dict]) -> list[str]:
    """Cases that are slower than ``gemm_cases`` says they must be, steady regime."""
    wanted = {case.name: case.targets for case in CASES}
    missed = []
    for row in rows:
        if row["mode"] != "steady":
            continue
        times = {"deepasm": row["ours_ms"], **row["peers_ms"]}
        for who, peer, least in wanted.get(row["case"], ()):
            if times.get(who) is None or times.get(peer) is None:
                missed.append(f"{row['case']}: no figure for {who} against {peer}")
            elif times[peer] / times[who] < least:
                ratio = times[peer] / times[who]
                missed.append(f"{row['case']}: {who} is {ratio:.3f}x {peer}, meant is {least}x")
    return missed
