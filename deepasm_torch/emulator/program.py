"""Compiled PTX texts."""

import functools

from . import (
    isa,  # noqa: F401 - registers the opcodes
    targets,
)
from .codegen.blocks import compile_entry
from .errors import EmulatorError, PtxError
from .text.parser import parse
from .text.statements import WIDTH, Ins


class Program:
    """A compiled PTX text.

    Parameters
    ----------
    text : str
        PTX. Every problem (unknown opcode, bad operand, undeclared register) is collected and
        raised as one `PtxError` with line and column.
    name : str
        Used in messages when the text carries no ``//@ path:line`` markers or ``.loc`` lines.

    Attributes
    ----------
    entries : dict
        Kernel name to compiled entry.
    """

    def __init__(self, text, name="ptx"):
        self.text, self.name = text, name
        problems = []
        try:
            self.module = parse(text, name)
        except PtxError as err:
            problems += err.problems
            self.module = err.module
        seen = {p[:2] for p in problems}
        self.entries = {}
        for n, e in self.module.entries.items():
            found = targets.problems(self.module, [i for i in e.body if isinstance(i, Ins)])
            try:
                c = self.entries[n] = compile_entry(e, self.module, name)
                c.granule, c.global_granule = _granule(c, "shared"), _granule(c, "global")
            except PtxError as err:
                found += err.problems
            problems += [p for p in found if p[:2] not in seen]
        if problems:
            raise PtxError(sorted(set(problems)), name)

    def entry(self, name=None):
        """A compiled entry by name (the only one when ``name`` is None)."""
        if name is None:
            if len(self.entries) != 1:
                raise EmulatorError(f"name one of {sorted(self.entries)}")
            return next(iter(self.entries.values()))
        if name not in self.entries:
            raise EmulatorError(f"no entry {name!r}; the text has {sorted(self.entries)}")
        return self.entries[name]


@functools.lru_cache(maxsize=128)
def load(text, name="ptx"):
    """The `Program` of a text; texts seen before are not compiled again."""
    return Program(text, name)


def _access_bytes(ins):
    """Bytes per lane of a load, store or atomic."""
    n = next((int(p[1]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)
    return min(WIDTH[p] for p in ins.parts if p in WIDTH and p != "pred") // 8 * n


def _granule(entry, space):
    """Narrowest per-thread access of the entry to shared memory, or store to global, in bytes."""
    others = {
        "shared": ("global", "param", "const", "local"),
        "global": ("shared", "param", "local"),
    }
    heads = ("ld", "st", "atom", "red") if space == "shared" else ("st", "atom", "red")
    g = 16
    for i in entry.ins:
        h = i.parts[0]
        if h in heads and not any(p.split("::")[0] in others[space] for p in i.parts):
            g = min(g, _access_bytes(i))
        elif (
            space == "shared" and h == "cp" and i.parts[1] == "async" and i.parts[2] in ("ca", "cg")
        ):
            g = min(g, i.ops[2].value if i.ops[2].kind == "imm" else 4)
    return max(1, g)
