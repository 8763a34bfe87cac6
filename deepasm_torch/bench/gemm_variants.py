"""``deepasm bench gemm --variants``: every kernel of the table on every case, against cuBLAS.

This is how the planner's rules are found and checked: the matrix shows what each kernel would have
given, the best one, and what the planner's own choice ("plan") leaves on the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from deepasm_torch.cli import Outcome

from . import report
from .gemm_cases import Case
from .gemm_table import short_variant
from .progress import Progress
from .timing import Race, race

SUITE = "gemm_variants"
PLAN, PEER = "plan", "cublas"
MAJORS = ({"n": "k", "t": "m"}, {"n": "n", "t": "k"})  # torch's view -> the table's columns


def applicable(row: Mapping, case: Case) -> bool:
    """Whether a kernel's columns (types, majors) fit a case; alignment is left to the launch."""
    wanted = (MAJORS[0][case.layout[0]], MAJORS[1][case.layout[1]])
    if row["d_major"] == "m":  # computes the transposed product: reads b as its a
        wanted = ({"k": "k", "n": "m"}[wanted[1]], {"k": "k", "m": "n"}[wanted[0]])
    return (
        row["op"] == "gemm"
        and row["dtype"] == case.dtype
        and all(
            row[side] in ("*", major)
            for side, major in zip(("a_major", "b_major"), wanted, strict=True)
        )
    )


def execute(args, cases: Sequence[Case]) -> Outcome:
    import torch

    from deepasm_torch import _library

    from .device import CudaDevice, DeviceLost
    from .gemm import Clock, settings_of

    table = json.loads(_library.require().kernels())
    for number, row in enumerate(table):
        row.setdefault("variant", number)
    device = CudaDevice(args.device)
    result = report.header(
        SUITE, device.name, device.monitor.driver(), torch.__version__, args.commit
    )
    findings: list[str] = []
    left_out: list[str] = []
    clock = Clock(args.budget or (90.0 if args.quick else 480.0), len(cases))
    with Progress(len(cases), quiet=args.quiet, verbose=args.verbose) as bar:
        for case in cases:
            share = clock.next()
            if share is None:
                left_out.append(case.name)
                continue
            rows = [row for row in table if applicable(row, case)]
            if args.variants:
                rows = [row for row in rows if any(p in row["name"] for p in args.variants)]
            before = device.now()
            try:
                measured, faults = run_case(case, rows, device, settings_of(args, share), bar.note)
            except DeviceLost as error:
                findings.append(f"{case.name}: the CUDA context died ({error}); stopped here")
                break
            except torch.OutOfMemoryError as error:
                measured, faults = [], [f"out of device memory: {error}"]
            clock.spent(max(0.0, device.now() - before - share))
            findings += [f"{case.name}: {fault}" for fault in faults]
            result["rows"] += measured
            if args.out:
                report.write_json(args.out, result)
            bar.step(f"{case.name}: {_brief(measured)}")
    text = render(result)
    if args.out:
        text += f"\nwritten: {args.out}"
    if left_out:
        text += f"\nleft out, the budget was spent: {', '.join(left_out)}"
    return Outcome(data=result, text=text, errors=findings)


def run_case(case: Case, rows, device, settings, note=lambda text: None, torch_device="cuda",
             rotate_bytes=None):  # fmt: skip
    """Check and race the planner's choice, every given kernel, and cuBLAS twice."""
    import torch

    from . import gemm_contest as contest

    with torch.no_grad():
        kwargs = {"rotate_bytes": rotate_bytes} if rotate_bytes else {}
        buffers = contest.Buffers(case, torch_device, **kwargs)
        device.hold = buffers.sets
        reference = contest.Reference(buffers)
        makers = {PEER: lambda: contest.cublas(buffers), PLAN: lambda: contest.ours(buffers)}
        for row in rows:
            makers[row["name"]] = lambda row=row: contest.ours(buffers, row["variant"])
        calls, errors, refused, faults = {}, {}, {}, []
        for name, maker in makers.items():
            # Said before it runs: a kernel that hangs or kills the context is the last one named.
            note(f"{case.name}: {name}")
            buffers.poison()
            try:
                call = maker()
                errors[name] = reference.error(call(0))
            except RuntimeError as error:
                device.synchronize()
                refused[name] = str(error).splitlines()[0]
                continue
            limit = 2 * errors.get(PEER, 0.0) + contest.ULP[case.out_dtype]
            if errors[name] <= limit:
                calls[name] = call
            else:
                faults.append(f"{name}: relative error {errors[name]:.2e}, allowed {limit:.2e}")
        outcome = race(calls, device, settings, twins=[PEER])
    faults += [f"{name}: {why}" for name, why in outcome.failed.items()]
    measured = [_row(case, regime, outcome, errors, refused) for regime in outcome.regimes]
    return measured, faults


def _row(case: Case, regime: str, outcome: Race, errors: Mapping, refused: Mapping) -> dict:
    sig = report.significant
    times = {name: t.ms for name, t in outcome.regimes[regime].items() if "#" not in name}
    ours = {name: ms for name, ms in times.items() if name not in (PEER, PLAN)}
    best = min(ours, key=ours.__getitem__) if ours else None
    peer = times.get(PEER)
    return {
        "case": case.name,
        "pass": "fwd",
        "family": case.family,
        "mode": regime,
        "batch": max(1, case.batch),
        "ours_ms": sig(ours[best], 5) if best else None,
        "peers_ms": {PEER: sig(peer, 5)} if peer else {},
        "rel_err": sig(errors.get(best), 3),
        "peer_rel_err": sig(errors.get(PEER), 3),
        "variant": best,
        "clock_mhz": outcome.clock_mhz.get(regime),
        "power_w": outcome.power_w.get(regime),
        "metrics": {
            "ms": {name: sig(ms, 5) for name, ms in times.items()},
            "ratio": {n: sig(peer / ms) for n, ms in times.items() if n != PEER} if peer else {},
            "noise": sig(outcome.noise.get(regime), 2),
            "refused": dict(refused),
        },
    }


def render(result: Mapping) -> str:
    """Per regime: the matrix of speed relative to cuBLAS, and the one of microseconds.

    A column is a tile and schedule: the kernels for the other layouts and types share it.
    """
    everything = [name for row in result["rows"] for name in row["metrics"]["ratio"]]
    columns = list(dict.fromkeys(short_variant(name) for name in everything if name != PLAN))
    labels = [f"v{number}" for number in range(len(columns))]
    lines = [
        f"{result['device']}, driver {result['driver']}, commit {result['commit']}",
        *(f"  {label}: {name}" for label, name in zip(labels, columns, strict=True)),
    ]
    for regime in dict.fromkeys(row["mode"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["mode"] == regime]
        lines += ["", f"{regime}: speed relative to cuBLAS, more is better (noise of cuBLAS last)"]
        head = ["case", "cublas us", "best us", "best", PLAN, *labels, "noise"]
        lines.append(report.table(head, [_ratios(row, columns, labels) for row in rows]))
        lines += ["", f"{regime}: microseconds"]
        lines.append(
            report.table(
                ["case", PEER, PLAN, *labels], [_microseconds(row, columns) for row in rows]
            )
        )
        missed = report.geomean(
            row["metrics"]["ms"][PLAN] / row["ours_ms"]
            for row in rows
            if row["ours_ms"] and PLAN in row["metrics"]["ms"]
        )
        if missed:
            lines.append(f"the planner's choice takes {missed:.3f}x the best one's time (geomean)")
    return "\n".join(lines)


def _ratios(row: Mapping, columns: Sequence[str], labels: Sequence[str]) -> list[str]:
    ratio = {short_variant(name): value for name, value in row["metrics"]["ratio"].items()}
    best = short_variant(row["variant"])
    noise = row["metrics"]["noise"]
    return [
        row["case"],
        _us(row["metrics"]["ms"].get(PEER)),
        _us(row["ours_ms"]),
        labels[columns.index(best)] if best in columns else "-",
        *(report.cell(ratio.get(name), ".3f") for name in (PLAN, *columns)),
        report.cell(noise and noise * 100, ".1f") + "%",
    ]


def _microseconds(row: Mapping, columns: Sequence[str]) -> list[str]:
    ms = {short_variant(name): value for name, value in row["metrics"]["ms"].items()}
    return [row["case"], *(_us(ms.get(name)) for name in (PEER, PLAN, *columns))]


def _us(ms: float | None) -> str:
    return report.cell(ms and ms * 1e3, ".2f")


def _brief(rows: Sequence[Mapping]) -> str:
    parts = []
    for row in rows:
        ratio = row["metrics"]["ratio"].get(row["variant"])
        if ratio:
            parts.append(f"{ratio:.3f}x {short_variant(row['variant'])} ({row['mode']})")
    return ", ".join(parts) or "no kernel ran"
