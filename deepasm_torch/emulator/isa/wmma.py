"""wmma.load, wmma.mma, wmma.store: the m16n16k16 shape with f16 and bf16 operands.

Fragments of wmma are opaque to a program, so the layout is the emulator's own: lane l holds eight
consecutive elements of row l / 2, in register order. A and B of f16 fill eight registers; the
second four repeat the first, so that element-wise code on a fragment works.
"""

import numpy as np

from ..codegen.registry import BLOCKED, op, rt
from ..errors import EmitError
from ..values import bf16_to_f32
from .control import always
from .global_memory import ld_global, st_global
from .loads import addr32, ld_class
from .matrix_moves import row_list
from .other_spaces import ld_generic, st_generic
from .shared import ld_shared, st_shared

LANES = np.arange(32)
LOAD = {"global": ld_global, "shared": ld_shared, "generic": ld_generic}
STORE = {"global": st_global, "shared": st_shared, "generic": st_generic}
BYTES = {"f16": 2, "bf16": 2, "f32": 4}


def _addresses(a, stride, es, shared):
    """Address of each lane's eight elements, along the contiguous dimension of memory."""
    off = (LANES // 2) * stride * es + LANES % 2 * 8 * es
    base = np.asarray(a).astype(np.uint64) if np.ndim(a) == 0 else a[0].astype(np.uint64)
    full = base + off.astype(np.uint64)
    return full.astype(np.uint32) if shared else full


def matrix(words, ty):
    """(registers, 32) words -> raw (16, 16) elements, rows along the lanes' memory rows."""
    per_lane = np.ascontiguousarray(words.T)
    raw = per_lane.view(np.uint16 if BYTES[ty] == 2 else np.uint32)
    return raw.reshape(16, 16)


def registers(raw):
    """Inverse of ``matrix``."""
    return np.ascontiguousarray(raw.reshape(32, 8)).view(np.uint32).T


@rt
def wmma_load(f, space, a, stride, ty, column_major, n, pc):
    """A 16x16 fragment: array (n, 32)."""
    es = BYTES[ty]
    stride = stride if stride.__class__ is int else int(stride[0])
    at = _addresses(a, stride, es, space == "shared")
    words = []
    for k in range(0, 8 * es, 16):
        words += LOAD[space](f, at + at.dtype.type(k), 4, 4, True, pc)
    w = np.stack([np.broadcast_to(np.asarray(x, np.uint32), 32) for x in words])
    if column_major:
        w = registers(np.ascontiguousarray(matrix(w, ty).T))
    return np.concatenate([w, w])[:n] if len(w) < n else w


@rt
def wmma_store(f, space, a, stride, values, ty, column_major, pc):
    """Store a 16x16 fragment."""
    es = BYTES[ty]
    stride = stride if stride.__class__ is int else int(stride[0])
    if column_major:
        values = registers(np.ascontiguousarray(matrix(values, ty).T))
    at = _addresses(a, stride, es, space == "shared")
    for k in range(0, 8 * es, 16):
        chunk = tuple(values[k // 4 : k // 4 + 4])
        STORE[space](f, at + at.dtype.type(k), chunk, 4, True, pc)


def _floats(words, ty):
    raw = matrix(words[: 4 if BYTES[ty] == 2 else 8], ty)
    if ty == "f16":
        return raw.view(np.float16).astype(np.float32)
    return bf16_to_f32(raw) if ty == "bf16" else raw.view(np.float32)


@rt
def wmma_mma(a, b, c, ab_ty, c_ty, d_ty):
    """d = a b + c on fragments of (registers, 32)."""
    r = _floats(a, ab_ty) @ _floats(b, ab_ty) + _floats(c, c_ty)
    if d_ty == "f16":
        return registers(r.astype(np.float16).view(np.uint16))
    return registers(r.astype(np.float32).view(np.uint32))


def _space(ins):
    s = ld_class(ins).removeprefix("ld.")
    if s not in LOAD:
        raise EmitError(f"wmma in .{s} memory is not emulated")
    return s


def _rows(cg, o, count):
    """Index expression of the rows a fragment is read from (registers may repeat)."""
    items = o.items if o.kind == "vec" else []
    rows = [x.reg.row if x.kind == "reg" else None for x in items]
    if None in rows or len(rows) != count:
        raise EmitError(f"{count} 32-bit registers expected")
    return cg.rows("read", rows)


@op("wmma", cls="mma", blocking=always)
def emit_wmma(cg, ins):
    parts = ins.parts
    if "m16n16k16" not in parts:
        shape = next((p for p in parts if p.startswith("m") and p[1:2].isdigit()), "?")
        raise EmitError(f"shape .{shape} is not emulated (m16n16k16 is)")
    p = cg.open_aligned_guard()
    cg.line(f"if not aligned(f, {cg.pc()}, {p}): return {BLOCKED}")
    {"load": _load, "store": _store, "mma": _mma}[parts[1]](cg, ins, p)
    cg.close_guard(p)


def _count(which, ty):
    """Registers of a fragment (PTX ISA): bf16 operands take four, f16 ones eight."""
    return 8 if ty == "f32" or (which in "ab" and ty == "f16") else 4


def _operand_type(ty):
    if ty not in BYTES:
        raise EmitError(f"operand type .{ty} is not emulated")
    return ty


def _load(cg, ins, p):
    which, ty = ins.parts[2], _operand_type(ins.parts[-1])
    d, a, *stride = ins.ops
    n = _count(which, ty)
    space = _space(ins)
    at = addr32(a, cg.addr(a)) if space == "shared" else cg.addr(a)
    step = cg.src(stride[0], "u32") if stride else "16"
    t = cg.name()
    col = "col" in ins.parts
    cg.line(f"{t} = wmma_load(f, {space!r}, {at}, {step}, {ty!r}, {col}, {n}, {cg.pc()})")
    if row_list(d.items) is None or len(d.items) != n:
        raise EmitError(f"{n} distinct 32-bit registers expected")
    cg.put_rows(d.items, t, p)


def _store(cg, ins, p):
    ty = _operand_type(ins.parts[-1])
    a, d, *stride = ins.ops
    space = _space(ins)
    at = addr32(a, cg.addr(a)) if space == "shared" else cg.addr(a)
    step = cg.src(stride[0], "u32") if stride else "16"
    values = f"V[{_rows(cg, d, _count('d', ty))}]"
    col = "col" in ins.parts
    cg.line(f"wmma_store(f, {space!r}, {at}, {step}, {values}, {ty!r}, {col}, {cg.pc()})")


def _mma(cg, ins, p):
    types = ins.parts[ins.parts.index("m16n16k16") + 1 :]
    if len(types) == 2:  # f16 operands: only d and c are named
        d_ty, c_ty, ab = types[0], types[1], "f16"
    else:
        d_ty, ab, c_ty = types[0], types[1], types[3]
    for t in (d_ty, c_ty, ab):
        _operand_type(t)
    d, a, b, c = cg.need(4)
    x, y = (f"V[{_rows(cg, o, 8 if ab == 'f16' else 4)}]" for o in (a, b))
    z = f"V[{_rows(cg, c, _count('c', c_ty))}]"
    t = cg.name()
    cg.line(f"{t} = wmma_mma({x}, {y}, {z}, {ab!r}, {c_ty!r}, {d_ty!r})")
    cg.put_rows(d.items, t, p)
