"""Assemble any PTX text and keep everything ptxas says about it.

`codegen.Assembler.assemble` is for kernels that ship: one entry, the first fault is an exception.
Here a text may hold several entries and is allowed to be bad; nothing is raised for that.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Resources:
    """What one entry needs, as ptxas reports it."""

    registers: int = 0
    stack_bytes: int = 0
    spill_stores: int = 0  # bytes
    spill_loads: int = 0  # bytes
    barriers: int = 0
    static_smem: int = 0  # bytes

    @property
    def spill_bytes(self) -> int:
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class Note:
    """One advisory line of ptxas; `code` like "C7519", `line` of the PTX text when it says one."""

    code: str
    text: str
    function: str | None
    line: int | None


@dataclass
class Assembly:
    """Outcome of one ptxas run.

    Attributes
    ----------
    target : str
    ok : bool
        Whether ptxas wrote a cubin.
    errors : list of (line or None, text)
        Why it did not.
    notes : list of Note
    resources : dict
        Entry name to Resources.
    cubin : bytes or None
    """

    target: str
    ok: bool = False
    errors: list[tuple[int | None, str]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    resources: dict[str, Resources] = field(default_factory=dict)
    cubin: bytes | None = None


_FUNCTION = re.compile(r"(?:Compiling entry function|Function properties for) '?([\w$.]+)'?")
_CODE = re.compile(r"\((C7\d{3})\)")
_ADVICE = re.compile(r"[Pp]otential [Pp]erformance [Ll]oss|setmaxnreg' ignored|setmaxnreg ignored")
_ERROR = re.compile(r"(?:, line (\d+); (?:error|fatal)|^ptxas (?:error|fatal))\s*:\s*(.*)")
_WARNING_PREFIX = re.compile(r"^ptxas (?:info|warning)\s*:\s*")
_NUMBERS = (
    ("registers", re.compile(r"Used (\d+) registers")),
    ("stack_bytes", re.compile(r"(\d+) bytes stack frame")),
    ("spill_stores", re.compile(r"(\d+) bytes spill stores")),
    ("spill_loads", re.compile(r"(\d+) bytes spill loads")),
    ("barriers", re.compile(r"used (\d+) barriers")),
    ("static_smem", re.compile(r"(\d+) bytes smem")),
)


def parse_log(said: str, target: str) -> Assembly:
    """Read the output of ``ptxas -v`` for a text with any number of entries."""
    out, entry = Assembly(target), None
    for line in said.splitlines():
        failed = _ERROR.search(line)
        if failed:
            out.errors.append((int(failed[1]) if failed[1] else None, failed[2].strip()))
            continue
        code = _CODE.search(line)
        if code or _ADVICE.search(line):
            text = _WARNING_PREFIX.sub("", line).strip()
            function = re.search(r"in (?:the )?function '([^']+)'", line)
            at = re.search(r"\bline (\d+)", line)
            out.notes.append(
                Note(
                    code[1] if code else "note",
                    text,
                    function[1] if function else entry,
                    int(at[1]) if at else None,
                )
            )
            continue
        named = _FUNCTION.search(line)
        if named:
            entry = named[1]
            out.resources.setdefault(entry, Resources())
        if entry is not None:
            for name, pattern in _NUMBERS:
                found = pattern.search(line)
                if found:
                    setattr(out.resources[entry], name, int(found[1]))
    return out


def assemble(text: str, target: str, assembler, flags: tuple[str, ...] = ()) -> Assembly:
    """Run ptxas on a text.

    Parameters
    ----------
    text : str
    target : str
        Such as 'sm_90a'.
    assembler : codegen.Assembler
        Whose ptxas to use.
    flags : tuple of str
        More ptxas options.

    Returns
    -------
    Assembly
        Never raises for a text that ptxas refuses.
    """
    with tempfile.TemporaryDirectory(prefix="deepasm-") as folder:
        source, cubin = Path(folder, "text.ptx"), Path(folder, "out.cubin")
        source.write_text(text, encoding="utf-8")
        command = [assembler.path, "-v", f"-arch={target}", *flags, source, "-o", cubin]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace")
        out = parse_log(run.stdout + run.stderr, target)
        out.ok = run.returncode == 0 and cubin.is_file()
        if out.ok:
            out.cubin = cubin.read_bytes()
            return out
        # "aborted due to errors" says nothing beside the errors themselves
        out.errors = [e for e in out.errors if "aborted due to" not in e[1]] or out.errors
        if not out.errors:
            said = (run.stdout + run.stderr).strip() or f"exit status {run.returncode}"
            out.errors.append((None, said))
    return out
