"""Conversions: integers, floats, packed 16-bit pairs, tf32."""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from ..values import S, U, bf16_to_f32, round_bf16
from .float_formats import RND, decode, encode, narrow

INT = {"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"}


FLT = {"f16", "bf16", "f32", "f64"}


IRND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@rt
def cvt_ii(x, src, dst, sat):
    """Integer to integer: sign- or zero-extension, truncation, optional clamp."""
    ws, wd = WIDTH[src], WIDTH[dst]
    if x.__class__ is int:
        x &= (1 << ws) - 1
        v = x - (1 << ws) if src[0] == "s" and x >> (ws - 1) else x
        if sat:
            lo, hi = (
                (-(1 << (wd - 1)), (1 << (wd - 1)) - 1) if dst[0] == "s" else (0, (1 << wd) - 1)
            )
            v = max(lo, min(hi, v))
        return v & ((1 << wd) - 1)
    v = x.astype(U[ws])
    if src[0] == "s":
        v = v.view(S[ws])
    if sat:
        info = np.iinfo((S if dst[0] == "s" else U)[wd])
        v = np.array([max(info.min, min(info.max, int(t))) for t in v], object)
        return v.astype((S if dst[0] == "s" else U)[wd]).view(U[wd])
    return v.astype((S if src[0] == "s" else U)[wd]).view(U[wd])


@rt
def cvt_if(x, src, dst, rnd):
    """Integer to float."""
    ws = WIDTH[src]
    scalar = x.__class__ is int
    v = np.atleast_1d(np.asarray(x, U[64]) if scalar else x).astype(U[ws])
    v = v.view(S[ws]) if src[0] == "s" else v
    if dst == "f64":
        r = v.astype(np.float64)
        if ws == 64 and rnd != "rn":
            raise EmitError("64-bit integer to f64 with a directed rounding is not emulated")
    elif ws <= 32:
        r = narrow(v.astype(np.float64), np.float32, rnd if dst == "f32" else "rn")
        if dst == "f16":
            r = narrow(v.astype(np.float64), np.float16, rnd).astype(np.float32)
    else:
        r = np.array([_int_to_f32(int(t), rnd) for t in v], np.float32)
    out = encode(r, dst)
    return int(out[0]) if scalar and np.ndim(out) else out


def _int_to_f32(v, rnd):
    """64-bit integer to float32 with one rounding: sticky bit, then round from float64."""
    a = abs(v)
    drop = max(0, a.bit_length() - 40)
    if drop:
        a = (a >> drop << drop) | ((1 << drop) if a & ((1 << drop) - 1) else 0)
    return narrow(np.float64(-a if v < 0 else a), np.float32, rnd)


@rt
def cvt_fi(x, src, dst, rnd, ftz):
    """Float to integer: round, clamp; NaN gives 0 (0x8000000000000000 for 64-bit results)."""
    scalar = x.__class__ is int
    v = np.atleast_1d(decode(x, src, ftz)).astype(np.float64)
    r = IRND[rnd](v)
    w = WIDTH[dst]
    lo, hi = (-(1 << (w - 1)), (1 << (w - 1)) - 1) if dst[0] == "s" else (0, (1 << w) - 1)
    out = np.array(
        [
            ((1 << 63) if w == 64 else 0)
            if np.isnan(t)
            else hi
            if t >= hi
            else lo
            if t <= lo
            else int(t)
            for t in r
        ],
        object,
    )
    out = np.array([int(t) & ((1 << w) - 1) for t in out], U[w])
    return int(out[0]) if scalar else out


@rt
def cvt_ff(x, src, dst, rnd, ftz, sat, relu):
    """Float to float, including rounding to an integral value (rni, rzi, rmi, rpi)."""
    scalar = x.__class__ is int
    v = np.atleast_1d(decode(x, src, ftz))
    if rnd in IRND:
        return _one(encode(IRND[rnd](v), dst, ftz, sat), scalar)
    if dst == "f64":
        return _one(encode(v.astype(np.float64), dst, False, sat), scalar)
    if dst == "f32":
        r = narrow(v, np.float32, rnd) if src == "f64" else v
        return _one(encode(r, dst, ftz, sat), scalar)
    if dst == "f16":
        r = narrow(v.astype(np.float64), np.float16, rnd).astype(np.float32)
        return _one(encode(r, dst, False, sat, relu), scalar)
    return _one(to_bf16(v.astype(np.float32), rnd, relu), scalar)


def _one(u, scalar):
    return int(np.atleast_1d(u)[0]) if scalar else u


def to_bf16(v, rnd, relu=False):
    """float32 array -> bf16 bits with rn or rz."""
    if relu:
        v = np.where(v > 0, v, np.where(np.isnan(v), v, np.float32(0)))
    if rnd == "rz":
        h = (v.view(np.uint32) >> 16).astype(np.uint16)
        return np.where(np.isnan(v), np.uint16(0x7FFF), h)
    return round_bf16(v)


def to_f16(v, rnd, relu=False):
    """float32 array -> f16 bits with rn or rz."""
    if relu:
        v = np.where(v > 0, v, np.where(np.isnan(v), v, np.float32(0)))
    r = narrow(v.astype(np.float64), np.float16, rnd) if rnd != "rn" else v.astype(np.float16)
    return np.where(np.isnan(v), np.uint16(0x7FFF), r.view(np.uint16))


@rt
def cvt_pack(hi, lo, dst, rnd, relu):
    """cvt.rn.bf16x2.f32 d, hi, lo (and f16x2): the first source lands in the upper half."""
    fn = to_bf16 if dst == "bf16x2" else to_f16
    if hi.__class__ is int and lo.__class__ is int:
        h = fn(np.array([lo, hi], np.uint32).view(np.float32), rnd, relu)
        return int(h[0]) | int(h[1]) << 16
    hi = (np.full(32, hi, np.uint32) if hi.__class__ is int else hi).view(np.float32)
    lo = (np.full(32, lo, np.uint32) if lo.__class__ is int else lo).view(np.float32)
    return fn(lo, rnd, relu) | (fn(hi, rnd, relu).astype(np.uint32) << 16)


@rt
def cvt_tf32(x, rnd):
    """f32 -> tf32: 10 mantissa bits, ties away (rna) or to even (rn)."""
    u = np.asarray(x, np.uint32)
    nan = (u & 0x7FFFFFFF) > 0x7F800000
    if rnd == "rna":
        r = (u + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    elif rnd == "rz":
        r = u & np.uint32(0xFFFFE000)
    else:
        r = (u + (((u >> 13) & 1) + 0xFFF).astype(np.uint32)) & np.uint32(0xFFFFE000)
    inf = (u & 0x7FFFFFFF) == 0x7F800000
    r = np.where(nan, np.uint32(0x7FFFFFFF), np.where(inf, u, r)).astype(np.uint32)
    return int(r) if r.ndim == 0 else r


@rt
def cvt_bf16x2(hi, lo):
    """Fast path of cvt.rn.bf16x2.f32."""
    return cvt_pack(hi, lo, "bf16x2", "rn", False)


@rt
def cvt_up(x, ty):
    """bf16 or f16 to f32: exact; NaN becomes canonical."""
    if x.__class__ is int:
        return cvt_ff(x, ty, "f32", "rn", False, False, False)
    if ty == "bf16":
        return encode(bf16_to_f32(x), "f32")
    return encode(x.view(np.float16).astype(np.float32), "f32")


@op("cvt", cls="cvt")
def emit_cvt(cg, ins):
    parts = ins.parts[1:]
    tys = [p for p in parts if p in WIDTH or p in ("e4m3x2", "e5m2x2")]
    mods = [p for p in parts if p not in tys]
    for m in mods:
        if m not in RND and m not in IRND and m not in ("ftz", "sat", "relu", "satfinite", "rna"):
            raise EmitError(f"modifier .{m} is not emulated")
    if len(tys) != 2:
        raise EmitError("two types are expected")
    dst, src = tys
    rnd = next((m for m in mods if m in RND or m in IRND or m == "rna"), None)
    ftz, sat, relu = "ftz" in mods, "sat" in mods, "relu" in mods
    if dst in ("bf16x2", "f16x2") and src == "f32":
        d, a, b = cg.need(3)
        hi, lo = cg.src(a, "f32"), cg.src(b, "f32")
        if dst == "bf16x2" and rnd == "rn" and not relu:
            cg.result(d, f"cvt_bf16x2({hi}, {lo})")
        else:
            cg.result(d, f"cvt_pack({hi}, {lo}, {dst!r}, {rnd!r}, {relu})")
        return
    if dst in ("e4m3x2", "e5m2x2"):
        ops = cg.need(2, 3)
        if src == "f32":
            hi, lo = cg.src(ops[1], "f32"), cg.src(ops[2], "f32")
        else:
            t = cg.let(f"unpack({cg.src(ops[1], 'b32')}, 2, 16)")
            lo, hi = (f"cvt_up({t}[{k}], 'f16')" for k in (0, 1))
        cg.result(ops[0], f"cvt_fp8_pack({hi}, {lo}, {dst[:4]!r}, {relu})", 16)
        return
    if dst == "f16x2" and src in ("e4m3x2", "e5m2x2"):
        d, a = cg.need(2)
        cg.result(d, f"cvt_fp8_unpack({cg.src(a, 'b16')}, {src[:4]!r})")
        return
    d, a = cg.need(2)
    if dst == "tf32":
        cg.result(d, f"cvt_tf32({cg.src(a, 'f32')}, {rnd!r})")
        return
    x = (
        cg.src(a, src)
        if not (a.kind == "reg" and a.reg.width > WIDTH[src])
        else (f"narrow{WIDTH[src]}({cg.reg(a.reg)})")
    )
    w = WIDTH[dst]
    if src in INT and dst in INT:
        e = f"cvt_ii({x}, {src!r}, {dst!r}, {sat})"
        if d.kind == "reg" and d.reg.width > w and dst[0] == "s":  # extends to the register
            e = f"cvt_ii({e}, {dst!r}, 's{d.reg.width}', False)"
            w = d.reg.width
        cg.result(d, e, w)
    elif src in INT and dst in FLT:
        cg.result(d, f"cvt_if({x}, {src!r}, {dst!r}, {rnd or 'rn'!r})", w)
    elif src in FLT and dst in INT:
        if rnd not in IRND:
            raise EmitError("float to integer needs .rni, .rzi, .rmi or .rpi")
        e = f"cvt_fi({x}, {src!r}, {dst!r}, {rnd!r}, {ftz})"
        if d.kind == "reg" and d.reg.width > w and dst[0] == "s":
            e, w = f"cvt_ii({e}, {dst!r}, 's{d.reg.width}', False)", d.reg.width
        cg.result(d, e, w)
    elif src in FLT and dst in FLT:
        if src in ("bf16", "f16") and dst == "f32" and rnd is None and not sat:
            cg.result(d, f"cvt_up({x}, {src!r})")
        else:
            cg.result(d, f"cvt_ff({x}, {src!r}, {dst!r}, {rnd or 'rn'!r}, {ftz}, {sat}, {relu})", w)
    else:
        raise EmitError(f"conversion from .{src} to .{dst} is not emulated")
