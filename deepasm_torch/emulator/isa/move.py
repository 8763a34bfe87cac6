"""Moves, packing and unpacking, address-space conversion."""

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from ..values import U
from .integer import int_type


@rt
def unpack(x, n, w):
    """Split a 64- or 32-bit value into n parts of w bits."""
    if x.__class__ is int:
        return [(x >> w * i) & ((1 << w) - 1) for i in range(n)]
    return [(x >> w * i).astype(U[w]) for i in range(n)]


@rt
def pack(parts, w):
    """Join parts of w bits, first part lowest."""
    if all(p.__class__ is int for p in parts):
        r = 0
        for i, p in enumerate(parts):
            r |= p << w * i
        return r
    t = U[min(w * len(parts), 64)]
    r = 0
    for i, p in enumerate(parts):
        p = p if p.__class__ is int else p.astype(t)
        r = r | (p << w * i)
    return r


@rt
def copy_row(x):
    """A row of the fragment's block is rewritten in place: moves must copy it."""
    return x.copy()


@op("mov")
def emit_mov(cg, ins):
    ty = int_type(cg)
    if ty == "b128":
        raise EmitError("128-bit types are not emulated (use a vector of .b64)")
    d, s = cg.need(2)
    w = WIDTH[ty]
    if d.kind == "vec":
        k = len(d.items)
        t = cg.name()
        p = cg.open_guard()
        cg.line(f"{t} = unpack({cg.src(s, ty)}, {k}, {w // k})")
        for i, o in enumerate(d.items):
            if o.kind != "sink":
                cg.put(o, f"{t}[{i}]", p)
        cg.close_guard(p)
        return
    if s.kind == "vec":
        k = len(s.items)
        sub = f"b{w // k}"
        parts = []
        for o in s.items:
            e = cg.src(o, sub)
            parts.append(e)
        p = cg.open_guard()
        cg.put(d, f"pack(({', '.join(parts)}), {w // k})", p)
        cg.close_guard(p)
        return
    e = cg.src(s, ty)
    if s.kind == "reg" and s.reg.row is not None:
        e = f"copy_row({e})"
    if s.kind == "sreg" and d.kind == "reg" and d.reg.width == 32:
        e = f"narrow32({e})"
    if s.kind == "sym" and d.kind == "reg" and d.reg.width == 32:
        e = f"narrow32({e})"
    cg.result(d, e)


@op("cvta")
def emit_cvta(cg, ins):
    ty = int_type(cg)
    d, a = cg.need(2)
    space = next(
        p for p in ins.parts if p.split("::")[0] in ("shared", "global", "local", "const", "param")
    ).split("::")[0]
    e = cg.src(a, ty)
    if a.kind == "sym" and space == "param":
        cg.result(d, e)
        return
    if space == "shared":
        e = f"addoff({e}, -SHARED_BASE, 64)" if "to" in ins.parts else f"({e} + SHARED_BASE)"
    elif space == "local":
        e = f"addoff({e}, -LOCAL_BASE, 64)" if "to" in ins.parts else f"({e} + LOCAL_BASE)"
    cg.result(d, e)
