"""Lines of a rendered kernel as instructions, and edits of them.

A mutation replaces, removes or moves whole statements; the renderer writes one statement a line,
which keeps edits simple and line numbers honest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<indent>\s*)(?P<guard>@!?%\w+\s+)?(?P<op>[a-z]\w*(?:\.[\w:]+)*)(?P<args>[^;/]*);(?P<tail>.*)$"
)
_LABEL = re.compile(r"\s*(\$\w+):")
_MARK = re.compile(r"//@ (\S+)\s*$")
_JUMP = re.compile(r"(?:bra|ret|exit)\b")


@dataclass(frozen=True)
class Statement:
    """One instruction of the text.

    Attributes
    ----------
    line : int
        Index of its line, from 0.
    guard : str
        "", "@%p" or "@!%p".
    op : str
    args : tuple of str
        Operands at the top level; vectors and addresses stay whole.
    where : str
        Template line.
    """

    line: int
    guard: str
    op: str
    args: tuple
    where: str

    def text(self, guard=None, op=None, **changed) -> str:
        """The statement with another guard or opcode, or other operands (``a0=...``)."""
        args = list(self.args)
        for name, value in changed.items():
            args[int(name[1:])] = value
        guard = self.guard if guard is None else guard
        head = f"{guard} {op or self.op}" if guard else op or self.op
        return f"    {head} {', '.join(args)}; //@ {self.where}"


def split(text: str) -> tuple:
    """Operands of a statement: split at commas outside brackets."""
    out, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if char == "," and not depth:
            out.append(text[start:i].strip())
            start = i + 1
    out.append(text[start:].strip())
    return tuple(x for x in out if x)


class Text:
    """A rendered kernel, line by line.

    Attributes
    ----------
    lines : list of str
    statements : dict of int to Statement
        By line index; declarations and labels are not statements.
    """

    def __init__(self, text: str):
        self.lines = text.split("\n")
        self.statements, self.labels = {}, {}
        for i, line in enumerate(self.lines):
            label = _LABEL.match(line)
            if label:
                self.labels[i] = label.group(1)
                continue
            m = _LINE.match(line)
            if not m or m["op"] in ("reg", "pragma"):
                continue
            mark = _MARK.search(m["tail"])
            where = mark.group(1) if mark else f"ptx:{i + 1}"
            guard = (m["guard"] or "").strip()
            self.statements[i] = Statement(i, guard, m["op"], split(m["args"]), where)

    def previous(self, line):
        """Statement before a line in the same straight-line piece, or None."""
        return self._walk(line, -1)

    def next(self, line):
        return self._walk(line, 1)

    def _walk(self, line, step):
        i = line + step
        while 0 <= i < len(self.lines):
            if i in self.labels:
                return None
            s = self.statements.get(i)
            if s is not None:
                return None if _JUMP.match(s.op) else s
            i += step
        return None

    def find(self, line, pattern, step, limit=400):
        """Nearest statement whose opcode matches, in the same straight-line piece, or None."""
        s, wanted = self.statements[line], re.compile(pattern)
        for _ in range(limit):
            s = self._walk(s.line, step)
            if s is None or wanted.match(s.op):
                return s
        return None

    def edited(self, edits) -> str:
        """The text with lines replaced; (line, None) removes one."""
        lines = list(self.lines)
        for i, new in edits:
            lines[i] = f"// {lines[i].strip()}" if new is None else new
        return "\n".join(lines)

    def moved(self, first, last, target, after):
        """Edits that move lines first..last before or behind the line ``target``."""
        moved = "\n".join(self.lines[first : last + 1])
        home = self.lines[target]
        edits = [(i, "") for i in range(first, last + 1)]
        return [*edits, (target, f"{home}\n{moved}" if after else f"{moved}\n{home}")]
