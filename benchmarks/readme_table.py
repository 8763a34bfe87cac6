"""The generated blocks of README.md and docs/: figures from the committed results, native table.

    python benchmarks/readme_table.py            rewrite the pages
    python benchmarks/readme_table.py --check    exit 1 when a page is stale

A block lies between two HTML comments.  README.md shows the cases that `deepasm bench gemm --quick`
would run (fixed in `deepasm_torch/bench/gemm_cases.py`, not picked by outcome) and the geometric
mean of every family; docs/benchmarks.md shows every case; docs/gemm.md shows the native table of
`deepasm_torch/native.py`.  Without a result file the figures' blocks say how to make one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if importlib.util.find_spec("deepasm_torch") is None:  # a source tree that is not installed
    sys.path.insert(0, str(ROOT))
RESULTS = "benchmarks/results/{device}/gemm.json"
PLACEHOLDER = (
    "No figures are committed yet. `make bench` measures them on the GPU at hand and writes\n"
    "`benchmarks/results/<device>/gemm.json`; `python benchmarks/readme_table.py` then fills this "
    "block."
)


def quick_cases() -> set[str]:
    """Names of the cases that README.md shows."""
    from deepasm_torch.bench.gemm_cases import CASES

    return {case.name for case in CASES if case.quick}


def by_case(result: Mapping) -> dict[str, dict[str, dict]]:
    """{case: {mode: row}} in the order of the file; a row without a mode counts as steady."""
    cases: dict[str, dict[str, dict]] = {}
    for row in result["rows"]:
        cases.setdefault(row["case"], {})[row.get("mode", "steady")] = row
    return cases


def ratio(row: Mapping | None, peer: str) -> float | None:
    """How many times faster than `peer` a row is, None without both figures."""
    if row is None or not row["ours_ms"] or not row["peers_ms"].get(peer):
        return None
    return row["peers_ms"][peer] / row["ours_ms"]


def mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the figures that are there."""
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None


def cell(value: float | None, style: str = ".3f") -> str:
    return "-" if value is None else format(value, style)


def kernel(name: str | None) -> str:
    """ "gemm_sm90_bf16_nt_128x256x64_coop" -> "sm90 128x256x64_coop"."""
    parts = (name or "").split("_")
    return f"{parts[1]} {'_'.join(parts[4:])}" if len(parts) > 4 else name or "-"


def rows_of(result: Mapping, wanted: set[str] | None = None) -> list[str]:
    """A Markdown table; `wanted` limits the cases."""
    lines = [
        "| case | kernel | TFLOP/s | x cuBLAS | burst x cuBLAS | x Triton | error | cuBLAS error |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, modes in by_case(result).items():
        if wanted is not None and name not in wanted:
            continue
        steady, burst = modes.get("steady"), modes.get("burst")
        row = steady or burst
        cells = [
            name,
            kernel(row["variant"]),
            cell(row.get("metrics", {}).get("tflops"), ".0f"),
            cell(ratio(steady, "cublas")),
            cell(ratio(burst, "cublas")),
            cell(ratio(steady, "triton")),
            cell(row["rel_err"], ".1e"),
            cell(row["peer_rel_err"], ".1e"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def origin(result: Mapping) -> str:
    return (
        f"{result['device']}, driver {result['driver']}, torch {result['torch']}, commit "
        f"{result['commit']}, {result['date'][:10]}. Steady state unless it says burst; above 1 "
        "deepasm is faster."
    )


def families(result: Mapping) -> str:
    """Geometric means per family, and the slowest case, steady state beside cuBLAS."""
    groups: dict[str, list[float]] = {}
    slowest: tuple[float, str] | None = None
    for name, modes in by_case(result).items():
        value = ratio(modes.get("steady"), "cublas")
        if value is None:
            continue
        groups.setdefault(modes["steady"].get("family", "all"), []).append(value)
        slowest = min(slowest or (value, name), (value, name))
    if slowest is None:
        return "No case has a steady figure beside cuBLAS."
    total = [value for values in groups.values() for value in values]
    parts = [f"{name} {mean(values):.3f} ({len(values)})" for name, values in groups.items()]
    return (
        f"Geometric mean against cuBLAS over all {len(total)} cases: {mean(total):.3f}; by family "
        f"(cases): {', '.join(parts)}. Slowest: {slowest[1]} at {slowest[0]:.3f}."
    )


def readme_block(result: Mapping | None) -> str:
    return _figures(result, quick_cases())


def all_block(result: Mapping | None) -> str:
    return _figures(result, None)


def _figures(result: Mapping | None, wanted: set[str] | None) -> str:
    if result is None:
        return PLACEHOLDER
    return "\n".join([origin(result), "", *rows_of(result, wanted), "", families(result)])


def native_block(result: Mapping | None) -> str:
    from deepasm_torch import native

    return native.table()


#: (page, name of its block, what fills it)
PAGES: tuple[tuple[str, str, Callable[[Mapping | None], str]], ...] = (
    ("README.md", "gemm-table", readme_block),
    ("docs/benchmarks.md", "gemm-all", all_block),
    ("docs/gemm.md", "native-table", native_block),
)


def replace(page: str, name: str, content: str) -> str:
    """The page with another content in block `name`.

    Raises
    ------
    ValueError
        When the page does not have exactly one such block.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"expected one block {begin} ... {end}")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def load(path: Path) -> dict | None:
    """The results, None when nobody has measured yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="h200", help="folder below benchmarks/results")
    parser.add_argument("--json", type=Path, help="result file, instead of the committed one")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds the pages")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    args = parser.parse_args(argv)
    result = load(args.json or args.root / RESULTS.format(device=args.device))
    stale = []
    for path, name, fill in PAGES:
        page = args.root / path
        text = page.read_text(encoding="utf-8")
        wanted = replace(text, name, fill(result))
        if text == wanted:
            continue
        stale.append(path)
        if not args.check:
            page.write_text(wanted, encoding="utf-8")
    verb = "is stale, run benchmarks/readme_table.py" if args.check else "rewritten"
    for path in stale:
        print(f"{path} {verb}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
