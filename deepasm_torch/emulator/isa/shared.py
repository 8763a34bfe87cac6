"""Run-time part of shared-memory loads and stores."""

import numpy as np

from ..codegen.registry import rt
from ..values import U
from .access import pattern, scalar

POISON = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF, 8: (1 << 64) - 1, 16: 0}


@rt
def ld_shared(f, a, nb, nv, p, pc, strong=False):
    """Shared load of nv elements of nb bytes; list of ints or arrays.

    ``strong`` (volatile, relaxed, acquire) loads may meet concurrent writes: they synchronise.
    """
    w = f.warp
    if a.__class__ is int:
        cta = scalar(f, a, nb * nv, pc, "load")
        if cta is None:
            return [POISON[nb]] * nv
        o = a & 0xFFFFFF
        if cta.shadow is not None:
            sh = cta.shadow
            sh.read(sh.index(o, nb * nv), w.agent, w.epoch, w.clock, pc, w.who, strong=strong)
        f.run.counters.shared_one(o, nb * nv, "shared_load")
        v = cta.smem.view[nb]
        return [v.item(o // nb + k) for k in range(nv)]
    pat, cta = pattern(f, a, nb, nv, p, pc, "load")
    if pat is None:
        return [np.full(32, POISON[nb], U[8 * nb])] * nv
    if cta is None:  # the lanes address several CTAs
        out = [np.zeros(32, U[8 * nb]) for _ in range(nv)]
        for lane in f.lanes(p):
            for k, v in enumerate(ld_shared(f, int(a[lane]), nb, nv, True, pc)):
                out[k][lane] = v
        return out
    if cta.shadow is not None:
        cta.shadow.read(pat.granules, w.agent, w.epoch, w.clock, pc, w.who, strong=strong)
        if not strong:
            cta.shadow.lanes_read(pat.granules, pat.lane, w, pc)
    f.run.counters.shared(pat, "shared_load")
    v = cta.smem.view[nb]
    i = pat.index
    if pat.mask is None:
        return [v[i + k] if k else v[i] for k in range(nv)]
    out = []
    for k in range(nv):
        r = np.zeros(32, U[8 * nb])
        r[pat.mask] = v[i + k]
        out.append(r)
    return out


@rt
def st_shared(f, a, vals, nb, p, pc, strong=False):
    """Shared store of the values, one element of nb bytes each, side by side."""
    w = f.warp
    nv = len(vals)
    if a.__class__ is int:
        lanes = f.lanes(p)
        if lanes:
            vals = [x if x.__class__ is int else int(x[lanes[-1]]) for x in vals]
            store_one(f, a, vals, nb, pc, strong)
        return
    pat, cta = pattern(f, a, nb, nv, p, pc, "store")
    if pat is None:
        return
    if cta is None:
        for lane in f.lanes(p):
            one = [x if x.__class__ is int else int(x[lane]) for x in vals]
            store_one(f, int(a[lane]), one, nb, pc, strong)
        return
    if cta.shadow is not None:
        cta.shadow.write(pat.granules, w.agent, w.epoch, w.clock, pc, w.who, strong=strong)
        if not strong:
            cta.shadow.lanes_write(pat.granules, pat.lane, w, pc)
    f.run.counters.shared(pat, "shared_store")
    v = cta.smem.view[nb]
    i = pat.index
    for k, x in enumerate(vals):
        if x.__class__ is int:
            x &= POISON[nb]
        elif pat.mask is not None:
            x = x[pat.mask]
        v[i + k] = x
    if cta.smem.overlay:
        cta.smem.dirty.append((w.agent, w.epoch, pat.byte_index()))


def store_one(f, a, vals, nb, pc, strong=False):
    """Store of uniform values at one address."""
    w, n = f.warp, nb * len(vals)
    cta = scalar(f, a, n, pc, "store")
    if cta is None:
        return
    o = a & 0xFFFFFF
    sh = cta.shadow
    if sh is not None:
        sh.write(sh.index(o, n), w.agent, w.epoch, w.clock, pc, w.who, strong=strong)
    f.run.counters.shared_one(o, n, "shared_store")
    v = cta.smem.view[nb]
    for k, x in enumerate(vals):
        v[o // nb + k] = x & POISON[nb]
    if cta.smem.overlay:
        cta.smem.dirty.append((w.agent, w.epoch, slice(o, o + n)))
