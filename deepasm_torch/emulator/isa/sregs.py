"""Special registers."""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError


@op("activemask", cls="sync")
def emit_activemask(cg, ins):
    (d,) = cg.need(1)
    cg.result(d, "bits_of(f.mask)")


LANE = np.arange(32, dtype=np.uint32)


def bits(mask):
    """Lane mask as an int."""
    return int(np.packbits(mask, bitorder="little").view(np.uint32)[0])


@rt
def bits_of(mask):
    return bits(mask)


def _vector(f, name):
    w = f.warp
    cache = w.cta.sregs
    key = (name, w.index)
    v = cache.get(key)
    if v is not None:
        return v
    bx, by, _ = f.run.block
    lin = LANE + 32 * w.index
    if name == "%tid.x":
        v = lin % bx
    elif name == "%tid.y":
        v = lin // bx % by
    elif name == "%tid.z":
        v = lin // (bx * by)
    elif name == "%laneid":
        v = LANE.copy()
    else:
        one = np.uint32(1) << LANE
        v = {
            "eq": one,
            "lt": one - 1,
            "le": one + (one - 1),
            "gt": ~(one + (one - 1)),
            "ge": ~(one - 1),
        }[name[-2:]]
    v = v.astype(np.uint32)
    if (v == v[0]).all():
        v = int(v[0])
    cache[key] = v
    return v


@rt
def sreg(f, name):
    """Value of a special register."""
    fn = SREG.get(name)
    if fn is not None:
        return fn(f)
    if name.startswith(("%tid", "%laneid", "%lanemask")):
        v = _vector(f, name)
        return v if v.__class__ is int or f.lane is None else int(v[f.lane])
    raise EmitError(f"special register {name} is not emulated")


def _clock(f):
    f.run.clock_ticks += 16
    return f.run.clock_ticks


def _xyz(prefix, fn):
    for i, c in enumerate("xyz"):
        SREG[f"%{prefix}.{c}"] = lambda f, i=i: fn(f)[i]


SREG = {
    "%warpid": lambda f: f.warp.index,
    "%nwarpid": lambda f: len(f.cta.warps),
    "%smid": lambda f: f.cta.id3[0] % 132,
    "%nsmid": lambda f: 132,
    "%gridid": lambda f: 1,
    "%clock": lambda f: _clock(f) & 0xFFFFFFFF,
    "%clock_hi": lambda f: _clock(f) >> 32,
    "%clock64": _clock,
    "%globaltimer": lambda f: _clock(f) * 32,
    "%globaltimer_lo": lambda f: _clock(f) * 32 & 0xFFFFFFFF,
    "%globaltimer_hi": lambda f: _clock(f) * 32 >> 32,
    "%cluster_ctarank": lambda f: f.cta.rank,
    "%cluster_nctarank": lambda f: f.run.cluster_size,
    "%is_explicit_cluster": lambda f: f.run.cluster_size > 1,
    "%dynamic_smem_size": lambda f: f.run.smem_size - f.run.dynamic_start,
    "%total_smem_size": lambda f: f.run.smem_size,
}


_xyz("ntid", lambda f: f.run.block)
_xyz("ctaid", lambda f: f.cta.id3)
_xyz("nctaid", lambda f: f.run.grid)
_xyz("cluster_nctaid", lambda f: f.run.cluster_dims)
_xyz("clusterid", lambda f: [a // b for a, b in zip(f.cta.id3, f.run.cluster_dims)])
_xyz("nclusterid", lambda f: [a // b for a, b in zip(f.run.grid, f.run.cluster_dims)])
_xyz("cluster_ctaid", lambda f: [a % b for a, b in zip(f.cta.id3, f.run.cluster_dims)])
