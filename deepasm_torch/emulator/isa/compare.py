"""Comparisons and selections: setp, set, selp, slct."""

import numpy as np

from ..codegen.registry import is_signed, op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from ..values import U
from .bits import FLIP
from .floating import float_compare
from .integer import FLOATS, int_type


@rt
def selp(a, b, p, w):
    """Select by predicate."""
    if p.__class__ is bool:
        return a if p else b
    r = np.where(p, a, b)
    return r if r.dtype == U[w] else r.astype(U[w])


CMP = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}


def compare(cg, cmp, ty, a, b):
    """Expression of an integer comparison (signed order by flipping the sign bit)."""
    if cmp not in CMP:
        raise EmitError(f"comparison .{cmp} is not emulated")
    x, y = cg.src(a, ty), cg.src(b, ty)
    if is_signed(ty) and cmp not in ("eq", "ne"):
        k = FLIP[WIDTH[ty]]
        x = str(int(x) ^ k) if x.isdigit() else f"({x} ^ {k})"
        y = str(int(y) ^ k) if y.isdigit() else f"({y} ^ {k})"
    return f"({x} {CMP[cmp]} {y})"


@op("setp")
def emit_setp(cg, ins):
    ty = int_type(cg)
    parts = ins.parts[1:]
    cmp = parts[0]
    join = next((p for p in parts if p in ("and", "or", "xor")), None)
    ops = cg.need(3, 4)
    d, a, b = ops[:3]
    if ty in FLOATS:
        e = float_compare(cg, cmp, ty, a, b, "ftz" in parts)
    else:
        e = compare(cg, cmp, ty, a, b)
    outs = d.items if d.kind == "pair" else [d]
    q = None
    if join:
        q = cg.let(cg.src(ops[3], "pred"))
    elif len(ops) == 4:
        raise EmitError("a fourth operand needs .and, .or or .xor")
    t = cg.let(e)
    sign = {"and": "&", "or": "|", "xor": "^"}.get(join)
    p = cg.open_guard()
    for k, o in enumerate(outs):
        if o.kind == "sink":
            continue
        x = t if k == 0 else f"pnot({t})"
        cg.put(o, f"{x} {sign} {q}" if sign else x, p)
    cg.close_guard(p)


@op("set")
def emit_set(cg, ins):
    parts = ins.parts[1:]
    tys = cg.types()
    d, a, b = cg.need(3)
    if tys[-1] in FLOATS:
        e = float_compare(cg, parts[0], tys[-1], a, b, "ftz" in parts)
    else:
        e = compare(cg, parts[0], tys[-1], a, b)
    one = 0x3F800000 if tys[0] == "f32" else 0xFFFFFFFF
    cg.result(d, f"selp({one}, 0, {e}, 32)")


@op("selp")
def emit_selp(cg, ins):
    ty = int_type(cg)
    d, a, b, c = cg.need(4)
    x, y, p = cg.src(a, ty), cg.src(b, ty), cg.src(c, "pred")
    cg.result(d, f"selp({x}, {y}, {p}, {WIDTH[ty]})")


@op("slct")
def emit_slct(cg, ins):
    ty = cg.types()
    d, a, b, c = cg.need(4)
    if ty[-1] == "f32":
        cond = f"fcmp({cg.src(c, 'f32')}, 0, 'ge', 'f32', {'ftz' in ins.parts})"
    else:
        cond = compare(cg, "ge", "s32", c, type(c)("imm", value=0))
    cg.result(d, f"selp({cg.src(a, ty[0])}, {cg.src(b, ty[0])}, {cond}, {WIDTH[ty[0]]})")
