"""The GEMM suite's table: one line per case, and the geometric means below it."""

from __future__ import annotations

from collections.abc import Mapping

from . import report
from .timing import REGIMES


def render(result: Mapping) -> str:
    """The table: one line per case, steady figures first, burst ratios after."""
    cell = report.cell
    by_case: dict[str, dict[str, dict]] = {}
    for row in result["rows"]:
        by_case.setdefault(row["case"], {})[row["mode"]] = row
    regimes = [r for r in REGIMES if any(r in rows for rows in by_case.values())]
    peers = list(dict.fromkeys(p for row in result["rows"] for p in row["peers_ms"]))
    columns = ["case", "kernel", "us", "TF/s", "GB/s"]
    columns += [f"{'burst ' if r == 'burst' else ''}x{p}" for r in regimes for p in peers]
    columns += ["noise", "err", "torch err", "fb"]
    lines = []
    for name, rows in by_case.items():
        first = rows[next(r for r in regimes if r in rows)]
        metrics = first["metrics"]
        line = [
            name,
            short_variant(first["variant"]),
            cell(first["ours_ms"] and first["ours_ms"] * 1e3, ".2f"),
            cell(metrics["tflops"], ".0f"),
            cell(first["gbs"], ".0f"),
        ]
        for regime in regimes:
            ratios = rows[regime]["metrics"]["ratio"] if regime in rows else {}
            line += [cell(ratios.get(peer), ".3f") for peer in peers]
        line += [
            cell(metrics["noise"] and metrics["noise"] * 100, ".1f") + "%",
            cell(first["rel_err"], ".1e"),
            cell(first["peer_rel_err"], ".1e"),
            cell(first["fallbacks"]),
        ]
        lines.append(line)
    head = (
        f"{result['device']}, driver {result['driver']}, torch {result['torch']}, "
        f"commit {result['commit']}; xPEER: speed relative to that peer, more is better"
    )
    return "\n".join([head, report.table(columns, lines), *_means(result["rows"], regimes, peers)])


def short_variant(name: str | None) -> str:
    """ "gemm_sm90_bf16_nt_128x256x64_coop" -> "sm90 128x256x64_coop"."""
    parts = (name or "-").split("_")
    return f"{parts[1]} {'_'.join(parts[4:])}" if len(parts) > 4 else name or "-"


def _means(rows, regimes, peers) -> list[str]:
    lines = []
    families = list(dict.fromkeys(row["family"] for row in rows))
    for regime in regimes:
        for peer in peers:
            parts = []
            for family in [None, *families]:
                values = [
                    row["metrics"]["ratio"].get(peer)
                    for row in rows
                    if row["mode"] == regime and family in (None, row["family"])
                ]
                mean = report.geomean(values)
                if mean is not None and (family is None or len(families) > 1):
                    parts.append(f"{family or 'all'} {mean:.3f}")
            if parts:
                lines.append(f"geometric mean, {regime}, x{peer}: " + ", ".join(parts))
    return lines
