"""Logic, shifts, bit counting, bit fields, byte permutation."""

import numpy as np

from ..codegen.registry import is_signed, op, rt
from ..text.statements import WIDTH
from ..values import U, arr
from .integer import int_type

FLIP = {16: 0x8000, 32: 0x80000000, 64: 1 << 63}


@rt
def bitcount(a, w, kind):
    """popc, clz, brev, bfind (unsigned or after the caller's sign fold)."""
    if a.__class__ is not int:
        fn = np.frompyfunc(lambda v: bitcount(int(v), w, kind), 1, 1)
        return fn(a).astype(U[w] if kind == "brev" else np.uint32)
    if kind == "popc":
        return a.bit_count()
    if kind == "clz":
        return w - a.bit_length()
    if kind == "bfind":
        return a.bit_length() - 1 if a else 0xFFFFFFFF
    return int(f"{a:0{w}b}"[::-1], 2)


@rt
def bfe(a, pos, n, w, sign):
    """Bit-field extract; lengths beyond the msb extend with the sign (or zero)."""
    if not (a.__class__ is int and pos.__class__ is int and n.__class__ is int):
        a, pos, n = np.broadcast_arrays(arr(a, w), arr(pos, 32), arr(n, 32))
        return np.array([bfe(int(x), int(p), int(k), w, sign) for x, p, k in zip(a, pos, n)], U[w])
    pos &= 0xFF
    n &= 0xFF
    if n == 0:
        return 0
    top = min(pos + n - 1, w - 1)
    s = (a >> top) & 1 if sign else 0
    r = (a >> pos) & ((1 << n) - 1) if pos < w else 0
    have = max(0, min(n, w - pos))
    if s:
        r |= ((1 << w) - 1) & ~((1 << have) - 1)
    return r & ((1 << w) - 1)


@rt
def bfi(a, b, pos, n, w):
    """Insert the low bits of a into b."""
    if not all(x.__class__ is int for x in (a, b, pos, n)):
        a, b, pos, n = np.broadcast_arrays(arr(a, w), arr(b, w), arr(pos, 32), arr(n, 32))
        return np.array([bfi(*map(int, t), w) for t in zip(a, b, pos, n)], U[w])
    pos &= 0xFF
    n &= 0xFF
    if pos >= w:
        return b
    m = (((1 << n) - 1) << pos) & ((1 << w) - 1)
    return (b & ~m) | ((a << pos) & m)


@rt
def prmt(a, b, sel):
    """Byte permute, default mode."""
    if all(x.__class__ is int for x in (a, b, sel)):
        v, r = a | b << 32, 0
        for i in range(4):
            c = (sel >> 4 * i) & 15
            byte = (v >> 8 * (c & 7)) & 0xFF
            if c & 8:
                byte = 0xFF if byte & 0x80 else 0
            r |= byte << 8 * i
        return r
    if sel.__class__ is int:
        v = arr(a, 32).astype(np.uint64) | (arr(b, 32).astype(np.uint64) << np.uint64(32))
        r = np.uint64(0)
        for i in range(4):
            c = (sel >> 4 * i) & 15
            byte = (v >> np.uint64(8 * (c & 7))) & np.uint64(0xFF)
            if c & 8:
                byte = (byte >> np.uint64(7)) * np.uint64(0xFF)
            r = r | (byte << np.uint64(8 * i))
        return r.astype(np.uint32)
    a, b, sel = np.broadcast_arrays(arr(a, 32), arr(b, 32), arr(sel, 32))
    return np.array([prmt(*map(int, t)) for t in zip(a, b, sel)], np.uint32)


@rt
def lop3(a, b, c, lut):
    """Arbitrary three-input logic."""
    r = 0
    for i in range(8):
        if lut >> i & 1:
            m = 0xFFFFFFFF
            r = r | ((a if i & 4 else a ^ m) & (b if i & 2 else b ^ m) & (c if i & 1 else c ^ m))
    return r


@op("and", "or", "xor")
def emit_logic(cg, ins):
    ty = int_type(cg)
    cg.mods()
    d, a, b = cg.need(3)
    sign = {"and": "&", "or": "|", "xor": "^"}[ins.parts[0]]
    cg.result(d, f"{cg.src(a, ty)} {sign} {cg.src(b, ty)}")


@op("not")
def emit_not(cg, ins):
    ty = int_type(cg)
    d, a = cg.need(2)
    x = cg.src(a, ty)
    cg.result(d, f"pnot({x})" if ty == "pred" else f"{x} ^ {(1 << WIDTH[ty]) - 1}")


@op("cnot")
def emit_cnot(cg, ins):
    ty = int_type(cg)
    d, a = cg.need(2)
    cg.result(d, f"selp(1, 0, {cg.src(a, ty)} == 0, {WIDTH[ty]})")


@op("shl", "shr")
def emit_shift(cg, ins):
    ty = int_type(cg)
    w = WIDTH[ty]
    cg.mods()
    d, a, b = cg.need(3)
    x, n = cg.src(a, ty), cg.src(b, "u32")
    if ins.parts[0] == "shl":
        if b.kind == "imm" and 0 <= b.value < w:
            cg.alu(d, f"{x} << {b.value}", ty)
        else:
            cg.result(d, f"shl({x}, {n}, {w})")
    else:
        cg.result(d, f"shr({x}, {n}, {w}, {is_signed(ty)})")


@op("shf")
def emit_shf(cg, ins):
    d, a, b, c = cg.need(4)
    cg.mods("l", "r", "clamp", "wrap")
    cg.result(
        d,
        f"shf({cg.src(a, 'b32')}, {cg.src(b, 'b32')}, {cg.src(c, 'u32')}, "
        f"{'l' in ins.parts}, {'wrap' in ins.parts})",
    )


@op("popc", "clz", "brev")
def emit_bits(cg, ins):
    ty = int_type(cg)
    d, a = cg.need(2)
    cg.result(d, f"bitcount({cg.src(a, ty)}, {WIDTH[ty]}, {ins.parts[0]!r})")


@op("bfind")
def emit_bfind(cg, ins):
    ty = int_type(cg)
    w = WIDTH[ty]
    cg.mods("shiftamt")
    d, a = cg.need(2)
    x = cg.src(a, ty)
    if is_signed(ty):
        x = f"({x} ^ selp({(1 << w) - 1}, 0, {x} >= {FLIP[w]}, {w}))"
    r = f"bitcount({x}, {w}, 'bfind')"
    if "shiftamt" in ins.parts:
        t = cg.let(r)
        r = f"selp({t}, {w - 1} - {t}, {t} == 0xffffffff, 32)"
    cg.result(d, r)


@op("bfe")
def emit_bfe(cg, ins):
    ty = int_type(cg)
    d, a, b, c = cg.need(4)
    cg.result(
        d,
        f"bfe({cg.src(a, ty)}, {cg.src(b, 'u32')}, {cg.src(c, 'u32')}, {WIDTH[ty]}, "
        f"{is_signed(ty)})",
    )


@op("bfi")
def emit_bfi(cg, ins):
    ty = int_type(cg)
    d, a, b, c, e = cg.need(5)
    cg.result(
        d,
        f"bfi({cg.src(a, ty)}, {cg.src(b, ty)}, {cg.src(c, 'u32')}, "
        f"{cg.src(e, 'u32')}, {WIDTH[ty]})",
    )


@op("prmt")
def emit_prmt(cg, ins):
    d, a, b, c = cg.need(4)
    cg.mods()
    cg.result(d, f"prmt({cg.src(a, 'b32')}, {cg.src(b, 'b32')}, {cg.src(c, 'b32')})")


@op("lop3")
def emit_lop3(cg, ins):
    d, a, b, c, lut = cg.need(5)
    cg.mods()
    x, y, z = (cg.let(cg.src(o, "b32")) for o in (a, b, c))
    cg.result(d, f"lop3({x}, {y}, {z}, {lut.value & 255})")
