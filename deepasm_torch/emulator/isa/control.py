"""Branches, exits, traps and instructions without an effect here."""

import numpy as np

from ..codegen.registry import EXITED, SPLIT, op, rt
from ..errors import DeviceFault, EmitError
from ..machine import Fragment
from ..values import collapse


def always(ins):
    """Every form of the opcode can block."""
    return True


@op("bra", cls="branch")
def emit_bra(cg, ins):
    (t,) = cg.need(1)
    if t.kind != "label":
        raise EmitError("a label is expected")
    k = cg.block_of[t.value]
    if ins.pred is None:
        cg.line(f"return {k}")
        return
    p = cg.guard()
    nxt = cg.block_index + 1
    cg.line(f"if {p} is True: return {k}")
    cg.line(f"if {p} is False: return {nxt}")
    cg.line(f"return branch(f, {p}, {k}, {nxt})")


@op("brx", cls="branch")
def emit_brx(cg, ins):
    """brx.idx: branch through a table; an index past its end is undefined, here a fault."""
    i, table = cg.need(2)
    if ins.pred is not None:
        raise EmitError("a guard predicate on brx is not emulated")
    labels = cg.entry.tables.get(table.value)
    if not labels or None in labels:
        raise EmitError(f"{table.name} is not a .branchtargets table")
    blocks = tuple(cg.block_of[x] for x in labels)
    cg.line(f"return branch_table(f, {cg.src(i, 'u32')}, {blocks}, {cg.pc()})")


@rt
def branch_table(f, index, blocks, pc):
    """Next block of an indexed branch; splits the fragment as often as lanes disagree."""
    if index.__class__ is not int:
        index = collapse(index[f.mask]) if f.lane is None else int(index[f.lane])
    if index.__class__ is int:
        if index >= len(blocks):
            fault(f, pc, f"index {index} of a branch table of {len(blocks)} targets")
        return blocks[index]
    if int(index.max()) >= len(blocks):
        fault(f, pc, f"index {int(index.max())} of a branch table of {len(blocks)} targets")
    full = np.zeros(32, np.int64)
    full[f.mask] = index
    first, *others = np.unique(index).tolist()
    w = f.warp
    for k in others:
        w.frags.append(Fragment(w, f.mask & (full == k), blocks[k], f.R[:]))
    f.R = f.R[:]
    f.pc = blocks[first]
    f.set_mask(f.mask & (full == first))
    return SPLIT


@op("ret", "exit", cls="branch")
def emit_exit(cg, ins):
    if ins.pred is None:
        cg.line("f.warp.live &= ~f.mask")
        cg.line(f"return {EXITED}")
        return
    p = cg.guard()
    nxt = cg.block_index + 1
    cg.line(f"if {p} is False: return {nxt}")
    cg.line(f"return leave(f, {p}, {nxt})")


@op("trap", cls="branch")
def emit_trap(cg, ins):
    p = cg.open_guard()
    cg.line(f"if f.lanes({p}): fault(f, {cg.pc()}, 'trap')")
    cg.close_guard(p)
    if ins.pred is None:
        cg.line(f"return {EXITED}")
    else:
        cg.line(f"return {cg.block_index + 1}")


@op("brkpt", "nanosleep", "pmevent", cls="other")
def emit_nop(cg, ins):
    cg.line("pass")


@rt
def branch(f, p, taken, fall):
    """Conditional branch on a per-lane predicate; splits the fragment when lanes disagree."""
    t = f.mask & p
    n = int(np.count_nonzero(t))
    if n == 0:
        return fall
    if n == f.n:
        return taken
    w = f.warp
    other = Fragment(w, t, taken, f.R[:])
    f.R = f.R[:]
    f.pc = fall
    f.set_mask(f.mask & ~t)
    w.frags.append(other)
    w.merge_at(f)
    if other in w.frags:
        w.merge_at(other)
    return SPLIT


@rt
def leave(f, p, nxt):
    """Predicated exit: the lanes with ``p`` leave."""
    gone = f.active(p)
    n = int(np.count_nonzero(gone))
    if n == 0:
        return nxt
    f.warp.live &= ~gone
    if n == f.n:
        return EXITED
    f.R = f.R[:]
    f.set_mask(f.mask & ~gone)
    return nxt


@rt
def settle(f, p):
    """A guard whose active lanes agree, as a bool; else unchanged."""
    if p.__class__ is bool:
        return p
    n = int(np.count_nonzero(p[f.mask] if f.lane is None else p[f.lane]))
    return False if n == 0 else True if n == f.n else p


@rt
def aligned(f, pc, p=True):
    """All live lanes of the warp must execute this together; False means: wait for siblings."""
    w = f.warp
    if p is not True and p is not False and not p[f.mask].all():
        f.run.log.at("divergence", f, pc, "an .aligned instruction is executed by some lanes only")
        return True
    if len(w.frags) == 1:
        return True
    if any(g.pc < f.pc or g.pc == f.pc and g is not f for g in w.frags):
        return f.block(w.converge)
    f.run.log.at(
        "divergence",
        f,
        pc,
        f"an .aligned instruction is executed by {f.n} of {int(w.live.sum())} lanes; the"
        " others passed it",
    )
    return True


@rt
def fault(f, pc, message, address=None):
    """End the launch with a report, as the device would with an error."""
    f.run.log.at("fault", f, pc, message, address)
    ins = f.run.program.ins[pc]
    raise DeviceFault(f"{ins.where}: {ins.op}: {message}")
