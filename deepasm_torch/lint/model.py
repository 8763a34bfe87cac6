"""Findings, the registry of rules, and what a rule gets to see."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..emulator.text.statements import Ins
from .flow import Flow
from .values import Values

ERROR, WARNING, HINT = "error", "warning", "hint"
_MARKER = re.compile(r"//@\s*([^\s:]+:\d+)")


@dataclass(frozen=True)
class Finding:
    """One problem.

    Attributes
    ----------
    rule, severity : str
    where : str
        ``template:line`` if the text carries markers or ``.loc``, else ``file:line``.
    line : int
        Line of the PTX text; 0 when the finding is about the whole text.
    entry, target : str
        Kernel, and the architecture for findings about assembly; empty when they do not matter.
    message : str
        One sentence: what is wrong.
    advice : str
        What to do.
    """

    rule: str
    severity: str
    where: str
    line: int
    entry: str
    target: str
    message: str
    advice: str

    def __str__(self):
        about = ", ".join(x for x in (self.entry, self.target) if x)
        about = f" ({about})" if about else ""
        return f"{self.where}: {self.severity} [{self.rule}]{about}: {self.message}; {self.advice}"


@dataclass(frozen=True)
class Rule:
    """A check; `scope` is "text", "entry", "assembly" (text, target) or "sass" (entry, target)."""

    id: str
    severity: str
    scope: str
    summary: str
    check: Callable[..., Iterator]


RULES: dict[str, Rule] = {}


def rule(id: str, severity: str, scope: str, summary: str):
    """Register a check.

    It gets a `Context` and yields ``(place, message, advice)``, where place is an instruction, a
    line number, or None for the entry or the text as a whole.
    """

    def register(check):
        assert id not in RULES, id
        RULES[id] = Rule(id, severity, scope, summary, check)
        return check

    return register


@dataclass
class EntryView:
    """One entry, with the analyses that rules share, each made once."""

    entry: object
    name: str

    @functools.cached_property
    def ins(self) -> list[Ins]:
        return self.flow.ins

    @functools.cached_property
    def flow(self) -> Flow:
        return Flow(self.entry)

    @functools.cached_property
    def values(self) -> Values:
        """Values for any thread of the block."""
        return Values(self.flow, self.threads)

    @functools.cached_property
    def threads(self) -> int | None:
        """Threads of a block when a directive says so."""
        for directive in ("reqntid", "maxntid"):
            dims = self.entry.directives.get(directive)
            if dims:
                product = 1
                for n in dims:
                    product *= n
                return product
        return None

    @functools.cached_property
    def one_dimensional(self) -> bool:
        dims = self.entry.directives.get("reqntid") or self.entry.directives.get("maxntid") or ()
        return all(n == 1 for n in dims[1:])

    def having(self, *heads: str) -> list[Ins]:
        """Instructions whose opcode starts with one of `heads`."""
        return [i for i in self.ins if i.op.startswith(heads)]


@dataclass
class Context:
    """What a rule sees; fields that its scope does not have are None."""

    name: str
    text: str
    module: object
    problems: list  # (line, column, message) of the parser
    targets: tuple[str, ...]
    assembler: object
    row: object = None  # of the kernel tables
    max_regs: int | None = None
    view: EntryView | None = None
    assembly: object = None
    sass: list | None = None
    views: list[EntryView] = field(default_factory=list)

    @functools.cached_property
    def places(self) -> dict[int, str]:
        """PTX line -> where the author wrote it."""
        known = {i.line: i.where for v in self.views for i in v.ins}
        for number, line in enumerate(self.text.split("\n"), 1):  # declarations carry markers too
            marker = _MARKER.search(line)
            if marker:
                known[number] = marker[1]
        return known

    def at(self, line: int) -> str:
        return self.places.get(line) or f"{self.name}:{line}"

    def line_of(self, pattern: str) -> int:
        """First line of the text that holds `pattern`, or 1."""
        for number, line in enumerate(self.text.split("\n"), 1):
            if pattern in line.split("//")[0]:
                return number
        return 1

    def finding(self, rule: Rule, place, message: str, advice: str) -> Finding:
        entry = self.view.name if self.view else ""
        target = self.assembly.target if self.assembly else ""
        if place is None:
            line = self.line_of(f".entry {entry}") if entry else 1
            where = f"{self.name}:{line}"
        elif isinstance(place, int):
            line, where = place, self.at(place)
        else:
            line, where = place.line, place.where
        return Finding(rule.id, rule.severity, where, line, entry, target, message, advice)
