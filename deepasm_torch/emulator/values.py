"""Functions on polymorphic values: uniform Python ints or per-lane NumPy arrays.

Registers are bits. Arrays have the unsigned dtype of the register's width, so integer arithmetic
wraps for free; uniform ints are kept in ``[0, 2**width)`` by the generated code.
"""

import numpy as np

from .codegen.registry import rt


class Uninit:
    """Content of a register nobody has written: every use raises, and becomes a report."""

    __slots__ = ()
    __hash__ = None

    def _raise(self, *_):
        raise TypeError("register never written")

    __eq__ = __ne__ = __bool__ = __int__ = __index__ = __lt__ = __gt__ = __le__ = __ge__ = _raise
    __and__ = __rand__ = __or__ = __ror__ = __array__ = _raise

    def __repr__(self):
        return "<never written>"


UNINIT = Uninit()


U = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


S = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


F = {16: np.float16, 32: np.float32, 64: np.float64}


def arr(x, w):
    """Array (possibly 0-d) of the unsigned dtype of width ``w``."""
    if x.__class__ is int:
        return np.array(x, U[w])
    return x if x.dtype == U[w] else x.astype(U[w])


def signed(x, w):
    """Signed view: Python int or signed array."""
    if x.__class__ is int:
        return x - (1 << w) if x >> (w - 1) else x
    return x.view(S[w])


def unsigned(x, w):
    """Back from ``signed``."""
    if x.__class__ is int:
        return x & ((1 << w) - 1)
    return x.astype(S[w], copy=False).view(U[w])


def collapse(x):
    """Turn an array whose lanes agree into an int."""
    if x.__class__ is int or x.size == 0:
        return x
    v = x.item(0)
    return v if (x == v).all() else x


def lanes(x, w):
    """32-lane array of a value."""
    if x.__class__ is int:
        return np.full(32, x, U[w])
    return x


@rt
def pnot(p):
    """Predicate negation."""
    return (not p) if p.__class__ is bool else ~p


def _sel(w):
    u = U[w]

    def sel(p, a, b):
        if p.__class__ is bool:
            return a if p else b
        if b is UNINIT:  # first, partial write: the other lanes keep a poison pattern
            b = (1 << w) - 1
        r = np.where(p, a, b)
        return r if r.dtype == u else r.astype(u)

    sel.__name__ = f"sel{w}"
    return rt(sel)


sel16, sel32, sel64 = _sel(16), _sel(32), _sel(64)


sel8 = _sel(8)


@rt
def sel128(p, a, b):
    if p.__class__ is bool:
        return a if p else b
    raise TypeError("128-bit registers under a divergent predicate are not emulated")


@rt
def selp1(p, a, b):
    """Select between predicates."""
    if p.__class__ is bool:
        return a if p else b
    return np.where(p, a, False if b is UNINIT else b)


@rt
def narrow8(x):
    return x & 0xFF if x.__class__ is int else x.astype(np.uint8)


@rt
def narrow16(x):
    return x & 0xFFFF if x.__class__ is int else x.astype(np.uint16)


@rt
def narrow32(x):
    return x & 0xFFFFFFFF if x.__class__ is int else x.astype(np.uint32)


@rt
def widen16(x):
    return x if x.__class__ is int else x.astype(np.uint16)


@rt
def widen32(x):
    return x if x.__class__ is int else x.astype(np.uint32)


@rt
def widen64(x):
    return x if x.__class__ is int else x.astype(np.uint64)


@rt
def widen8(x):
    return x


@rt
def addoff(x, off, w):
    """Address plus a negative constant."""
    if x.__class__ is int:
        return (x + off) & ((1 << w) - 1)
    return x - (-off)


def round_bf16(x):
    """float32 array -> bf16 bits (uint16), round to nearest even; NaN becomes 0x7fff."""
    u = x.view(np.uint32)
    r = ((u + (((u >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():
        r[nan] = 0x7FFF
    return r


def bf16_to_f32(h):
    """bf16 bits (uint16 array) -> float32 array."""
    return (h.astype(np.uint32) << 16).view(np.float32)


def f32(x):
    """float32 view of a bit value (0-d for uniforms)."""
    return (np.array(x, np.uint32) if x.__class__ is int else x).view(np.float32)


def fbits(r, w):
    """Bits of a float array or scalar; NaN results are the canonical quiet NaN."""
    r = np.asarray(r)
    u = r.view(U[w])
    nan = np.isnan(r)
    if nan.any():
        u = np.where(nan, U[w](CANON[w]), u)
    return u.item() if u.ndim == 0 else u


CANON = {16: 0x7FFF, 32: 0x7FFFFFFF, 64: 0x7FF8000000000000}
