"""Run-time functions of integer arithmetic: products, division, shifts, saturation, extrema."""

import numpy as np

from ..codegen.registry import rt
from ..values import S, U, arr, collapse, signed, unsigned


@rt
def mad_lo(product, c, mask):
    """Product plus c; a product of uniform values has not wrapped yet, and c may be an array."""
    return (product & mask) + c if product.__class__ is int else product + c


@rt
def mul_wide(a, b, w, sign):
    """Full product of two w-bit values as 2w bits."""
    if sign:
        a, b = signed(a, w), signed(b, w)
    if a.__class__ is int and b.__class__ is int:
        return (a * b) & ((1 << 2 * w) - 1)
    t = (S if sign else U)[2 * w]
    a = a if a.__class__ is int else a.astype(t)
    r = a * (b if b.__class__ is int else b.astype(t))
    return r.view(U[2 * w])


@rt
def mul_hi(a, b, w, sign):
    """High half of the product."""
    if w < 64 and not (a.__class__ is int and b.__class__ is int):
        r = mul_wide(a, b, w, sign)
        return (r >> w).astype(U[w])
    if sign:
        a, b = signed(a, w), signed(b, w)
    if a.__class__ is int and b.__class__ is int:
        return ((a * b) >> w) & ((1 << w) - 1)
    a, b = np.broadcast_arrays(np.asarray(a, object), np.asarray(b, object))
    return np.array([((int(x) * int(y)) >> w) & ((1 << w) - 1) for x, y in zip(a, b)], U[w])


@rt
def shl(a, n, w):
    """Left shift; amounts clamp at the width."""
    if n.__class__ is int:
        if n >= w:
            return 0
        r = a << n
        return r & ((1 << w) - 1) if a.__class__ is int else r
    a = arr(a, w)
    return np.where(n >= w, U[w](0), a << np.minimum(n, w - 1).astype(U[w]))


@rt
def shr(a, n, w, sign):
    """Right shift, arithmetic when signed; amounts clamp at the width."""
    if n.__class__ is int and a.__class__ is int:
        return (signed(a, w) >> n) & ((1 << w) - 1) if sign else a >> n
    if n.__class__ is int:
        if sign:
            return (a.view(S[w]) >> min(n, w - 1)).view(U[w])
        return collapse(a >> n) if n < w else 0
    a = arr(a, w)
    m = np.minimum(n, w - 1)
    if sign:
        return (a.view(S[w]) >> m.astype(S[w])).view(U[w])
    return np.where(n >= w, U[w](0), a >> m.astype(U[w]))


@rt
def divrem(a, b, w, sign, rem):
    """Truncating division; x/0 gives all ones, x%0 gives x (what the chip's sequence leaves)."""
    if a.__class__ is int and b.__class__ is int:
        m = (1 << w) - 1
        if b == 0:
            return a if rem else m
        if not sign:
            return a % b if rem else a // b
        x, y = signed(a, w), signed(b, w)
        q = abs(x) // abs(y)
        q = -q if (x < 0) != (y < 0) else q
        return (x - q * y) & m if rem else q & m
    a, b = np.broadcast_arrays(arr(a, w), arr(b, w))
    zero = b == 0
    safe = np.where(zero, U[w](1), b)
    if sign:
        x, y = a.view(S[w]), safe.view(S[w])
        r = np.fmod(x, y)
        out = r if rem else ((x - r) // y)
        out = out.astype(S[w]).view(U[w])
    else:
        out = a % safe if rem else a // safe
    if zero.any():
        out = np.where(zero, a if rem else U[w]((1 << w) - 1), out)
    return collapse(out)


@rt
def minmax(a, b, w, sign, is_max):
    """Integer minimum or maximum."""
    if sign:
        a, b = signed(a, w), signed(b, w)
    if a.__class__ is int and b.__class__ is int:
        r = max(a, b) if is_max else min(a, b)
        return unsigned(r, w) if sign else r
    r = (np.maximum if is_max else np.minimum)(a, b)
    return r.view(U[w])


@rt
def addsat(a, b, sub):
    """add.sat / sub.sat .s32."""
    x, y = signed(a, 32), signed(b, 32)
    if x.__class__ is int and y.__class__ is int:
        r = x - y if sub else x + y
        return max(-(1 << 31), min((1 << 31) - 1, r)) & 0xFFFFFFFF
    x = np.asarray(x).astype(np.int64)
    y = np.asarray(y).astype(np.int64)
    r = x - y if sub else x + y
    return np.clip(r, -(1 << 31), (1 << 31) - 1).astype(np.int32).view(np.uint32)


@rt
def shf(lo, hi, n, left, wrap):
    """Funnel shift of hi:lo."""
    if not all(x.__class__ is int for x in (lo, hi, n)):
        lo, hi, n = np.broadcast_arrays(arr(lo, 32), arr(hi, 32), arr(n, 32))
        return np.array([shf(*map(int, t), left, wrap) for t in zip(lo, hi, n)], np.uint32)
    n = n & 31 if wrap else min(n, 32)
    v = hi << 32 | lo
    return (v << n >> 32) & 0xFFFFFFFF if left else (v >> n) & 0xFFFFFFFF


@rt
def iabs(a, w):
    return unsigned(abs(signed(a, w)) if a.__class__ is int else np.abs(a.view(S[w])), w)
