"""What every suite writes: one JSON file per device, an aligned table, geometric means, a chart."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

#: Every key a row may have, and its type; see docs for the meaning. Anything else is an error, so
#: that the files of all suites stay readable by the same tools. Figures without a column of their
#: own go under "metrics".
REQUIRED = {
    "case": str,
    "pass": str,
    "ours_ms": (int, float, type(None)),
    "peers_ms": dict,
    "rel_err": (int, float, type(None)),
    "peer_rel_err": (int, float, type(None)),
    "variant": (str, type(None)),
}
OPTIONAL = {
    "family": str,
    "mode": str,
    "batch": int,
    "gbs": (int, float, type(None)),
    "clock_mhz": (int, float, type(None)),
    "power_w": (int, float, type(None)),
    "joule": (int, float, type(None)),
    "ptxas": (str, type(None)),
    "launches": (int, type(None)),
    "fallbacks": (int, type(None)),
    "peak_mem_mb": (int, float, type(None)),
    "metrics": dict,
}
HEADER = ("suite", "device", "driver", "torch", "commit", "date", "rows")


def short_device_name(name: str) -> str:
    """A folder name: "NVIDIA H200" -> "h200", "NVIDIA A100-SXM4-80GB" -> "a100-sxm4-80gb"."""
    words = re.sub(r"\b(nvidia|tesla|geforce|quadro)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "unknown"


def validate(result: Mapping) -> list[str]:
    """What is wrong with a result by the schema; empty when nothing is."""
    problems = [f"missing {key!r}" for key in HEADER if key not in result]
    problems += [f"unknown {key!r}" for key in result if key not in HEADER]
    for number, row in enumerate(result.get("rows", ())):
        place = f"row {number} ({row.get('case')})"
        for key, kind in REQUIRED.items():
            if key not in row:
                problems.append(f"{place}: missing {key!r}")
            elif not isinstance(row[key], kind):
                problems.append(f"{place}: {key!r} is {type(row[key]).__name__}")
        for key, value in row.items():
            if key in REQUIRED:
                continue
            if key not in OPTIONAL:
                problems.append(f"{place}: unknown {key!r}")
            elif not isinstance(value, OPTIONAL[key]):
                problems.append(f"{place}: {key!r} is {type(value).__name__}")
    return problems


def header(
    suite: str, device: str, driver: str | None, torch_version: str, of_commit: str | None = None
) -> dict:
    """A result without rows; ``of_commit`` where the source tree cannot tell (a plain copy)."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "suite": suite,
        "device": device,
        "driver": driver or "unknown",
        "torch": torch_version,
        "commit": of_commit or commit(),
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "rows": [],
    }


def commit() -> str:
    """The source tree's commit ("-dirty" when it differs), or the package version without git."""
    here = Path(__file__).resolve().parent
    try:
        run = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        if run.returncode == 0 and run.stdout.strip():
            return run.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    from deepasm_torch._version import __version__

    return f"v{__version__}"


def default_path(suite: str, device: str) -> Path:
    """``benchmarks/results/<device>/<suite>.json`` of the source tree, or of this directory."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "benchmarks").is_dir():
        root = Path.cwd()
    return root / "benchmarks" / "results" / short_device_name(device) / f"{suite}.json"


def write_json(path: Path | str, data: object) -> None:
    """Write atomically, one row per line, so that diffs of committed results stay readable."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(dump(data), encoding="utf-8")
    scratch.replace(path)


def dump(data: object) -> str:
    if not isinstance(data, Mapping) or not data.get("rows"):
        return json.dumps(data, indent=1) + "\n"
    head = {key: value for key, value in data.items() if key != "rows"}
    rows = ",\n  ".join(json.dumps(row) for row in data["rows"])
    return json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n  ' + rows + "\n ]\n}\n"


def geomean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the positive values, None without any."""
    logs = [math.log(value) for value in values if value and value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def significant(value: float | None, digits: int = 4) -> float | None:
    """Round to some significant digits, which keeps the JSON short and honest."""
    if value is None or value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def cell(value: object, style: str = "") -> str:
    """Format one table cell: "-" for None, ``format(value, style)`` otherwise."""
    return "-" if value is None else format(value, style)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align text columns: the first to the left, numbers to the right, other text to the left."""
    numeric = [
        i > 0 and all(re.fullmatch(r"-|[-+]?[\d.]+(e[-+]?\d+)?[%x]?", row[i]) for row in rows)
        for i in range(len(columns))
    ]
    widths = [max([len(columns[i]), *(len(row[i]) for row in rows)]) for i in range(len(columns))]
    lines = []
    for row in [columns, ["-" * width for width in widths], *rows]:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def chart(path: Path | str, title: str, labels: Sequence[str], series: Mapping) -> str | None:
    """Bars of speed relative to a peer (1 = equal).

    Returns
    -------
    str or None
        Why nothing was drawn, None when the file was written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except Exception as error:  # missing, or broken by its own dependencies
        return f"no chart: matplotlib cannot be imported ({error})"
    height = 0.8 / max(1, len(series))
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.22 * len(labels) * max(1, len(series) / 2)))
    for number, (name, values) in enumerate(series.items()):
        places = [at + (number - (len(series) - 1) / 2) * height for at in range(len(labels))]
        axes.barh(places, [value or 0 for value in values], height, label=name)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.margins(y=0.01)
    shown = [value for values in series.values() for value in values if value]
    if shown and max(shown) > 4:  # one case at 20x would squeeze the others together
        axes.set_xscale("log", base=2)
        axes.set_xlim(0.8 * min(1.0, *shown), 1.1 * max(shown))
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("speed relative to the peer (1 = equal, larger is faster)")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7)
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return None
