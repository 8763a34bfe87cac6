"""Find ptxas, run it, and read its report.

ptxas tells about the faults that ruin a hand-written kernel (serialised wgmma, ignored setmaxnreg,
spills) in notes that leave its exit status at 0; `Assembler.assemble` turns them into errors.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


class AssemblyError(RuntimeError):
    """ptxas refused a kernel, or accepted it with notes that mean slow or wrong code."""


def _ptxas_of_package(package: str, *below: str) -> Path | None:
    """`ptxas` inside an installed package, without importing the package."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *below, "bin", "ptxas")
        if path.is_file():
            return path
    return None


def candidates() -> list[tuple[str, Path | None]]:
    """Where ptxas is looked for, in order: (name of the place, path or None)."""
    env = os.environ.get("DEEPASM_PTXAS")
    on_path = shutil.which("ptxas")
    return [
        ("DEEPASM_PTXAS", Path(env) if env else None),
        ("ptxas wheel", _ptxas_of_package("nvidia", "cuda_nvcc")),
        ("PATH", Path(on_path) if on_path else None),
        ("Triton", _ptxas_of_package("triton", "backends", "nvidia")),
    ]


def find_ptxas() -> Path:
    """Path of the ptxas to use.

    Raises
    ------
    FileNotFoundError
        If there is none, or `DEEPASM_PTXAS` names a file that does not exist.
    """
    for place, path in candidates():
        if path is None:
            continue
        if not path.is_file():
            raise FileNotFoundError(f"{place} names {path}, which is not a file")
        if not os.access(path, os.X_OK):
            raise FileNotFoundError(f"{place} names {path}, which is not executable")
        return path
    raise FileNotFoundError(
        "no ptxas found: install the wheel nvidia-cuda-nvcc-cu12, put a CUDA toolkit's bin folder "
        "on PATH, or set DEEPASM_PTXAS to the program"
    )


@dataclass(frozen=True)
class Report:
    """What ptxas said about one kernel."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    notes: tuple[str, ...]  # C75xx and other advisory lines


_NOTE = re.compile(r"\bC7\d{3}\b|[Pp]otential [Pp]erformance [Ll]oss|setmaxnreg ignored")


def parse_report(text: str) -> Report:
    """Read the output of `ptxas -v` for a file with one entry."""
    registers = re.search(r"Used (\d+) registers", text)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", text)
    stack = re.search(r"(\d+) bytes stack frame", text)
    return Report(
        registers=int(registers.group(1)) if registers else 0,
        spill_bytes=sum(map(int, spills)),
        stack_bytes=int(stack.group(1)) if stack else 0,
        notes=tuple(line.strip() for line in text.splitlines() if _NOTE.search(line)),
    )


class Assembler:
    """A ptxas program: its version, the targets it knows, and `assemble`."""

    def __init__(self, path: Path | str | None = None):
        self.path = Path(path) if path else find_ptxas()

    def _run(self, *arguments) -> subprocess.CompletedProcess:
        try:
            return subprocess.run(
                [self.path, *arguments], capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise AssemblyError(f"{self.path} cannot be run as ptxas: {error}") from error

    @functools.cached_property
    def version(self) -> str:
        """Release such as '12.9.86'."""
        out = self._run("--version").stdout
        found = re.search(r"\bV(\d+\.\d+\.\d+)", out)
        if not found:
            raise AssemblyError(f"{self.path} --version does not look like ptxas: {out.strip()!r}")
        return found.group(1)

    def knows(self, target: str) -> bool:
        """Whether this ptxas assembles for `target`, such as 'sm_110'."""
        return target in self._targets

    @functools.cached_property
    def _targets(self) -> frozenset[str]:
        out = self._run("--help").stdout
        return frozenset(re.findall(r"'(sm_\d+[af]?)'", out))

    def assemble(
        self,
        text: str,
        target: str,
        *,
        flags: tuple[str, ...] = (),
        name: str = "kernel",
        max_regs: int | None = None,
    ) -> tuple[bytes, Report]:
        """Assemble PTX text to a cubin and check the report.

        Parameters
        ----------
        text : str
            PTX with one entry.
        target : str
            Such as 'sm_90a'.
        name : str
            Names the kernel in errors.
        max_regs : int, optional
            Register budget per thread at entry.

        Returns
        -------
        (bytes, Report)

        Raises
        ------
        AssemblyError
            ptxas failed, spilled, printed a C75xx note, or exceeded the budget.
        """
        with tempfile.TemporaryDirectory(prefix="deepasm-") as folder:
            source, cubin = Path(folder, f"{name}.ptx"), Path(folder, "out.cubin")
            source.write_text(text, encoding="utf-8")
            run = self._run("-v", f"-arch={target}", *flags, source, "-o", cubin)
            said = run.stdout + run.stderr
            if run.returncode != 0 or not cubin.is_file() or cubin.stat().st_size == 0:
                raise AssemblyError(f"{name} for {target}: ptxas {self.version} failed\n{said}")
            report = parse_report(said)
            faults = list(report.notes)
            if report.registers == 0:
                faults.append("no register count in the report of ptxas -v, so nothing is checked")
            if report.spill_bytes or report.stack_bytes:
                faults.append(f"{report.spill_bytes} B of spills, {report.stack_bytes} B of stack")
            if max_regs is not None and report.registers > max_regs:
                faults.append(f"{report.registers} registers, the budget is {max_regs}")
            if faults:
                where = f"{name} for {target} (ptxas {self.version})"
                raise AssemblyError(f"{where}: " + "; ".join(faults))
            return cubin.read_bytes(), report
