"""``deepasm info``: what is installed, what was found, and what is broken.

Every probe stands alone: one that fails reports its own error and the rest still run. Nothing but
the standard library is imported before a probe needs it, so this works without torch, without a
GPU, and with an extension that does not load.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ._version import __version__
from .cli import Outcome

PACKAGE = Path(__file__).resolve().parent
OTHER_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TRITON_INTERPRET", "TORCH_LOGS")


def configure(parser) -> None:
    """No arguments of its own."""


def execute(args) -> Outcome:
    data, errors = collect()
    return Outcome(data=data, text=render(data, errors), errors=errors)


def collect() -> tuple[dict, list[str]]:
    """Run every probe.

    Returns
    -------
    (dict, list of str)
        Sections by name, and the findings: what is broken and what to do about it. A missing GPU
        is not a finding (everything but the kernels works without one).
    """
    findings: list[str] = []
    sections: dict[str, object] = {}
    probes: tuple[tuple[str, Callable[[list[str]], object]], ...] = (
        ("deepasm", _deepasm),
        ("python", _python),
        ("torch", _torch),
        ("extension", _extension),
        ("kernels", _kernels),
        ("devices", _devices),
        ("ptxas", _ptxas),
        ("triton", _triton),
        ("options", _options),
        ("environment", _environment),
        ("counters", _counters),
    )
    for name, probe in probes:
        try:
            sections[name] = probe(findings)
        except Exception as error:  # a probe must never take the others down
            text = f"{type(error).__name__}: {error}"
            sections[name] = {"error": text}
            findings.append(f"{name}: the probe failed: {text}")
    return sections, findings


def _module(name: str):
    """A module, or the exception its import raised."""
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return error


def _compiled():
    """The extension, or None (its section says why)."""
    module = _module("deepasm_torch._C")
    return None if isinstance(module, BaseException) else module


def _deepasm(findings: list[str]) -> dict:
    tree = (PACKAGE.parent / "setup.py").is_file() and (PACKAGE.parent / "csrc").is_dir()
    return {"version": __version__, "path": str(PACKAGE), "source_tree": tree}


def _python(findings: list[str]) -> dict:
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
    }


def _torch(findings: list[str]) -> dict:
    torch = _module("torch")
    if isinstance(torch, BaseException):
        findings.append(
            f"torch cannot be imported ({type(torch).__name__}: {torch}); install torch >= 2.10"
        )
        return {"error": f"{type(torch).__name__}: {torch}"}
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_available": bool(torch.cuda.is_available()),
        "path": str(Path(torch.__file__).parent),
    }


def _extension(findings: list[str]) -> dict:
    files = sorted(path.name for path in PACKAGE.glob("_C*.so"))
    module = _module("deepasm_torch._C")
    if not isinstance(module, BaseException):
        path = Path(module.__file__)
        return {"loaded": True, "path": str(path), "megabytes": round(path.stat().st_size / 1e6, 2)}
    # The package keeps a longer explanation of the same failure, with what to do.
    kept = getattr(_module("deepasm_torch._library"), "load_error", None)
    text = str(kept) if kept else f"{type(module).__name__}: {module}"
    findings.append(f"extension: {text}")
    return {"loaded": False, "files": files, "error": f"{type(module).__name__}: {module}"}


def _kernels(findings: list[str]) -> dict | None:
    compiled = _compiled()
    if compiled is None:
        return None
    rows = json.loads(compiled.kernels())
    if not rows:
        findings.append("kernels: the extension embeds none; build it where ptxas is found")
    images = [image for row in rows for image in row.get("images", ())]
    return {
        "count": len(rows),
        "assembled_by": f"ptxas {json.loads(compiled.build_info())['ptxas']}",
        "by_op": dict(Counter(row["op"] for row in rows)),
        "by_tier": {f"sm{k}": v for k, v in sorted(Counter(row["tier"] for row in rows).items())},
        "images": dict(
            sorted(Counter(f"{image['kind']} {image['arch']}" for image in images).items())
        ),
        "packed_megabytes": round(sum(i.get("packed_bytes", 0) for i in images) / 1e6, 2),
    }


def _devices(findings: list[str]) -> dict:
    smi = _nvidia_smi()
    found: dict[str, object] = {"driver": smi.get("driver"), "list": []}
    if smi.get("error"):
        found["nvidia_smi"] = smi["error"]
    torch, compiled = _module("torch"), _compiled()
    if isinstance(torch, BaseException) or not torch.cuda.is_available():
        found["list"] = [{"name": name} for name in smi.get("names", ())]
        if found["list"]:
            findings.append(
                "devices: nvidia-smi shows a GPU that torch does not see; install a torch built "
                "for CUDA (and for this driver)"
            )
        return found
    for index in range(torch.cuda.device_count()):
        props = torch.cuda.get_device_properties(index)
        record: dict[str, object] = {
            "index": index,
            "name": props.name,
            "capability": f"{props.major}.{props.minor}",
            "sms": props.multi_processor_count,
            "memory_gib": round(props.total_memory / 2**30, 1),
        }
        if compiled is not None:
            # Loading is what goes wrong on a new driver, so do it now, every kernel.
            try:
                compiled.warmup(index)
            except Exception as error:
                findings.append(f"device {index}: no kernel loads: {error}")
            ours = json.loads(compiled.device_record(index))
            if "error" in ours:
                record["error"] = ours["error"]
                findings.append(f"device {index}: {ours['error']}")
            record["tier"] = ours.get("tier")
            loaded = ours.get("kernels", ())
            record["loaded"] = dict(Counter(k["loaded_from"] for k in loaded if "loaded_from" in k))
            failures = [f"{k['name']}: {k['error']}" for k in loaded if "error" in k]
            if failures:
                record["not_loaded"] = failures
                findings.append(f"device {index}: {len(failures)} kernels do not load")
        found["list"].append(record)
    return found


def _nvidia_smi() -> dict:
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"nvidia-smi does not run: {error}"}
    if run.returncode:
        return {"error": (run.stdout + run.stderr).strip().splitlines()[:1]}
    rows = [line.split(", ", 1) for line in run.stdout.strip().splitlines() if ", " in line]
    return {"driver": rows[0][0] if rows else None, "names": [row[1] for row in rows]}


def _ptxas(findings: list[str]) -> dict:
    """The places the build looks in, and which one it would take."""
    source = PACKAGE / "codegen" / "ptxas.py"
    # By path: importing the package around it needs Jinja2, which a user need not have.
    spec = importlib.util.spec_from_file_location("_deepasm_ptxas", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        places = module.candidates()
    finally:
        del sys.modules[spec.name]
    listed = [
        {"place": place, "path": str(path) if path else None, "version": _ptxas_version(path)}
        for place, path in places
    ]
    named = listed[0]
    if named["path"] and not named["version"]:
        findings.append(f"ptxas: {named['place']} names {named['path']}, which is no working ptxas")
    return {
        "used": next((row for row in listed if row["path"]), None),
        "found": [row for row in listed if row["path"]],
        "looked_in": [row["place"] for row in listed],
    }


def _ptxas_version(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        run = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bV(\d+\.\d+\.\d+)", run.stdout)
    return found.group(1) if found else None


def _triton(findings: list[str]) -> dict:
    # Found, not imported: importing it takes a second and is not needed to say what is there.
    if importlib.util.find_spec("triton") is None:
        return {"version": None}
    from importlib import metadata

    try:
        return {"version": metadata.version("triton")}
    except metadata.PackageNotFoundError:
        return {"version": "unknown"}


def _options(findings: list[str]) -> dict | None:
    compiled = _compiled()
    if compiled is None:
        return None
    return {name: compiled.get_option(name) for name in ("disable", "tier", "max_sms")}


def _environment(findings: list[str]) -> dict:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("DEEPASM_") or name in OTHER_VARIABLES
    }


def _counters(findings: list[str]) -> dict | None:
    compiled = _compiled()
    return None if compiled is None else json.loads(compiled.counters())


def render(sections: dict, findings: list[str]) -> str:
    """The sections as text, one indented line per figure."""
    lines: list[str] = []
    for name, section in sections.items():
        if not section:
            lines.append(f"{name}: {'not available' if section is None else 'none set'}")
            continue
        if name == "kernels" and "assembled_by" in section:
            section = dict(section)
            count, by = section.pop("count"), section.pop("assembled_by")
            lines.append(f"kernels: {count}, assembled by {by}")
        else:
            lines.append(f"{name}:")
        lines += [f"  {line}" for line in _lines(section)]
    devices = sections.get("devices") or {}
    if not devices.get("list"):
        lines.append(
            "No GPU was found. The operators still run on CPU tensors through a reference, and "
            "everything that generates, checks or plans kernels works; benchmarks need a GPU."
        )
    if findings:
        lines.append(f"{len(findings)} finding(s), below.")
    return "\n".join(lines)


def _lines(value: object) -> list[str]:
    if isinstance(value, dict):
        lines = []
        for key, item in value.items():
            nested = isinstance(item, (dict, list)) and bool(item)
            if nested and any(isinstance(x, (dict, list)) for x in _children(item)):
                lines += [f"{key}:", *(f"  {line}" for line in _lines(item))]
            else:
                lines.append(f"{key}: {_scalar(item)}")
        return lines
    if isinstance(value, list):
        return [_scalar(item) for item in value]
    return [_scalar(value)]


def _children(value: dict | list) -> list:
    return list(value.values()) if isinstance(value, dict) else value


def _scalar(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_scalar(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(_scalar(item) for item in value) or "none"
    return str(value)
