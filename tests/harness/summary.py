"""One line per kernel at the end of a session: passed, failed, and how near the bound it came."""

from __future__ import annotations


def print_summary(terminal) -> None:
    """Collect the properties "kernel" and "worst" that tests left in their reports."""
    rows: dict[str, list] = {}
    for outcome in ("passed", "failed"):
        for report in terminal.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", ()))
            if "kernel" not in properties or report.when != "call":
                continue
            row = rows.setdefault(properties["kernel"], [0, 0, 0.0])
            row[outcome == "failed"] += 1
            row[2] = max(row[2], properties.get("worst", 0.0))
    if not rows:
        return
    from deepasm_torch.kernels import (
        gemm as table,
    )  # here, so that a broken package breaks only its tests

    terminal.section("GEMM kernels")
    for name, (passed, failed, worst) in rows.items():
        terminal.write_line(
            f"{name:<48} {passed:4d} passed {failed:4d} failed, error {worst:.2f} of its bound",
            red=bool(failed),
        )
    missing = [k.name for k in table.KERNELS if k.name not in rows]
    if missing:
        terminal.write_line(
            f"{len(missing)} of {len(table.KERNELS)} kernels of the table were not run here"
        )
