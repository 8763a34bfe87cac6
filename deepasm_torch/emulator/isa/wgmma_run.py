"""wgmma at run time: issue, commit, wait, and the state of accumulator registers."""

import numpy as np

from ..codegen.registry import rt
from ..fragments import c_matrix, c_registers
from ..warpgroup import (
    LAZY,
    OK,
    PENDING,
    READING,
    UNDEF,
    MmaOp,
    all_in_state,
    row_index,
    set_state,
    state,
)


def materialise(w, key):
    """Move a register list's values from the matrix into the warp's registers."""
    g, q = w.mma.group, w.mma.quarter
    rows, _n, d_ty = key
    d = g.acc[key][16 * q : 16 * q + 16]
    if d_ty == "f16":
        u = c_registers(d).astype(np.float16).view(np.uint16).astype(np.uint32)
        u = u.reshape(-1, 2, 32)
        regs = u[:, 0] | (u[:, 1] << 16)
    elif d_ty == "s32":
        regs = c_registers(d.astype(np.int32)).view(np.uint32)
    else:
        regs = c_registers(d).view(np.uint32)
    w.V[row_index(rows)] = regs
    set_state(w, rows, OK)
    w.touched = True


def lazy_key(w, row):
    """Register list that holds a row in matrix form."""
    for key in w.mma.group.acc:
        rows = key[0]
        if row in rows and w.vstate[row] == LAZY:
            return key
    raise KeyError(row)


@rt
def vread(f, row, pc):
    """A row is about to be read by an ordinary instruction."""
    w = f.warp
    s = w.vstate[row]
    if s in (OK, READING):
        return
    if s == LAZY:
        materialise(w, lazy_key(w, row))
        return
    if s == UNDEF:
        f.run.log.at(
            "uninit-register",
            f,
            pc,
            f"{f.run.program.row_names[row]} is read but was never written",
        )
    else:
        f.run.log.at(
            "accumulator-touched", f, pc, "reads a register of a wgmma that was not waited for"
        )
    w.vstate[row] = OK


@rt
def vreads(f, rows, pc):
    """The rows of a run are about to be read; the first instruction's ``pc`` stands for all."""
    s = f.warp.vstate
    for k, row in enumerate(rows):
        if s[row]:
            vread(f, row, pc + k)


@rt
def vwrite(f, row, pc):
    """A row is about to be written by an ordinary instruction."""
    w = f.warp
    s = w.vstate[row]
    if s == LAZY:
        materialise(w, lazy_key(w, row))
    elif s in (PENDING, READING):
        f.run.log.at(
            "accumulator-touched", f, pc, "writes a register of a wgmma that was not waited for"
        )
    w.vstate[row] = OK
    w.touched = True


@rt
def vwrites(f, rows, pc):
    """The rows of a run are about to be written."""
    s = f.warp.vstate
    for k, row in enumerate(rows):
        if s[row]:
            vwrite(f, row, pc + k)


@rt
def vset(f, V, rows, x, p):
    """Masked write of one row or several (partial fragments and divergent predicates)."""
    m = f.active(p)
    full = np.broadcast_to(np.asarray(x, np.uint32), V[rows].shape)
    V[rows] = np.where(m, full, V[rows])


@rt
def wgmma_fence(f, pc):
    state(f)
    f.warp.touched = False


@rt
def wgmma_issue(f, rows, n, d_ty, a_ty, b_ty, a, arows, b, scale_d, sa, sb, ta, tb, pc):
    """One warp's issue of wgmma.mma_async."""
    w = f.warp
    log = f.run.log
    if f.n != 32:
        log.at("divergence", f, pc, f"wgmma executed by {f.n} of 32 lanes")
    m = state(f)
    if scale_d.__class__ is not bool:
        scale_d = bool(scale_d[f.mask].all()) if hasattr(scale_d, "all") else bool(scale_d)
    a = a if a is None or a.__class__ is int else int(a[f.mask][0])
    b = b if b.__class__ is int else int(b[f.mask][0])
    key = (rows, n, d_ty)
    g, k, q = m.group, m.issued, m.quarter
    op = MmaOp()
    op.a, op.b, op.scale_d, op.pc = a, b, scale_d, pc
    if k - g.first == len(g.ops):
        op.key, op.rows, op.n, op.d_ty, op.a_ty, op.b_ty = key, rows, n, d_ty, a_ty, b_ty
        op.scale_a, op.scale_b, op.trans = sa, sb, (ta, tb)
        op.afrag, op.arows, op.issued, op.clock = [None] * 4, arows, 0, None
        g.ops.append(op)
    else:
        first = g.op(k)
        if not first.same(op):
            log.at(
                "wgmma-mismatch",
                f,
                pc,
                "the four warps of the warpgroup do not issue the same "
                "wgmma (descriptors, scale-d or place differ)",
            )
        op = first
    if w.touched:
        log.at("missing-wgmma-fence", f, pc, "registers were accessed since the last wgmma.fence")
        w.touched = False
    vs = w.vstate
    st = vs[rows[0]]
    one_state = all_in_state(vs, rows, st)
    if scale_d:
        if not one_state or (st == LAZY and key not in g.acc):
            for r in rows:
                if vs[r] == LAZY:
                    materialise(w, lazy_key(w, r))
            w.touched = False
        if any(vs[r] == UNDEF for r in rows) if not one_state else st == UNDEF:
            log.at("uninit-register", f, pc, "accumulates into registers that were never written")
        if vs[rows[0]] in (OK, UNDEF):
            g.matrix(op)[16 * q : 16 * q + 16] = from_registers(w.V[row_index(rows)], d_ty)
    set_state(w, rows, PENDING)
    if arows:
        issue_a_fragment(f, op, q, arows, pc)
    m.pending.append((k, key, arows, pc))
    m.issued += 1
    op.clock = w.clock.copy() if op.clock is None else np.minimum(op.clock, w.clock)
    op.issued += 1
    if op.issued == 4:
        g.check_reads(op)
        if not f.run.policy.late_reads:
            g.run_until(k + 1)
        g.wake()


def issue_a_fragment(f, op, q, arows, pc):
    """Take the A operand from registers; they belong to the tensor core until the wait."""
    w, log = f.warp, f.run.log
    vs = w.vstate
    for r in arows:
        if vs[r] == UNDEF:
            log.at("uninit-register", f, pc, "an A-fragment register was never written")
        elif vs[r] == LAZY:
            materialise(w, lazy_key(w, r))
            log.at(
                "missing-wgmma-fence",
                f,
                pc,
                "the A fragment is an accumulator that no wgmma.fence follows",
            )
        elif vs[r] == PENDING:
            log.at(
                "accumulator-touched",
                f,
                pc,
                "an A fragment is the accumulator of a pending wgmma",
            )
        vs[r] = READING
    op.afrag[q] = w.V[list(arows)].copy()


def from_registers(regs, d_ty):
    """(n, 32) raw registers of one warp -> (16, N) accumulator rows."""
    if d_ty == "f16":
        u = regs.view(np.uint16).reshape(regs.shape[0], 32, 2).transpose(0, 2, 1).reshape(-1, 32)
        return c_matrix(np.ascontiguousarray(u)).view(np.float16).astype(np.float32)
    if d_ty == "s32":
        return c_matrix(regs).view(np.int32)
    return c_matrix(regs).view(np.float32)


@rt
def wgmma_commit(f, pc):
    m = state(f)
    m.groups.append(m.issued)


@rt
def wgmma_wait(f, n, pc):
    """wait_group N; False when sister warps have not issued the groups yet."""
    w = f.warp
    m = state(f)
    if len(m.groups) <= n:
        return True
    k = m.groups[len(m.groups) - n - 1]
    g = m.group
    if k > g.first and (k - g.first > len(g.ops) or g.op(k - 1).issued < 4):
        return f.block(g)
    g.run_until(k)
    del m.groups[: len(m.groups) - n]
    still = [t for t in m.pending if t[0] >= k]
    busy = {t[1] for t in still}
    vs = w.vstate
    for t in m.pending:
        if t[0] >= k:
            break
        if t[1] not in busy:
            set_state(w, t[1][0], LAZY)
            busy.add(t[1])
        if t[2]:
            for r in t[2]:
                if vs[r] == READING:
                    vs[r] = OK
    for t in still:
        if t[2]:
            for r in t[2]:
                vs[r] = READING
    m.pending = still
    w.clock[g.agent] = max(int(w.clock[g.agent]), k)
    return True
