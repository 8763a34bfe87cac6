"""Changes that rules share: each yields what was done, and the edits that do it."""

from __future__ import annotations

from .sites import Statement


def line(s: Statement, new):
    return [(s.line, new)]


def number(s, index, *steps):
    """Add to an immediate operand."""
    try:
        value = int(s.args[index], 0)
    except (ValueError, IndexError):
        return
    for step in steps:
        new = value + step
        if new >= 0:
            yield f"{step:+d}", line(s, s.text(**{f"a{index}": str(new)}))


def guard(s):
    """Drop or invert the guard."""
    if s.guard:
        yield "no predicate", line(s, s.text(guard=""))
        flipped = "@" + s.guard[2:] if s.guard.startswith("@!") else "@!" + s.guard[1:]
        yield "inverted predicate", line(s, s.text(guard=flipped))


def move(text, s, early="", late=""):
    for pattern, step, name in ((early, -1, "early"), (late, 1, "late")):
        if pattern:
            other = text.find(s.line, pattern, step)
            if other is not None:
                edits = text.moved(s.line, s.line, other.line, after=step > 0)
                yield f"move {name}, past {other.op.split('.sync')[0]}", edits


def drop(text, s):
    yield "drop", line(s, None)
