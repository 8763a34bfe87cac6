"""Machine code as text: find nvdisasm and read what it prints."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

#: folders of the nvidia wheels that may hold nvdisasm, newest first
WHEELS = ("cu13", "cuda_nvdisasm", "cuda_nvcc")


@dataclass(frozen=True)
class SassInstruction:
    """One machine instruction; `opcode` with its suffixes, as in "LDG.E.128"."""

    offset: int
    guard: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.partition(".")[0]


def candidates() -> list[tuple[str, Path | None]]:
    """Where nvdisasm is looked for, in order: (name of the place, path or None)."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    wheels = [root / folder / "bin" / "nvdisasm" for folder in WHEELS for root in roots]
    on_path = shutil.which("nvdisasm")
    from ..codegen.ptxas import find_ptxas

    try:
        beside = find_ptxas().resolve().parent / "nvdisasm"
    except FileNotFoundError:
        beside = None
    return [
        ("nvdisasm wheel", next((p for p in wheels if p.is_file()), None)),
        ("PATH", Path(on_path) if on_path else None),
        ("beside ptxas", beside if beside is not None and beside.is_file() else None),
    ]


def find_nvdisasm() -> Path:
    """Path of the nvdisasm to use: the wheel's, PATH's, or the one in the folder of ptxas.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    for _, path in candidates():
        if path is not None:
            return path
    raise FileNotFoundError(
        "no nvdisasm found: install the wheel nvidia-cuda-nvdisasm (13.2 or later), or put a CUDA "
        "toolkit's bin folder on PATH"
    )


_SECTION = re.compile(r"^\.text\.([\w$.]+):")
_LINE = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")


def parse_sass(text: str) -> dict[str, list[SassInstruction]]:
    """Read the output of ``nvdisasm -c``: function name to its instructions."""
    out, here = {}, None
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            here = out.setdefault(section[1], [])
            continue
        found = _LINE.match(line)
        if found and here is not None:
            offset, guard, opcode, operands = found.groups()
            here.append(SassInstruction(int(offset, 16), guard or "", opcode, operands.strip()))
    return out


def disassemble(cubin: bytes, tool: Path | str | None = None) -> dict[str, list[SassInstruction]]:
    """Disassemble a cubin.

    Parameters
    ----------
    cubin : bytes
    tool : path, optional
        nvdisasm, by default the one that `find_nvdisasm` finds.

    Returns
    -------
    dict
        Function name to list of SassInstruction.

    Raises
    ------
    RuntimeError
        nvdisasm failed or printed no instruction, for example because it is older than the target.
    """
    tool = Path(tool) if tool else find_nvdisasm()
    with tempfile.TemporaryDirectory(prefix="deepasm-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        # without data flow: it only draws branch targets of the call stack, at twice the time
        run = subprocess.run([tool, "-c", "-ndf", path], capture_output=True, text=True)
    out = parse_sass(run.stdout)
    if run.returncode != 0 or not any(out.values()):
        said = (run.stderr or run.stdout).strip()[:500] or f"exit status {run.returncode}"
        raise RuntimeError(f"{tool} cannot disassemble the cubin: {said}")
    return out
