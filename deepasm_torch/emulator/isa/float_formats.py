"""Floating-point arithmetic: f32, f64, f16, bf16 and packed pairs, with PTX's rounding rules.

Directed roundings and fma go through "round to odd" in float64: the exact result is s + e with
e the rounding error of s; forcing the last bit of s to one when e is not zero keeps every later
rounding to a shorter format correct.
"""

from fractions import Fraction

import numpy as np

from ..values import bf16_to_f32, fbits, round_bf16

_SIGN = {16: 0x8000, 32: 0x80000000, 64: 1 << 63}


RND = ("rn", "rz", "rm", "rp")


def flush32(u):
    """Flush float32 denormal bits to zero, keeping the sign."""
    return np.where((u & 0x7F800000) == 0, u & 0x80000000, u).astype(np.uint32)


def decode(x, ty, ftz=False):
    """Bits -> float array (float32 for 16- and 32-bit formats; pairs get a last axis of 2)."""
    if ty == "f32":
        u = np.array(x, np.uint32) if x.__class__ is int else x
        return (flush32(u) if ftz else u).view(np.float32)
    if ty == "f64":
        return (np.array(x, np.uint64) if x.__class__ is int else x).view(np.float64)
    if ty in ("f16x2", "bf16x2"):
        u = np.atleast_1d(np.asarray(x, np.uint32)).view(np.uint16).reshape(-1, 2)
        return decode(u, ty[:-2])
    u = np.asarray(x).astype(np.uint16, copy=False)
    return u.view(np.float16).astype(np.float32) if ty == "f16" else bf16_to_f32(u)


def encode(r, ty, ftz=False, sat=False, relu=False):
    """Float array -> bits; NaN becomes canonical, uniform results become ints."""
    if sat:
        r = np.where(np.isnan(r), r.dtype.type(0), np.clip(r, 0, 1)) + r.dtype.type(0)
    if relu:
        r = np.where(r > 0, r, np.where(np.isnan(r), r, r.dtype.type(0)))
    if ty == "f32":
        u = fbits(np.asarray(r, np.float32), 32)
        if ftz:
            u = flush32(np.asarray(u, np.uint32))
            u = u.item() if u.ndim == 0 else u
        return u
    if ty == "f64":
        return fbits(np.asarray(r, np.float64), 64)
    pair = ty.endswith("x2")
    base = ty[:-2] if pair else ty
    if base == "f16":
        h = np.asarray(fbits(np.asarray(r).astype(np.float16), 16), np.uint16)
    else:
        h = round_bf16(np.atleast_1d(np.asarray(r, np.float32)))
        if np.ndim(r) == 0:
            h = h[0]
    if pair:
        u = np.ascontiguousarray(h).view(np.uint32)[..., 0]
        return int(u[0]) if u.size == 1 else u
    return int(h) if np.ndim(h) == 0 else h


def round_odd(s, e):
    """float64 s with exact error e -> s or its odd neighbour, on the exact value's side."""
    b = s.view(np.int64)
    fix = (e != 0) & ((b & 1) == 0) & np.isfinite(s)
    if not fix.any():
        return s
    toward = np.where(e > 0, np.inf, -np.inf)
    return np.where(fix, np.nextafter(s, toward), s)


def two_sum(a, b):
    """Exact float64 sum as (rounded, error)."""
    s = a + b
    bb = s - a
    return s, np.where(np.isfinite(s), (a - (s - bb)) + (b - bb), 0.0)


def narrow(x, dtype, rnd):
    """float64 -> shorter dtype with a PTX rounding mode."""
    r = x.astype(dtype)
    if rnd == "rn":
        return r
    y = r.astype(np.float64)
    inf = np.array(np.inf, dtype)
    if rnd == "rz":
        fix, to = np.abs(y) > np.abs(x), np.zeros((), dtype)
    elif rnd == "rm":
        fix, to = y > x, -inf
    else:
        fix, to = y < x, inf
    return np.where(fix & ~np.isnan(x), np.nextafter(r, to), r).astype(dtype)


def _exact64(fn, rnd, *args):
    """float64 operation through rationals (slow, exact) for fma and directed rounding."""

    def one(*v):
        v = [float(t) for t in v]
        r = fn(*v)
        if not all(np.isfinite(v)) or not np.isfinite(r):
            return r
        ex = {
            "fma": lambda a, b, c: Fraction(a) * Fraction(b) + Fraction(c),
            "add": lambda a, b: Fraction(a) + Fraction(b),
            "mul": lambda a, b: Fraction(a) * Fraction(b),
            "div": lambda a, b: Fraction(a) / Fraction(b),
        }[fn.kind](*v)
        try:
            q = float(ex)  # correctly rounded by Python
        except OverflowError:
            q = np.inf if ex > 0 else -np.inf
        if ex == 0:
            return r
        fq = Fraction(q) if np.isfinite(q) else None
        if fq is not None and fq != ex and rnd != "rn":
            up = fq > ex
            if (
                (rnd == "rz" and (up == (ex > 0)))
                or (rnd == "rm" and up)
                or (rnd == "rp" and not up)
            ):
                toward = 0.0 if rnd == "rz" else (-np.inf if rnd == "rm" else np.inf)
                q = float(np.nextafter(q, toward))
        return q

    r = np.frompyfunc(one, len(args), 1)(*args)
    return np.asarray(r, np.float64)


def _named(kind, fn):
    fn.kind = kind
    return fn


_F64 = {
    "fma": _named("fma", lambda a, b, c: a * b + c),
    "add": _named("add", lambda a, b: a + b),
    "mul": _named("mul", lambda a, b: a * b),
}


def arith(kind, args, rnd, dtype):
    """Correctly rounded add, sub, mul, fma on float arrays of one dtype."""
    if kind == "sub":
        return arith("add", (args[0], -args[1]), rnd, dtype)
    if dtype == np.float64:
        if rnd == "rn" and kind != "fma":
            return args[0] + args[1] if kind == "add" else args[0] * args[1]
        return _exact64(_F64[kind], rnd, *args)
    if rnd == "rn" and kind != "fma":
        return args[0] + args[1] if kind == "add" else args[0] * args[1]
    a, b = args[0].astype(np.float64), args[1].astype(np.float64)
    if kind == "add":
        s, e = two_sum(a, b)
    elif kind == "mul":
        s, e = a * b, np.zeros(())
    else:
        s, e = two_sum(a * b, args[2].astype(np.float64))
    r = narrow(round_odd(s, e), dtype, rnd)
    if rnd == "rm" and kind != "mul":  # an exact zero sum is -0 when rounding down
        z = (s == 0) & (e == 0)
        neg = np.signbit(a * b if kind == "fma" else a) | np.signbit(
            args[2] if kind == "fma" else b
        )
        r = np.where(z & neg, dtype(-0.0), r)
    return r
