"""Rules for what moves and selects data: copies, products, descriptors, addresses, bounds."""

from __future__ import annotations

import re

from .edits import drop, guard, line, move, number


def coordinates_of(text):
    return [x.strip() for x in text.split(",")]


def tma_load(text, s):
    yield from drop(text, s)
    yield from _tma_coordinates(s, 1)
    other = {"[%full_bar]": "[%empty_bar]"}.get(s.args[2])
    if other:
        yield "other barrier", line(s, s.text(a2=other))
    yield "destination +128", line(s, s.text(a0=s.args[0].replace("]", " + 128]")))


def tma_store(text, s):
    yield from drop(text, s)
    yield from guard(s)
    yield from _tma_coordinates(s, 0)
    yield "source +128", line(s, s.text(a1=s.args[1].replace("]", " + 128]")))
    yield from move(text, s, late=r"cp\.async\.bulk\.commit")


def _tma_coordinates(s, index):
    name, coordinates = re.match(r"\[(%\w+), \{(.*)\}\]", s.args[index]).groups()
    c = coordinates_of(coordinates)
    changes = (("coordinates swapped", (1, 0, 2, 3)), ("batches swapped", (0, 1, 3, 2)))
    for text, order in changes:
        new = ", ".join(c[i] for i in order)
        yield text, line(s, s.text(**{f"a{index}": f"[{name}, {{{new}}}]"}))
    other = {"%map_a": "%map_b", "%map_b": "%map_a"}.get(name)
    if other:
        new = s.args[index].replace(name, other)
        yield "other tensor map", line(s, s.text(**{f"a{index}": new}))


def wgmma(text, s):
    yield from drop(text, s)
    if s.args[3].startswith("%"):
        yield "always accumulates", line(s, s.text(a3="1"))
        yield "never accumulates", line(s, s.text(a3="0"))
    yield "operands swapped", line(s, s.text(a1=s.args[2], a2=s.args[1]))
    for index, name in ((6, "a"), (7, "b")):
        new = "1" if s.args[index] == "0" else "0"
        yield f"wrong majorness of {name}", line(s, s.text(**{f"a{index}": new}))
    after = text.next(s.line)
    if after is not None and after.op == s.op:
        edits = [(s.line, text.lines[after.line]), (after.line, text.lines[s.line])]
        yield "swap neighbours", edits
        yield "neighbour's descriptor", line(s, s.text(a1=after.args[1]))


def cp_async(text, s):
    yield from drop(text, s)
    if len(s.args) > 3:
        yield "no zero fill", line(s, s.text(a3="16"))
    yield "source +16", line(s, s.text(a1=s.args[1].replace("]", " + 16]")))
    to, offset = re.match(r"\[(%\w+) \+ (\d+)\]", s.args[0]).groups()
    yield "destination +16", line(s, s.text(a0=f"[{to} + {int(offset) + 16}]"))


def matrix_move(text, s):
    """ldmatrix, stmatrix: address, registers, transposition."""
    store = s.op.startswith("st")
    at, regs = (0, 1) if store else (1, 0)
    yield from drop(text, s)
    yield "address +16", line(s, s.text(**{f"a{at}": _plus(s.args[at], 16)}))
    names = coordinates_of(s.args[regs].strip("{}"))
    names[:2] = names[1::-1]
    yield "registers swapped", line(s, s.text(**{f"a{regs}": "{" + ", ".join(names) + "}"}))
    op = (
        s.op.replace(".trans", "") if ".trans" in s.op else s.op.replace(".shared", ".trans.shared")
    )
    yield "other transposition", line(s, s.text(op=op))


def _plus(address, step):
    m = re.match(r"\[(%\w+)(?: \+ (\d+))?\]", address)
    return f"[{m.group(1)} + {int(m.group(2) or 0) + step}]"


def shared_store(text, s):
    yield from drop(text, s)
    yield "address +4", line(s, s.text(a0=_plus(s.args[0], 4)))


def shared_load(text, s):
    yield "address +4", line(s, s.text(a1=_plus(s.args[1], 4)))


def global_store(text, s):
    yield from drop(text, s)
    yield from guard(s)


def global_load(text, s):
    yield from guard(s)


#: what a comparison becomes when it is off by one
_OFF_BY_ONE = {"lt": "le", "le": "lt", "ge": "gt", "gt": "ge", "eq": "ne", "ne": "eq"}


def compare(text, s):
    parts = s.op.split(".")
    if parts[-1] == "f32":
        return
    parts[1] = _OFF_BY_ONE[parts[1]]
    yield f"{s.op.split('.')[1]} becomes {parts[1]}", line(s, s.text(op=".".join(parts)))
    if re.fullmatch(r"\d+", s.args[2]) and s.args[2] != "0":
        yield from number(s, 2, 1, -1)


def ring_step(text, s):
    """Parity flips, swizzles and chunk moves."""
    if s.args[0] == "%phase":
        yield from drop(text, s)
        return
    if s.args[2].startswith("%"):
        yield "no swizzle", line(s, s.text(op="mov.b32", a2="").replace(", ;", ";"))
    else:
        yield from number(s, 2, 16)


def clamp(text, s):
    yield "no clamp", line(s, s.text(op="mov.b32", a2="").replace(", ;", ";"))
    yield from number(s, 2, 1, -1)


def select(text, s):
    yield "branches swapped", line(s, s.text(a1=s.args[2], a2=s.args[1]))


def start_value(text, s):
    if s.args[0] in ("%phase", "%stage") and s.args[1] in "01":
        yield "other start", line(s, s.text(a1=str(1 - int(s.args[1]))))


_DESCRIPTOR = re.compile(r"%(a|b)_(lo|desc)$")


def descriptor_step(text, s):
    """Address words of matrix descriptors: their steps and their fields."""
    if s.op == "or.b32" and _DESCRIPTOR.match(s.args[0]):
        yield "leading offset off by one", line(s, s.text(a2=hex(int(s.args[2], 0) + 0x10000)))
    elif s.op == "add.u32" and _DESCRIPTOR.match(s.args[1]):
        yield from number(s, 2, 1)
    elif s.op == "shr.u32" and _DESCRIPTOR.match(s.args[0]):
        yield from number(s, 2, 1, -1)
    elif s.op == "mad.lo.u32" and _DESCRIPTOR.match(s.args[0]) and s.args[2].isdigit():
        yield from number(s, 2, 1, -1)


def descriptor_word(text, s):
    m = re.match(r"\{(%\w+), (0x\w+)\}", s.args[1])
    if not s.args[0].startswith("%desc") or not m:
        return
    low, high = m.group(1), int(m.group(2), 16)
    for change, value in (
        ("half the stride", high - (high & 0x3FFF) // 2),
        ("64-byte swizzle", high & 0x3FFFFFFF | 2 << 30),
        ("no swizzle", high & 0x3FFFFFFF),
    ):
        yield change, line(s, s.text(a1=f"{{{low}, {value:#x}}}"))


def stage_address(text, s):
    if s.args[0] == "%dst" and s.args[2].isdigit():
        yield from number(s, 2, 128, -128)
