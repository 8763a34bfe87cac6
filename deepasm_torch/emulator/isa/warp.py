"""Exchange between the lanes of a warp: shfl, vote, match, redux, elect."""

import numpy as np

from ..codegen.registry import BLOCKED, op, rt
from ..errors import EmitError
from ..values import lanes
from .control import always
from .sregs import LANE, bits


@rt
def members(f, mask, p, pc):
    """True when every live lane named by the member mask is in this fragment."""
    if mask.__class__ is not int or mask != 0xFFFFFFFF:
        named = (np.asarray(mask, np.int64) >> LANE.astype(np.int64) & 1).astype(bool)
        absent = f.active(p) & ~named
        if absent.any():
            f.run.log.at(
                "divergence", f, pc, f"lanes {bits(absent):#x} run this but are not in its mask"
            )
    if f.full or len(f.warp.frags) == 1:
        return True
    if mask.__class__ is not int:
        mask = int(mask[f.mask][0])
    want = mask & bits(f.warp.live)
    have = bits(f.mask)
    if want & ~have == 0:
        return True
    for g in f.warp.frags:
        if g is not f and bits(g.mask) & want and (g.pc <= f.pc):
            return f.block(f.warp.converge)
    f.run.log.at(
        "divergence",
        f,
        pc,
        f"lanes {want & ~have:#x} of the member mask passed this instruction already",
    )
    return True


def sync_mask(cg, o, p):
    """Emit the wait for the lanes of a member mask, under guard ``p``."""
    m = cg.let(cg.src(o, "b32"))
    cg.line(f"if not members(f, {m}, {p}, {cg.pc()}): return {BLOCKED}")
    return m


@rt
def shfl(f, a, b, c, mode, mask, pc):
    """shfl.sync: (values, in-range predicate)."""
    if a.__class__ is int and (mode == "idx" or b.__class__ is not int):
        pass
    src = lanes(a, 32)
    bval = 0 if a.__class__ is int and f.lane is not None else b
    lane = LANE.astype(np.int64)
    cl = np.asarray(c, np.int64)
    bv = np.asarray(b, np.int64) & 31
    del bval
    seg = (cl >> 8) & 31
    clamp = cl & 31
    maxl = (lane & seg) | (clamp & ~seg)
    minl = lane & seg
    if mode == "up":
        j = lane - bv
        ok = j >= maxl
    elif mode == "down":
        j = lane + bv
        ok = j <= maxl
    elif mode == "bfly":
        j = lane ^ bv
        ok = j <= maxl
    else:
        j = minl | (bv & ~seg)
        ok = j <= maxl
    j = np.where(ok, j, lane)
    if not f.full:
        dead = ~f.mask[j] & f.mask
        if dead.any():
            f.run.log.at("shfl-inactive", f, pc, "reads a lane that does not take part")
    r = src[j]
    if f.lane is not None:
        return int(r[f.lane]), bool(np.broadcast_to(ok, 32)[f.lane])
    act = r if f.full else r[f.mask]
    if mode == "idx" and (act == act[0]).all():
        r = int(act[0])
    return r, np.broadcast_to(ok, 32)


@op("shfl", cls="sync", blocking=always)
def emit_shfl(cg, ins):
    if "sync" not in ins.parts:
        raise EmitError("shfl without .sync is not emulated")
    d, a, b, c, m = cg.need(5)
    mode = ins.parts[2]
    if mode not in ("up", "down", "bfly", "idx"):
        raise EmitError(f"mode .{mode} is not emulated")
    p = cg.open_guard()
    mm = sync_mask(cg, m, p)
    t = cg.name()
    cg.line(
        f"{t} = shfl(f, {cg.src(a, 'b32')}, {cg.src(b, 'b32')}, {cg.src(c, 'b32')}, {mode!r}, "
        f"{mm}, {cg.pc()})"
    )
    outs = d.items if d.kind == "pair" else [d]
    for k, o in enumerate(outs):
        if o.kind != "sink":
            cg.put(o, f"{t}[{k}]", p)
    cg.close_guard(p)


@rt
def vote(f, p, mode):
    """vote.sync over the lanes of the fragment."""
    x = np.broadcast_to(np.asarray(p, bool), 32) & f.mask
    if mode == "ballot":
        return bits(x)
    if mode == "all":
        return bool(x.sum() == f.n)
    if mode == "any":
        return bool(x.any())
    return bool(x.sum() in (0, f.n))


@op("vote", cls="sync", blocking=always)
def emit_vote(cg, ins):
    if "sync" not in ins.parts:
        raise EmitError("vote without .sync is not emulated")
    d, a, m = cg.need(3)
    mode = ins.parts[2]
    p = cg.open_guard()
    sync_mask(cg, m, p)
    cg.put(d, f"vote(f, {cg.src(a, 'pred')}, {mode!r})", p)
    cg.close_guard(p)


@rt
def match(f, a, mode):
    """match.any / match.all."""
    x = np.broadcast_to(np.asarray(a), 32)
    if mode == "all":
        act = x[f.mask]
        same = bool((act == act[0]).all())
        return (bits(f.mask) if same else 0), same
    out = np.zeros(32, np.uint32)
    for v in np.unique(x[f.mask]):
        m = (x == v) & f.mask
        out[m] = bits(m)
    return (int(out[f.lane]) if f.lane is not None else out), True


@op("match", cls="sync", blocking=always)
def emit_match(cg, ins):
    d, a, m = cg.need(3)
    p = cg.open_guard()
    sync_mask(cg, m, p)
    t = cg.name()
    cg.line(f"{t} = match(f, {cg.src(a, ins.parts[-1])}, {ins.parts[1]!r})")
    for k, o in enumerate(d.items if d.kind == "pair" else [d]):
        if o.kind != "sink":
            cg.put(o, f"{t}[{k}]", p)
    cg.close_guard(p)


@rt
def redux(f, a, kind, ty):
    """redux.sync: reduction over the fragment's lanes."""
    x = lanes(a, 32)[f.mask]
    if kind in ("min", "max") and ty[0] == "s":
        x = x.view(np.int32)
    r = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[kind].reduce(x)
    return int(r) & 0xFFFFFFFF


@op("redux", cls="sync", blocking=always)
def emit_redux(cg, ins):
    d, a, m = cg.need(3)
    if ins.parts[-1] not in ("s32", "u32", "b32"):
        raise EmitError(f"redux.sync on .{ins.parts[-1]} is not emulated")
    p = cg.open_guard()
    sync_mask(cg, m, p)
    cg.put(d, f"redux(f, {cg.src(a, 'b32')}, {ins.parts[2]!r}, {ins.parts[-1]!r})", p)
    cg.close_guard(p)


@rt
def elect(f, mask):
    """elect.sync: the lowest active lane of the member mask leads; (lane, predicate)."""
    want = f.mask if mask == 0xFFFFFFFF else f.mask & ((mask >> LANE) & 1).astype(bool)
    k = int(want.argmax())
    return k, (f.lane == k if f.lane is not None else LANE == k)


@op("elect", cls="sync", blocking=always)
def emit_elect(cg, ins):
    d, m = cg.need(2)
    p = cg.open_guard()
    mm = sync_mask(cg, m, p)
    t = cg.name()
    cg.line(f"{t} = elect(f, {mm})")
    for k, o in enumerate(d.items if d.kind == "pair" else [d]):
        if o.kind != "sink":
            cg.put(o, f"{t}[{k}]", p)
    cg.close_guard(p)
