"""Floating-point instructions: f32, f64, f16, bf16 and packed pairs."""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from ..values import fbits
from .float_formats import _SIGN, RND, arith, decode, encode, flush32, narrow, round_odd, two_sum


@rt
def fadd(a, b):
    """add.f32, round to nearest."""
    a = (np.array(a, np.uint32) if a.__class__ is int else a).view(np.float32)
    b = (np.array(b, np.uint32) if b.__class__ is int else b).view(np.float32)
    return fbits(a + b, 32)


@rt
def fmul(a, b):
    """mul.f32, round to nearest."""
    a = (np.array(a, np.uint32) if a.__class__ is int else a).view(np.float32)
    b = (np.array(b, np.uint32) if b.__class__ is int else b).view(np.float32)
    return fbits(a * b, 32)


@rt
def ffma(a, b, c):
    """fma.rn.f32: one rounding."""
    a = (np.array(a, np.uint32) if a.__class__ is int else a).view(np.float32).astype(np.float64)
    b = (np.array(b, np.uint32) if b.__class__ is int else b).view(np.float32).astype(np.float64)
    c = (np.array(c, np.uint32) if c.__class__ is int else c).view(np.float32).astype(np.float64)
    s, e = two_sum(a * b, c)
    return fbits(round_odd(s, e).astype(np.float32), 32)


@rt
def farith(kind, args, ty, rnd, ftz, sat, relu=False):
    """Any floating add, sub, mul, fma."""
    v = [decode(x, ty, ftz) for x in args]
    if ty in ("f32", "f64"):
        return encode(
            arith(kind, v, rnd, np.float32 if ty == "f32" else np.float64), ty, ftz, sat, relu
        )
    if kind == "fma":  # product exact, sum rounded to odd in float32, then once to 16 bits
        s, e = two_sum(v[0].astype(np.float64) * v[1], v[2].astype(np.float64))
        s = round_odd(s, e)
        if ty.startswith("f16"):
            r = s.astype(np.float16).astype(np.float32)
        else:
            t = narrow(s, np.float32, "rz")
            inexact = t.astype(np.float64) != s
            u = t.view(np.uint32)
            r = np.where(inexact & np.isfinite(t), u | 1, u).astype(np.uint32).view(np.float32)
    else:
        r = arith(kind, v, "rn", np.float32)
    return encode(r, ty, False, sat, relu)


@rt
def fdiv(a, b, ty, rnd, ftz):
    """Division; the approximate forms are computed to full precision."""
    x, y = decode(a, ty, ftz), decode(b, ty, ftz)
    if rnd == "rn":
        return encode(x / y, ty, ftz)
    if ty == "f64":
        raise EmitError("div.f64 with a directed rounding is not emulated")
    q = x.astype(np.float64) / y.astype(np.float64)
    return encode(narrow(q, np.float32, rnd), ty, ftz)


@rt
def funary(kind, a, ty, ftz=False, rnd="rn"):
    """sqrt, rcp, rsqrt, ex2, lg2, sin, cos, tanh, neg, abs."""
    if kind in ("neg", "abs"):
        pair = ty.endswith("x2")
        bit = 0x80008000 if pair else _SIGN[WIDTH[ty]]
        if ftz and ty == "f32":
            a = flush32(np.asarray(a, np.uint32))
            a = int(a) if a.ndim == 0 else a
        return a ^ bit if kind == "neg" else a & (((1 << WIDTH[ty]) - 1) ^ bit)
    if kind in ("rcp", "rsqrt") and ty == "f64" and ftz:  # approx.ftz.f64 sees the high word only
        a = a & 0xFFFFFFFF00000000
    x = decode(a, ty, ftz)
    if kind == "sqrt":
        if rnd == "rn" or ty == "f64":
            r = np.sqrt(x)
        else:
            r = np.sqrt(x.astype(np.float64))
            e = x.astype(np.float64) - r * r
            r = narrow(round_odd(r, e), np.float32, rnd)
    elif kind == "rcp":
        r = 1 / x if rnd == "rn" else narrow(1 / x.astype(np.float64), np.float32, rnd)
    else:
        y = x.astype(np.float64)
        r = {
            "rsqrt": lambda: 1 / np.sqrt(y),
            "ex2": lambda: np.exp2(y),
            "lg2": lambda: np.log2(y),
            "sin": lambda: np.sin(y),
            "cos": lambda: np.cos(y),
            "tanh": lambda: np.tanh(y),
        }[kind]()
        r = r.astype(x.dtype)
    u = encode(r, ty, ftz)
    if kind in ("rcp", "rsqrt") and ty == "f64" and ftz:
        u = u & 0xFFFFFFFF00000000
    return u


@rt
def fminmax(a, b, ty, is_max, ftz, nan):
    """min/max: a number beats a NaN unless .NaN; -0 is below +0."""
    if ty.endswith("x2"):
        p = np.atleast_1d(np.asarray(a, np.uint32)).view(np.uint16)
        q = np.atleast_1d(np.asarray(b, np.uint32)).view(np.uint16)
        p, q = np.broadcast_arrays(
            p if p.size > 2 else np.tile(p, q.size // 2),
            q if q.size > 2 else np.tile(q, p.size // 2),
        )
        r = np.ascontiguousarray(fminmax(p, q, ty[:-2], is_max, ftz, nan)).view(np.uint32)
        return int(r[0]) if a.__class__ is int and b.__class__ is int else r
    w = WIDTH[ty]
    x, y = decode(a, ty, ftz), decode(b, ty, ftz)
    r = (np.fmax if is_max else np.fmin)(x, y)
    zero = (x == 0) & (y == 0)
    if np.any(zero):
        s = (np.signbit(x) & np.signbit(y)) if is_max else (np.signbit(x) | np.signbit(y))
        r = np.where(zero, np.where(s, -0.0, 0.0), r).astype(r.dtype)
    if nan:
        r = np.where((np.isnan(x)) | (np.isnan(y)), r.dtype.type(np.nan), r)
    del w
    return encode(r, ty, ftz)


@rt
def fcmp(a, b, cmp, ty, ftz):
    """Floating comparison; bool for uniforms."""
    x, y = decode(a, ty, ftz), decode(b, ty, ftz)
    un = (np.isnan(x)) | (np.isnan(y))
    base = cmp[:2] if cmp not in ("num", "nan") else cmp
    if cmp == "num":
        r = ~un
    elif cmp == "nan":
        r = un
    else:
        r = {
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }[base](x, y)
        r = (r | un) if cmp.endswith("u") else (r & ~un)
    return bool(r) if np.ndim(r) == 0 else r


FMODS = ("rn", "rz", "rm", "rp", "ftz", "sat", "relu")


def _float_type(cg):
    t = [x for x in cg.types() if x in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")]
    if not t:
        raise EmitError("a floating type is expected")
    return t[-1]


def _rnd(ins):
    return next((p for p in ins.parts if p in RND), "rn")


def emit_float_binary(cg, ins):
    """add, sub, mul."""
    ty = _float_type(cg)
    cg.mods(*FMODS)
    d, a, b = cg.need(3)
    x, y = cg.src(a, ty), cg.src(b, ty)
    kind, rnd = ins.parts[0], _rnd(ins)
    ftz, sat = "ftz" in ins.parts, "sat" in ins.parts
    if ty == "f32" and rnd == "rn" and not ftz and not sat and kind != "sub":
        cg.result(d, f"f{kind}({x}, {y})")
    else:
        cg.result(d, f"farith({kind!r}, ({x}, {y}), {ty!r}, {rnd!r}, {ftz}, {sat})")


def emit_fma(cg, ins):
    """fma and mad on floats."""
    ty = _float_type(cg)
    cg.mods(*FMODS)
    d, a, b, c = cg.need(4)
    x = [cg.src(o, ty) for o in (a, b, c)]
    rnd, ftz, sat = _rnd(ins), "ftz" in ins.parts, "sat" in ins.parts
    if ty == "f32" and rnd == "rn" and not ftz and not sat:
        cg.result(d, f"ffma({x[0]}, {x[1]}, {x[2]})")
    else:
        cg.result(
            d,
            f"farith('fma', ({', '.join(x)}), {ty!r}, {rnd!r}, {ftz}, {sat}, "
            f"{'relu' in ins.parts})",
        )


@op("fma")
def emit_fma_op(cg, ins):
    emit_fma(cg, ins)


def emit_float_div(cg, ins):
    ty = _float_type(cg)
    cg.mods(*FMODS, "full", "approx")
    d, a, b = cg.need(3)
    cg.result(
        d, f"fdiv({cg.src(a, ty)}, {cg.src(b, ty)}, {ty!r}, {_rnd(ins)!r}, {'ftz' in ins.parts})"
    )


@op("sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def emit_float_unary(cg, ins):
    ty = _float_type(cg)
    cg.mods(*FMODS, "approx")
    d, a = cg.need(2)
    cg.result(
        d, f"funary({ins.parts[0]!r}, {cg.src(a, ty)}, {ty!r}, {'ftz' in ins.parts}, {_rnd(ins)!r})"
    )


def emit_float_minmax(cg, ins):
    ty = _float_type(cg)
    cg.mods("ftz", "NaN")
    d, a, b = cg.need(3)
    cg.result(
        d,
        f"fminmax({cg.src(a, ty)}, {cg.src(b, ty)}, {ty!r}, {ins.parts[0] == 'max'}, "
        f"{'ftz' in ins.parts}, {'NaN' in ins.parts})",
    )


def float_compare(cg, cmp, ty, a, b, ftz):
    """Expression of a floating comparison."""
    if cmp not in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "equ",
        "neu",
        "ltu",
        "leu",
        "gtu",
        "geu",
        "num",
        "nan",
    ):
        raise EmitError(f"comparison .{cmp} is not emulated")
    return f"fcmp({cg.src(a, ty)}, {cg.src(b, ty)}, {cmp!r}, {ty!r}, {ftz})"


@rt
def ftestp(a, kind, ty):
    """testp: classify."""
    x = decode(a, ty)
    tiny = np.finfo(np.float32 if ty == "f32" else np.float64).tiny
    r = {
        "finite": lambda: np.isfinite(x),
        "infinite": lambda: np.isinf(x),
        "number": lambda: ~np.isnan(x),
        "notanumber": lambda: np.isnan(x),
        "normal": lambda: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda: (x != 0) & (np.abs(x) < tiny),
    }[kind]()
    return bool(r) if np.ndim(r) == 0 else r


@op("testp")
def emit_testp(cg, ins):
    ty = _float_type(cg)
    d, a = cg.need(2)
    cg.result(d, f"ftestp({cg.src(a, ty)}, {ins.parts[1]!r}, {ty!r})")


@op("copysign")
def emit_copysign(cg, ins):
    ty = _float_type(cg)
    d, a, b = cg.need(3)
    s = _SIGN[WIDTH[ty]]
    cg.result(d, f"({cg.src(a, ty)} & {s}) | ({cg.src(b, ty)} & {s - 1})")
