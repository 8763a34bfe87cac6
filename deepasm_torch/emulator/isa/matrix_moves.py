"""ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements between registers and memory."""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..machine import LANES
from ..shadow import SEVERAL
from .access import pattern

_ROW_LANES = {n: LANES < 8 * n for n in (1, 2, 4)}


def _rows(f, a, num, pc, what):
    """Pattern and CTA of the 8 * num row addresses of a matrix move."""
    if f.n != 32:
        f.run.log.at("divergence", f, pc, f"{what} executed by {f.n} of 32 lanes")
    a = np.full(32, a, np.uint32) if a.__class__ is int else a
    pat, cta = pattern(f, a, 16, 1, True if num == 4 else _ROW_LANES[num], pc, what)
    if pat is not None and cta is None:
        f.run.log.at("oob-shared", f, pc, "row addresses in different CTAs")
    return (None, None) if cta is None else (pat, cta)


@rt
def ldmatrix(f, a, num, trans, p, pc):
    """ldmatrix.m8n8: array (num, 32) of registers."""
    if p is False:
        return None
    pat, cta = _rows(f, a, num, pc, "ldmatrix")
    if pat is None:
        return np.full((num, 32), 0xFFFFFFFF, np.uint32)
    w = f.warp
    if cta.shadow is not None:
        cta.shadow.read(pat.granules, w.agent, w.epoch, w.clock, pc, w.who)
        cta.shadow.lanes_read(pat.granules, SEVERAL, w, pc)
    f.run.counters.shared(pat, "shared_load")
    d = cta.smem.view[16][pat.index]
    if trans:
        u = d.view(np.uint16).reshape(num, 8, 8).transpose(0, 2, 1)
        return np.ascontiguousarray(u).view(np.uint32).reshape(num, 32)
    return d.view(np.uint32).reshape(num, 32)


@rt
def stmatrix(f, a, vals, trans, p, pc):
    """stmatrix.m8n8 of ``vals``: a (num, 32) array, or one value per register."""
    if p is False:
        return
    num = len(vals)
    pat, cta = _rows(f, a, num, pc, "stmatrix")
    if pat is None:
        return
    w = f.warp
    if cta.shadow is not None:
        cta.shadow.write(pat.granules, w.agent, w.epoch, w.clock, pc, w.who)
        cta.shadow.lanes_write(pat.granules, SEVERAL, w, pc)
    f.run.counters.shared(pat, "shared_store")
    u = np.empty((num, 32), np.uint32)
    if vals.__class__ is tuple:
        for i, v in enumerate(vals):
            u[i] = v
    else:
        u[:] = vals
    if trans:
        u = np.ascontiguousarray(u.view(np.uint16).reshape(num, 8, 8).transpose(0, 2, 1))
    cta.smem.view[16][pat.index] = u.view(np.complex128).reshape(-1)
    if cta.smem.overlay:
        cta.smem.dirty.append((w.agent, w.epoch, pat.byte_index()))


def _num(ins):
    x = next((t for t in ins.parts if t in ("x1", "x2", "x4")), None)
    if x is None or "m8n8" not in ins.parts or "b16" not in ins.parts:
        raise EmitError("only .m8n8 .x1/.x2/.x4 .b16 is emulated")
    return int(x[1])


def _address(cg, a):
    addr = cg.addr(a)
    wide = a.base is not None and a.base.kind == "reg" and a.base.reg.width == 64
    return f"narrow32({addr})" if wide else addr


def row_list(regs):
    """Rows of registers that all live in the warp's block, or None."""
    rows = [x.reg.row if x.kind == "reg" else None for x in regs]
    return rows if len(rows) > 1 and None not in rows and len(set(rows)) == len(rows) else None


@op("ldmatrix", cls="ld.shared")
def emit_ldmatrix(cg, ins):
    num = _num(ins)
    d, a = cg.need(2)
    outs = d.items if d.kind == "vec" else [d]
    if len(outs) != num:
        raise EmitError(f"{num} destinations expected, {len(outs)} given")
    p = cg.open_guard()
    t = cg.name()
    cg.line(f"{t} = ldmatrix(f, {_address(cg, a)}, {num}, {'trans' in ins.parts}, {p}, {cg.pc()})")
    if row_list(outs) is not None:
        cg.put_rows(outs, t, p)
    else:
        for k, o in enumerate(outs):
            cg.put(o, f"{t}[{k}]", p)
    cg.close_guard(p)


@op("stmatrix", cls="st.shared")
def emit_stmatrix(cg, ins):
    num = _num(ins)
    a, s = cg.need(2)
    srcs = s.items if s.kind == "vec" else [s]
    if len(srcs) != num:
        raise EmitError(f"{num} values expected, {len(srcs)} given")
    p = cg.open_guard()
    addr = _address(cg, a)
    rows = row_list(srcs)
    if rows is not None:
        vals = f"V[{cg.rows('read', rows)}]"
    else:
        vals = "(" + ", ".join(cg.src(x, "b32") for x in srcs) + ",)"
    cg.line(f"stmatrix(f, {addr}, {vals}, {'trans' in ins.parts}, {p}, {cg.pc()})")
    cg.close_guard(p)


@rt
def movmatrix(a):
    """movmatrix.trans: transpose an 8x8 matrix held by the warp."""
    u = np.full(32, a, np.uint32) if a.__class__ is int else np.ascontiguousarray(a)
    u = u.view(np.uint16).reshape(8, 8).T
    return np.ascontiguousarray(u).view(np.uint32).reshape(32)


@op("movmatrix", cls="alu")
def emit_movmatrix(cg, ins):
    d, a = cg.need(2)
    cg.result(d, f"movmatrix({cg.src(a, 'b32')})")
