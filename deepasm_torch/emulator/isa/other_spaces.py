"""Run-time part of parameter, local and generic accesses."""

import numpy as np

from ..codegen.registry import rt
from ..memory import GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE
from ..values import U
from .global_memory import ld_global, st_global
from .shared import POISON, ld_shared, st_shared


@rt
def ld_param(f, off, nb):
    """Read a parameter word (uniform)."""
    if nb == 4 and not off & 3:
        return f.run.words[off >> 2]
    return int.from_bytes(f.run.param_bytes[off : off + nb].tobytes(), "little")


@rt
def ld_param_at(f, a, nb, nv):
    """Parameter read through a computed address."""
    if a.__class__ is int:
        return [ld_param(f, a - PARAM_BASE + k * nb, nb) for k in range(nv)]
    out = []
    for k in range(nv):
        out.append(np.array([ld_param(f, int(x) - PARAM_BASE + k * nb, nb) for x in a], U[8 * nb]))
    return out


def _local(f, lane):
    key = (f.warp.index, lane)
    b = f.cta.local.get(key)
    if b is None:
        b = f.cta.local[key] = bytearray(b"\xff" * f.run.program.entry.local_size)
    return b


@rt
def ld_local(f, a, nb, nv, p, pc):
    """Local (per-thread) load."""
    out = [np.full(32, POISON[nb], U[8 * nb]) for _ in range(nv)]
    for lane in f.lanes(p):
        o = a if a.__class__ is int else int(a[lane])
        b = _local(f, lane)
        if o + nb * nv > len(b) or o % (nb * nv):
            f.run.log.at("oob-local", f, pc, "load outside the local variables", o)
            continue
        for k in range(nv):
            out[k][lane] = int.from_bytes(b[o + k * nb : o + (k + 1) * nb], "little")
    return [x.item(f.lane) for x in out] if f.lane is not None else out


@rt
def st_local(f, a, vals, nb, p, pc):
    """Local store."""
    for lane in f.lanes(p):
        o = a if a.__class__ is int else int(a[lane])
        b = _local(f, lane)
        if o + nb * len(vals) > len(b) or o % (nb * len(vals)):
            f.run.log.at("oob-local", f, pc, "store outside the local variables", o)
            continue
        for k, x in enumerate(vals):
            x = (x if x.__class__ is int else int(x[lane])) & POISON[nb]
            b[o + k * nb : o + (k + 1) * nb] = x.to_bytes(nb, "little")


def window(a):
    """Space of a generic address (int)."""
    for name, base in (
        ("global", GLOBAL_BASE),
        ("param", PARAM_BASE),
        ("shared", SHARED_BASE),
        ("local", LOCAL_BASE),
    ):
        if a >= base:
            return name, base
    return "global", 0


def shared_offset(a):
    """Shared-space address (32 bits) behind a generic one."""
    return a - SHARED_BASE if a.__class__ is int else (a - SHARED_BASE).astype(np.uint32)


@rt
def ld_generic(f, a, nb, nv, p, pc, strong=False):
    """Load through a generic address."""
    lanes = f.lanes(p)
    if not lanes:
        return [POISON[nb]] * nv
    name, base = window(a if a.__class__ is int else int(a[lanes[0]]))
    if name == "global":
        return ld_global(f, a, nb, nv, p, pc, strong)
    if name == "param":
        return ld_param_at(f, a, nb, nv)
    if name == "local":
        return ld_local(f, a - base, nb, nv, p, pc)
    return ld_shared(f, shared_offset(a), nb, nv, p, pc, strong)


@rt
def st_generic(f, a, vals, nb, p, pc, strong=False, release=False):
    """Store through a generic address."""
    lanes = f.lanes(p)
    if not lanes:
        return
    name, base = window(a if a.__class__ is int else int(a[lanes[0]]))
    if name == "global":
        st_global(f, a, vals, nb, p, pc, strong, release)
    elif name == "shared":
        st_shared(f, shared_offset(a), vals, nb, p, pc, strong)
    elif name == "local":
        st_local(f, a - base, vals, nb, p, pc)
    else:
        f.run.log.at("oob-global", f, pc, "store to the parameter window", a)
