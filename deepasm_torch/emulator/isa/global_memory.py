"""Run-time part of global loads and stores."""

import numpy as np

from ..codegen.registry import rt
from ..global_shadow import Accessor
from ..memory import GLOBAL_BASE
from ..values import U
from .shared import POISON


def misaligned(f, pc, what, size, address):
    """Report a misaligned global access."""
    text = f"{what} of {size} bytes at a global address that is not a multiple of {size}"
    f.run.log.at("misaligned", f, pc, text, address)


def global_setup(f, a, size, p, pc, what):
    """Check a per-lane global access.

    Returns
    -------
    (offsets, mask, allocation)
        Arena offsets of the good active lanes, their lane mask, and the allocation that holds all
        of them or None; offsets are None when nothing may be accessed.
    """
    whole = f.full and p is True
    m = f.mask if p is True else f.active(p)
    off = (a if a.dtype == np.uint64 else a.astype(np.uint64)).view(np.int64) - GLOBAL_BASE
    act = off if whole else off[m]
    if act.size == 0:
        return None, None, None
    mem = f.run.memory
    if int(np.bitwise_or.reduce(act)) & (size - 1):
        misaligned(f, pc, what, size, int(act[int((act & (size - 1) != 0).argmax())]) + GLOBAL_BASE)
        return None, None, None
    lo, hi = int(act.min()), int(act.max()) + size
    al = mem.find(lo)
    if al is None or hi > al.end:
        al = None
        good = np.array(
            [mem.inside(int(x) + GLOBAL_BASE, int(x) + GLOBAL_BASE + size) for x in act]
        )
        if not good.all():
            addr = int(act[int((~good).argmax())]) + GLOBAL_BASE
            f.run.log.at("oob-global", f, pc, f"{what} of {size} bytes: {mem.describe(addr)}", addr)
            lanes = np.flatnonzero(m)[good]
            m = np.zeros(32, bool)
            m[lanes] = True
            act = act[good]
            if act.size == 0:
                return None, None, None
    if f.run.grid_dependent is not None:
        grid_check(f, al, act, pc)
    return act, m, al


def scalar_global(f, a, size, pc, what):
    """The same for one address; returns the arena offset or None."""
    mem = f.run.memory
    if a % size:
        misaligned(f, pc, what, size, a)
        return None
    if not mem.inside(a, a + size):
        f.run.log.at("oob-global", f, pc, f"{what} of {size} bytes: {mem.describe(a)}", a)
        return None
    if f.run.grid_dependent is not None:
        grid_check(f, mem.find(a - GLOBAL_BASE), a - GLOBAL_BASE, pc)
    return a - GLOBAL_BASE


def grid_check(f, al, off, pc):
    """A launch with a programmatic dependency must wait before it touches what it depends on."""
    names, w = f.run.grid_dependent, f.warp
    if w.clock[w.cta.cluster.grid_agent]:
        return
    if al is None:
        al = f.run.memory.find(int(np.min(off)))
    if al is not None and (names is True or al.name in names):
        text = (
            f"{al.name!r} is accessed before griddepcontrol.wait: the kernel before this one may"
            " still be running"
        )
        f.run.log.at("missing-grid-wait", f, pc, text, GLOBAL_BASE + int(np.min(off)))


@rt
def ld_global(f, a, nb, nv, p, pc, strong=False):
    """Global load of nv elements of nb bytes; ``strong`` loads synchronise (acquire)."""
    run = f.run
    mem, sh = run.memory, run.global_shadow
    if a.__class__ is int:
        o = scalar_global(f, a, nb * nv, pc, "load")
        if o is None:
            return [POISON[nb]] * nv
        run.counters.global_(np.array([o]), nb * nv, "global_load")
        if sh is not None:
            if strong:
                run.sync.acquire(f.warp, o)
            sh.read(Accessor(f.warp, strong=strong), o, nb * nv, pc)
        v = mem.view[nb]
        out = [v.item(o // nb + k) for k in range(nv)]
        if strong:
            run.poll(f, o, pc, out)
        return out
    off, m, al = global_setup(f, a, nb * nv, p, pc, "load")
    if off is None:
        return [np.full(32, POISON[nb], U[8 * nb])] * nv
    run.counters.global_(off, nb * nv, "global_load")
    if sh is not None and not sh.quiet(al):
        if strong:
            for o in set(off.tolist()):
                run.sync.acquire(f.warp, o)
        sh.read(Accessor(f.warp, strong=strong), off, nb * nv, pc, al)
    v = mem.view[nb]
    i = off // nb
    if strong:
        run.poll(f, int(off[0]), pc, v[i].tobytes())
    if len(i) == 32:
        return [v[i + k] for k in range(nv)]
    out = []
    for k in range(nv):
        r = np.full(32, POISON[nb], U[8 * nb])
        r[m] = v[i + k]
        out.append(r)
    return out


@rt
def st_global(f, a, vals, nb, p, pc, strong=False, release=False):
    """Global store; ``strong`` stores synchronise (``release``: with everything before)."""
    run = f.run
    mem, sh = run.memory, run.global_shadow
    nv = len(vals)
    if a.__class__ is int:
        lanes = f.lanes(p)
        if not lanes:
            return
        o = scalar_global(f, a, nb * nv, pc, "store")
        if o is None:
            return
        run.counters.global_(np.array([o]), nb * nv, "global_store")
        v = mem.view[nb]
        for k, x in enumerate(vals):
            v[o // nb + k] = (x if x.__class__ is int else int(x[lanes[-1]])) & POISON[nb]
        off, al = np.array([o]), None
    else:
        off, m, al = global_setup(f, a, nb * nv, p, pc, "store")
        if off is None:
            return
        run.counters.global_(off, nb * nv, "global_store")
        v = mem.view[nb]
        i = off // nb
        for k, x in enumerate(vals):
            if x.__class__ is int:
                x &= POISON[nb]
            elif len(i) != 32:
                x = x[m]
            v[i + k] = x
    run.stored()
    if sh is not None:
        sh.write(Accessor(f.warp, strong=strong), off, nb * nv, pc, al)
        if strong:
            for o in set(off.tolist()):
                run.sync.release(f.warp, o, release)
