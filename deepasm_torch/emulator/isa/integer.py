"""Integer arithmetic: add, sub, mul, mad, div, rem, min, max, neg, abs, sad, dp4a."""

import numpy as np

from ..codegen.registry import is_signed, op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from .floating import (
    emit_float_binary,
    emit_float_div,
    emit_float_minmax,
    emit_float_unary,
    emit_fma,
)


def int_type(cg):
    ty = cg.types()[-1] if cg.types() else None
    if ty is None:
        raise EmitError("a type suffix is missing")
    return ty


FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")


def _binary(cg, sign_char):
    ty = int_type(cg)
    d, a, b = cg.need(3)
    cg.mods("sat")
    if "sat" in cg.ins.parts:
        cg.result(d, f"addsat({cg.src(a, ty)}, {cg.src(b, ty)}, {sign_char == '-'})")
        return
    cg.alu(d, f"{cg.src(a, ty)} {sign_char} {cg.src(b, ty)}", ty)


@op("add", "sub")
def emit_add(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_float_binary(cg, ins)
        return
    _binary(cg, "+" if ins.parts[0] == "add" else "-")


@op("mul")
def emit_mul(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_float_binary(cg, ins)
        return
    ty = int_type(cg)
    w, s = WIDTH[ty], is_signed(ty)
    cg.mods("lo", "hi", "wide")
    d, a, b = cg.need(3)
    x, y = cg.src(a, ty), cg.src(b, ty)
    if "wide" in ins.parts:
        cg.result(d, f"mul_wide({x}, {y}, {w}, {s})")
    elif "hi" in ins.parts:
        cg.result(d, f"mul_hi({x}, {y}, {w}, {s})")
    else:
        cg.alu(d, f"{x} * {y}", ty)


@op("mad")
def emit_mad(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_fma(cg, ins)
        return
    ty = int_type(cg)
    w, s = WIDTH[ty], is_signed(ty)
    cg.mods("lo", "hi", "wide")
    d, a, b, c = cg.need(4)
    x, y = cg.src(a, ty), cg.src(b, ty)
    if "wide" in ins.parts:
        t2 = f"u{2 * w}"
        cg.alu(d, f"mul_wide({x}, {y}, {w}, {s}) + {cg.src(c, t2)}", t2)
    elif "hi" in ins.parts:
        cg.alu(d, f"mul_hi({x}, {y}, {w}, {s}) + {cg.src(c, ty)}", ty)
    else:
        cg.alu(d, f"mad_lo({x} * {y}, {cg.src(c, ty)}, {(1 << w) - 1})", ty)


@op("div", "rem")
def emit_div(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_float_div(cg, ins)
        return
    ty = int_type(cg)
    cg.mods()
    d, a, b = cg.need(3)
    cg.result(
        d,
        f"divrem({cg.src(a, ty)}, {cg.src(b, ty)}, {WIDTH[ty]}, {is_signed(ty)}, "
        f"{ins.parts[0] == 'rem'})",
    )


@op("min", "max")
def emit_minmax(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_float_minmax(cg, ins)
        return
    ty = int_type(cg)
    cg.mods("relu")
    d, a, b = cg.need(3)
    cg.result(
        d,
        f"minmax({cg.src(a, ty)}, {cg.src(b, ty)}, {WIDTH[ty]}, {is_signed(ty)}, "
        f"{ins.parts[0] == 'max'})",
    )


@op("neg")
def emit_neg(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_float_unary(cg, ins)
        return
    ty = int_type(cg)
    d, a = cg.need(2)
    cg.alu(d, f"0 - {cg.src(a, ty)}", ty)


@op("abs")
def emit_abs(cg, ins):
    if any(p in FLOATS for p in ins.parts):
        emit_float_unary(cg, ins)
        return
    ty = int_type(cg)
    d, a = cg.need(2)
    cg.result(d, f"iabs({cg.src(a, ty)}, {WIDTH[ty]})")


@rt
def low24(x, sign):
    """Low 24 bits of a 32-bit value, sign-extended on request."""
    x = x & 0xFFFFFF
    return (
        ((x ^ 0x800000) - 0x800000) & 0xFFFFFFFF
        if sign and x.__class__ is int
        else ((x ^ 0x800000) - 0x800000 if sign else x)
    )


@op("mul24", "mad24")
def emit_mul24(cg, ins):
    """24-bit products: .lo gives bits 0 to 31 of the 48-bit product, .hi bits 16 to 47."""
    ty = int_type(cg)
    s = is_signed(ty)
    cg.mods("lo", "hi")
    ops = cg.need(3, 4)
    x, y = (f"low24({cg.src(o, ty)}, {s})" for o in ops[1:3])
    wide = cg.let(f"mul_wide({x}, {y}, 32, {s})")
    e = f"narrow32({wide} >> 16)" if "hi" in ins.parts else f"narrow32({wide})"
    if len(ops) == 4:
        e = f"{e} + {cg.src(ops[3], ty)}"
    cg.alu(ops[0], e, ty)


@op("sad")
def emit_sad(cg, ins):
    """Sum of absolute differences."""
    ty = int_type(cg)
    w, s = WIDTH[ty], is_signed(ty)
    d, a, b, c = cg.need(4)
    x, y = cg.let(cg.src(a, ty)), cg.let(cg.src(b, ty))
    high, low = (f"minmax({x}, {y}, {w}, {s}, {m})" for m in (True, False))
    cg.alu(d, f"{cg.src(c, ty)} + {high} - {low}", ty)


@rt
def dot4(a, b, c, sa, sb):
    """dp4a: four 8-bit products added to a 32-bit value."""
    r = c if c.__class__ is int else c.astype(np.int64)
    for k in range(0, 32, 8):
        x, y = (a >> k) & 0xFF, (b >> k) & 0xFF
        x = x if x.__class__ is int else x.astype(np.int64)
        y = y if y.__class__ is int else y.astype(np.int64)
        r = r + ((x ^ 0x80) - 0x80 if sa else x) * ((y ^ 0x80) - 0x80 if sb else y)
    return r & 0xFFFFFFFF if r.__class__ is int else r.astype(np.uint32)


@op("dp4a")
def emit_dp4a(cg, ins):
    types = cg.types()
    d, a, b, c = cg.need(4)
    x, y, z = (cg.src(o, "b32") for o in (a, b, c))
    cg.result(d, f"dot4({x}, {y}, {z}, {types[0] == 's32'}, {types[1] == 's32'})")
