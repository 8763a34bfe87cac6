"""cp.async of 4, 8 or 16 bytes per thread: run-time part."""

import numpy as np

from ..codegen.registry import rt
from ..copygroups import CpGroups
from ..global_shadow import Accessor
from ..mbarrier import lane_value, mbar_at
from .access import pattern
from .global_memory import global_setup
from .tensor_copy import shared_addr


def _copied(f, size, src_size, m, pc):
    """Bytes each lane really reads: an int when all lanes agree, else an array."""
    if src_size is None:
        return size
    n = src_size if src_size.__class__ is int else src_size.astype(np.int64)
    if np.max(n if n.__class__ is int else n[m]) > size:
        f.run.log.at("cp-async-size", f, pc, f"source size above {size} bytes")
        n = min(n, size) if n.__class__ is int else np.minimum(n, size)
    if n.__class__ is not int:
        low = int(n[m].min())
        n = low if low == int(n[m].max()) else n
    return int(n) if np.ndim(n) == 0 else n


@rt
def cp_async(f, dst, src, size, src_size, p, pc):
    """cp.async global -> shared of 4, 8 or 16 bytes with zero fill beyond ``src_size``."""
    run, w = f.run, f.warp
    if dst.__class__ is int:
        dst = np.full(32, dst, np.uint32)
    if src.__class__ is int:
        src = np.full(32, src, np.uint64)
    m = f.active(p)
    whole = f.full and p is True
    pat, cta = pattern(f, dst, size, 1, p, pc, "cp.async")
    if pat is None:
        return
    if cta is None:
        run.log.at("oob-shared", f, pc, "cp.async into several CTAs")
        return
    n = _copied(f, size, src_size, m, pc)
    g = cp_groups(f)
    if cta.shadow is not None:
        cta.shadow.write(pat.granules, w.cp_agent, g.current, w.clock, pc, w.who)
    run.counters.shared(pat, "cp_async_shared")
    mem = run.memory
    view = cta.smem.view[size]
    go = keep = None
    if n.__class__ is int and n == size:
        go, gm, al = global_setup(f, src, size, True if whole else m, pc, "cp.async")
        good = None if go is None or len(go) == pat.n else gm
    elif n.__class__ is not int or n:
        part = m & (n > 0) if n.__class__ is not int else m
        go, gm, al = global_setup(f, src, 1, part, pc, "cp.async")
        good = gm
        keep = np.arange(size) < np.broadcast_to(n, 32)[gm][:, None] if go is not None else None
    if go is not None:
        run.counters.global_(go, size, "cp_async")
        if run.global_shadow is not None and not run.global_shadow.quiet(al):
            run.global_shadow.read(Accessor(w), go, size if keep is None else 1, pc, al)

    def done():
        if go is None:
            view[pat.index] = 0
        elif keep is None and good is None:
            view[pat.index] = mem.view[size][go // size]
        else:
            data = np.zeros((32, size), np.uint8)
            at = np.minimum(go[:, None] + np.arange(size), len(mem.bytes) - 1)
            data[good] = mem.bytes[at] if keep is None else np.where(keep, mem.bytes[at], 0)
            view[pat.index] = data[m].view(view.dtype)[:, 0]
        if cta.smem.overlay:  # compilers rely on tensor cores seeing waited-for copies unfenced
            idx = pat.byte_index()
            cta.smem.async_bytes[idx] = cta.smem.bytes[idx]

    g.add(done)


def cp_groups(f):
    """cp.async groups of the fragment's warp."""
    w = f.warp
    if w.cp is None:
        w.cp = CpGroups(w)
    return w.cp


@rt
def cp_commit(f, pc):
    cp_groups(f).commit()


@rt
def cp_wait(f, n, pc):
    cp_groups(f).wait(n)


@rt
def cp_mbar(f, a, noinc, p, pc):
    """cp.async.mbarrier.arrive: arrive once the thread's earlier copies are complete."""
    w = f.warp
    g = cp_groups(f)
    for lane in f.lanes(p):
        b = mbar_at(f, shared_addr(f, lane_value(a, lane)), pc)
        if b is None:
            continue
        if not noinc:
            b.pending += 1
        clock = w.clock.copy()
        clock[w.cp_agent] = g.current

        def arrive(b=b, clock=clock):
            np.maximum(b.clock, clock, out=b.clock)
            b.arrive(1, f.run.log, pc, w.who)

        g.on_complete(arrive)
    g.flush()
    w.clock[w.agent] += 1
