"""Carry chains: add.cc, addc, sub.cc, subc, mad.cc, madc.

The condition-code bit is a hidden predicate register of the entry; like the real one it is only
defined after an instruction with ``.cc``.
"""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from ..values import U, arr


@rt
def add_carry(a, b, carry, w, subtract):
    """(a + b + carry) or (a - b - carry) of w-bit values: (result, carry or borrow out)."""
    if a.__class__ is int and b.__class__ is int and carry.__class__ is bool:
        r = a - b - carry if subtract else a + b + carry
        return r & ((1 << w) - 1), r < 0 or r >> w != 0
    a, b = arr(a, w), arr(b, w)
    c = np.asarray(carry).astype(U[w])
    if subtract:
        first = a - b
        r = first - c
        return r, (a < b) | (first < c)
    first = a + b
    r = first + c
    return r, (first < a) | (r < first)


def _flag(cg):
    for r in cg.entry.regs:
        if r.name == "condition code":
            return r
    from ..text.operands import Reg

    r = Reg(len(cg.entry.regs), "condition code", 1, "pred")
    cg.entry.regs.append(r)
    return r


def emit_carry(cg, ins):
    """Any add, sub or mad that reads or writes the condition code."""
    head = ins.parts[0]
    mods = [p for p in ins.parts[1:] if p not in WIDTH]
    if any(m not in ("cc", "lo", "hi") for m in mods):
        raise EmitError(f"modifier .{mods[0]} is not emulated in a carry chain")
    ty = ins.parts[-1]
    w = WIDTH[ty]
    flag = _flag(cg)
    carry = f"R[{flag.index}]" if head in ("addc", "subc", "madc") else "False"
    if head in ("mad", "madc"):
        d, a, b, c = cg.need(4)
        x, y = cg.src(a, ty), cg.src(b, ty)
        if "hi" in mods:
            first = f"mul_hi({x}, {y}, {w}, {ty[0] == 's'})"
        else:
            first = f"narrow{w}({x} * {y})"
        second = cg.src(c, ty)
    else:
        d, a, b = cg.need(3)
        first, second = cg.src(a, ty), cg.src(b, ty)
    p = cg.open_guard()
    t = cg.name()
    cg.line(f"{t} = add_carry({first}, {second}, {carry}, {w}, {head.startswith('sub')})")
    cg.put(d, f"{t}[0]", p)
    if "cc" in mods:
        cg.line(f"R[{flag.index}] = selp1({p}, {t}[1], R[{flag.index}])")
    cg.close_guard(p)


for _head in ("addc", "subc", "madc", "add.cc", "sub.cc", "mad.lo.cc", "mad.hi.cc"):
    op(_head)(emit_carry)
