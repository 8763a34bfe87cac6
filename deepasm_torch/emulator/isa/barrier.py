"""CTA and cluster barriers, fences, setmaxnreg, griddepcontrol."""

import numpy as np

from ..barriers import ClusterBarrier, NamedBarrier, RegisterPool
from ..codegen.registry import BLOCKED, op, rt
from ..errors import EmitError
from ..values import collapse
from .control import always, fault
from .sregs import bits
from .warp import sync_mask


@rt
def bar_sync(f, i, n, pc, is_sync, p):
    """Arrive at a named barrier (and wait when ``is_sync``); False means blocked."""
    if i.__class__ is not int:
        i = collapse(i[f.mask])
    if n is not None and n.__class__ is not int:
        n = collapse(n[f.mask])
    if not 0 <= i < 16:
        fault(f, pc, f"barrier {i} does not exist (0..15)")
    b = f.cta.named.get(i)
    if b is None:
        b = f.cta.named[i] = NamedBarrier(f.cta, i)
    return b.arrive(f, n, pc, is_sync)


@op("bar", "barrier", cls="sync", blocking=always)
def emit_bar(cg, ins):
    parts = ins.parts
    if parts[1] == "cluster":
        emit_cluster_barrier(cg, ins)
        return
    if parts[1:] == ["warp", "sync"]:
        p = cg.open_aligned_guard()
        m = sync_mask(cg, ins.ops[0], p)
        cg.line(f"warp_sync(f, {m})")
        cg.close_guard(p)
        return
    kind = next((x for x in parts[1:] if x in ("sync", "arrive", "red")), None)
    if kind is None:
        raise EmitError("sync, arrive or red is expected")
    p = cg.open_aligned_guard()
    if "aligned" in parts or parts[0] == "bar":
        cg.line(f"if not aligned(f, {cg.pc()}, {p}): return {BLOCKED}")
    if kind == "red":
        mode = parts[parts.index("red") + 1]
        d, i = ins.ops[0], ins.ops[1]
        rest = ins.ops[2:]
        n = cg.src(rest[0], "u32") if len(rest) == 2 else "None"
        x = cg.src(rest[-1], "pred")
        t = cg.name()
        cg.line(f"{t} = bar_red(f, {cg.src(i, 'u32')}, {n}, {cg.pc()}, {x}, {mode!r})")
        cg.line(f"if {t} is None: return {BLOCKED}")
        cg.put(d, t, p)
        cg.close_guard(p)
        return
    ops = cg.need(1, 2)
    n = cg.src(ops[1], "u32") if len(ops) == 2 else "None"
    if kind == "arrive" and n == "None":
        raise EmitError("arrive needs a thread count")
    cg.line(
        f"if not bar_sync(f, {cg.src(ops[0], 'u32')}, {n}, {cg.pc()}, {kind == 'sync'}, {p}): "
        f"return {BLOCKED}"
    )
    cg.close_guard(p)


@rt
def warp_sync(f, mask):
    """bar.warp.sync orders the accesses of the lanes it names; only a whole warp is tracked."""
    if mask.__class__ is int and bits(f.warp.live) & ~mask == 0:
        f.warp.syncs += 1


@rt
def bar_red(f, i, n, pc, x, mode):
    """bar.red: barrier plus reduction of a predicate over its threads."""
    b = f.cta.named.get(i)
    if b is None:
        b = f.cta.named[i] = NamedBarrier(f.cta, i)
    gen = f.token
    if gen is None:
        v = np.broadcast_to(np.asarray(x, bool), 32) & f.mask
        b.gen.count += int(v.sum())
        b.gen.threads += f.n
        gen = b.gen
    if not b.arrive(f, n, pc, True):
        return None
    if mode == "popc":
        return gen.count
    return gen.count == gen.threads if mode == "and" else gen.count > 0


def emit_cluster_barrier(cg, ins):
    p = cg.open_aligned_guard()
    if "aligned" in ins.parts:
        cg.line(f"if not aligned(f, {cg.pc()}, {p}): return {BLOCKED}")
    if "arrive" in ins.parts:
        cg.line(f"cluster_arrive(f, {cg.pc()}, {'relaxed' in ins.parts})")
    elif "wait" in ins.parts:
        cg.line(f"if not cluster_wait(f, {cg.pc()}): return {BLOCKED}")
    else:
        raise EmitError("arrive or wait is expected")
    cg.close_guard(p)


def _cluster(f):
    cl = f.cta.cluster
    if cl.barrier is None:
        cl.barrier = ClusterBarrier(cl)
    return cl.barrier


@rt
def cluster_arrive(f, pc, relaxed):
    _cluster(f).arrive(f, pc, relaxed)


@rt
def cluster_wait(f, pc):
    return _cluster(f).wait(f, pc)


@rt
def proxy_fence(f):
    """fence.proxy.async: generic writes ordered before it become visible to the async proxy."""
    w = f.warp
    c = w.clock
    writers, proxies = f.cta.cluster.clocks.proxies()
    c[proxies] = np.maximum(c[proxies], c[writers])
    for cta in f.cta.cluster.ctas:
        if cta.smem.overlay:
            cta.smem.publish(c)
    c[w.agent] += 1


@rt
def init_fence(f):
    """fence.mbarrier_init: this warp's mbarriers exist for the async proxy, and nothing else."""
    for b in f.cta.mbars.values():
        if b.init[0] == f.warp.agent:
            b.fenced = True


@rt
def memory_fence(f):
    """fence and membar: relaxed operations after it publish what is ordered before it."""
    fenced = f.cta.cluster.fenced
    np.maximum(fenced, f.warp.clock, out=fenced)


@op("fence", "membar", cls="sync")
def emit_fence(cg, ins):
    parts = ins.parts
    p = cg.open_guard()
    if "proxy" in parts:
        kind = parts[parts.index("proxy") + 1].split("::")[0]
        if kind in ("async", "alias"):
            cg.line("proxy_fence(f)")
        elif kind == "tensormap":
            a = cg.addr(ins.ops[0]) if ins.ops else None
            cg.line(f"tensormap_fence(f, {a}, {'release' in parts}, {p})")
        else:
            raise EmitError(f"fence.proxy.{kind} is not emulated")
    else:
        if "mbarrier_init" in parts:
            cg.line("init_fence(f)")
        cg.line("memory_fence(f)")
    cg.close_guard(p)


@op("setmaxnreg", cls="sync", blocking=always)
def emit_setmaxnreg(cg, ins):
    (n,) = cg.need(1)
    if n.kind != "imm" or n.value % 8 or not 24 <= n.value <= 256:
        raise EmitError("the register count must be a multiple of 8 in 24..256")
    inc = "inc" in ins.parts
    p = cg.open_aligned_guard()
    cg.line(f"if not aligned(f, {cg.pc()}, {p}): return {BLOCKED}")
    cg.line(f"if not setmaxnreg(f, {n.value}, {inc}, {cg.pc()}): return {BLOCKED}")
    cg.close_guard(p)


@rt
def setmaxnreg(f, n, inc, pc):
    """Move registers between a warp and the CTA's pool; .inc waits until the pool has them."""
    cta = f.cta
    if cta.pool is None:
        cta.pool = RegisterPool(cta)
    return cta.pool.change(f, n, inc, pc)


@rt
def grid_wait(f):
    """griddepcontrol.wait: the grid before this one is complete; passed on by barriers."""
    f.warp.clock[f.cta.cluster.grid_agent] = 1


@op("griddepcontrol", cls="sync")
def emit_griddep(cg, ins):
    if ins.parts[1] == "wait":
        cg.line("grid_wait(f)")
    elif ins.parts[1] != "launch_dependents":
        raise EmitError("wait or launch_dependents is expected")
    else:
        cg.line("pass")
