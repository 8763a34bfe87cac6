"""``deepasm bench gemm --host``: what one eager call costs the CPU, beside torch.mm.

A 16x16 product takes the GPU less time than the host needs to ask for it, so a loop of calls runs
at the host's pace. Blocks of calls alternate in random order; the median block counts.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping

from deepasm_torch.cli import Outcome

from . import report

SUITE = "gemm_host"
OURS, PEER, TWIN = "deepasm.gemm", "torch.mm", "torch.mm#2"
SIZE = 16


def measure(
    calls: Mapping[str, Callable[[], object]],
    synchronize: Callable[[], object],
    rounds: int = 100,
    block: int = 200,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median microseconds per call.

    Parameters
    ----------
    calls : mapping of str to callable
    synchronize : callable
        Empties the device's queue between blocks, outside the timed part: a full queue would make
        the host wait and be counted.
    rounds, block : int
        Blocks per contestant, and calls per block (well below the depth of the launch queue).
    clock : callable
        Seconds; replaceable for tests.
    """
    rng = random.Random(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for call in calls.values():
        for _ in range(block):
            call()
    synchronize()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            rng.shuffle(order)
            for name in order:
                call = calls[name]
                start = clock()
                for _ in range(block):
                    call()
                samples[name].append((clock() - start) / block * 1e6)
                synchronize()
    finally:
        if collecting:
            gc.enable()
    return {name: statistics.median(values) for name, values in samples.items()}


def contestants(device: str) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """(calls that return a result, calls that write ``out``), on fresh 16x16 bf16 tensors."""
    import torch

    from deepasm_torch import functional

    a, b, out = (torch.randn(SIZE, SIZE, device=device).bfloat16() for _ in range(3))
    ops, mm, matmul = torch.ops.deepasm, torch.mm, torch.matmul
    gemm, gemm_out, ours_mm = ops.gemm, ops.gemm.out, functional.mm
    plain = {
        PEER: lambda: mm(a, b),
        TWIN: lambda: mm(a, b),
        "torch.matmul": lambda: matmul(a, b),
        OURS: lambda: gemm(a, b),
        "deepasm_torch.functional.mm": lambda: ours_mm(a, b),
    }
    written = {
        "torch.mm(out=)": lambda: mm(a, b, out=out),
        "deepasm.gemm.out": lambda: gemm_out(a, b, out=out),
    }
    return plain, written


def training_contestants(device: str) -> dict[str, Callable]:
    """The same with operands that require grad: the forward call and its graph node."""
    import torch

    a, b = (torch.randn(SIZE, SIZE, device=device).bfloat16().requires_grad_() for _ in range(2))
    gemm, mm = torch.ops.deepasm.gemm, torch.mm
    return {PEER: lambda: mm(a, b), TWIN: lambda: mm(a, b), OURS: lambda: gemm(a, b)}


def run(device: str, synchronize: Callable, rounds: int = 100, block: int = 200) -> list[dict]:
    """Rows of the result, one per mode."""
    import torch

    plain, written = contestants(device)
    modes = (
        ("no_grad", torch.no_grad, {**plain, **written}),
        ("inference_mode", torch.inference_mode, plain),
        ("grad mode, no operand requires grad", contextlib.nullcontext, plain),
        ("grad mode, operands require grad", contextlib.nullcontext, training_contestants(device)),
    )
    rows = []
    for mode, context, calls in modes:
        with context():
            times = measure(calls, synchronize, rounds, block)
        ours = times.pop(OURS)
        rows.append(
            {
                "case": f"{SIZE}x{SIZE}x{SIZE} bf16, {mode}",
                "pass": "host",
                "mode": mode,
                "ours_ms": report.significant(ours / 1e3, 4),
                "peers_ms": {n: report.significant(us / 1e3, 4) for n, us in times.items()},
                "rel_err": None,
                "peer_rel_err": None,
                "variant": None,
                "metrics": {
                    "us": {OURS: round(ours, 2), **{n: round(us, 2) for n, us in times.items()}},
                    "ratio": round(ours / times[PEER], 3),
                    "noise": round(abs(times[TWIN] / times[PEER] - 1), 3),
                },
            }
        )
    return rows


def render(rows: list[dict]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]["us"]))
    columns = ["host us per call", *(row["mode"] for row in rows)]
    lines = [
        [name, *(report.cell(row["metrics"]["us"].get(name), ".2f") for row in rows)]
        for name in names
    ]
    lines.append(["ours / torch.mm", *(f"{row['metrics']['ratio']:.3f}" for row in rows)])
    return report.table(columns, lines)


def execute(args) -> Outcome:
    import torch

    from .nvml import open_monitor

    torch.cuda.set_device(args.device)
    props = torch.cuda.get_device_properties(args.device)
    driver = open_monitor(str(props.uuid)).driver()
    result = report.header(SUITE, props.name, driver, torch.__version__, args.commit)
    rounds = 30 if args.quick else 100
    result["rows"] = run(f"cuda:{args.device}", torch.cuda.synchronize, rounds)
    findings = []
    first = result["rows"][0]["metrics"]
    # A tie within the noise passes: two copies of torch.mm differ as much.
    if args.check and first["ratio"] > 1 + first["noise"]:
        findings.append(f"under no_grad a call costs {first['ratio']}x torch.mm's, meant is 1.0x")
    text = render(result["rows"])
    if args.out:
        report.write_json(args.out, result)
        text += f"\nwritten: {args.out}"
    return Outcome(data=result, text=text, errors=findings)
