"""Tensor maps changed by the kernel: tensormap.replace, cp_fenceproxy and the tensormap fences.

The 128 bytes have the emulator's own encoding. A map in global memory that the kernel changed must
be released (``fence.proxy.tensormap`` with .release, or ``cp_fenceproxy``) and then acquired by a
fence on its address in each CTA that uses it; using it otherwise is reported. What a stale
descriptor cache would deliver is not modelled.
"""

import numpy as np

from ..codegen.registry import BLOCKED, op, rt
from ..errors import EmitError
from ..global_shadow import Accessor
from ..mbarrier import lane_value
from ..memory import GLOBAL_BASE, SHARED_BASE
from ..tensormap import FIELDS, MAGIC
from .access import scalar
from .control import fault
from .global_memory import scalar_global
from .warp import always

SWIZZLE = {0: 0, 1: 32, 2: 64, 3: 128}
# PTX's element type numbers -> the codes of tensormap.DTYPES
ELEMENT = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 10, 9: 8, 10: 9, 11: 11, 12: 12}


def _bytes_at(f, a, n, pc, what):
    """(byte array, offset, CTA or None) behind a generic, shared or global address, or None."""
    if a >= GLOBAL_BASE:
        o = scalar_global(f, a, min(n, 16), pc, what)
        return None if o is None else (f.run.memory.bytes, o, None)
    a = a - SHARED_BASE if a >= SHARED_BASE else a
    cta = scalar(f, a, min(n, 16), pc, what)
    return None if cta is None else (cta.smem.bytes, a & 0xFFFFFF, cta)


@rt
def map_replace(f, a, field, ordinal, value, p, pc):
    """tensormap.replace of one field of the map at an address."""
    for lane in f.lanes(p):
        at, x = lane_value(a, lane), lane_value(value, lane)
        if at % 128:
            f.run.log.at("tensor-map", f, pc, "the map is not 128-byte aligned", at)
            continue
        if field == "rank":
            x += 1  # the instruction counts from zero
        elif field == "swizzle_mode":
            x = SWIZZLE.get(x, 0)
        elif field == "elemtype":
            if x not in ELEMENT:
                fault(f, pc, f"element type {x} of a tensor map is not emulated")
            x = ELEMENT[x]
        start, size = FIELDS[field]
        n = start + size * ordinal
        place = _bytes_at(f, at, 16, pc, "tensormap.replace")
        if place is None:
            continue
        data, o, cta = place
        data[o : o + 4] = np.frombuffer(
            MAGIC.to_bytes(4, "little"), np.uint8
        )  # may start from zeros
        data[o + n : o + n + size] = np.frombuffer(
            (x & ((1 << 8 * size) - 1)).to_bytes(size, "little"), np.uint8
        )
        if cta is None:
            _changed(f, o, released=False)
        elif cta.shadow is not None:
            sh, w = cta.shadow, f.warp
            sh.write(sh.index(o, 128), w.agent, w.epoch, w.clock, pc, w.who)


def _changed(f, o, released):
    state = f.run.maps.setdefault(o, [0, True])
    state[0] += 1
    state[1] = released


@rt
def map_copy(f, dst, src, p, pc):
    """tensormap.cp_fenceproxy: copy a map from shared to global memory and release it."""
    lanes = f.lanes(p)
    if not lanes:
        return
    d, s = lane_value(dst, lanes[0]), lane_value(src, lanes[0])
    if d % 128 or s % 128:
        f.run.log.at("tensor-map", f, pc, "the map is not 128-byte aligned", d)
        return
    to, frm = _bytes_at(f, d, 128, pc, "map copy"), _bytes_at(f, s, 128, pc, "map copy")
    if to is None or frm is None:
        return
    cta, w = frm[2], f.warp
    if cta is not None and cta.shadow is not None:
        sh = cta.shadow
        sh.read(sh.index(frm[1], 128), w.agent, w.epoch, w.clock, pc, w.who)
    to[0][to[1] : to[1] + 128] = frm[0][frm[1] : frm[1] + 128]
    if f.run.global_shadow is not None:
        f.run.global_shadow.write(Accessor(w), np.array([to[1]]), 128, pc)
    _changed(f, to[1], released=True)


@rt
def tensormap_fence(f, a, release, p):
    """fence.proxy.tensormap: release everything changed so far, or acquire the map at ``a``."""
    if release:
        for state in f.run.maps.values():
            state[1] = True
        return
    for lane in f.lanes(p):
        o = lane_value(a, lane) - GLOBAL_BASE
        if o in f.run.maps:
            f.cta.acquired_maps[o] = f.run.maps[o][0]


@op("tensormap", cls="other", blocking=always)
def emit_tensormap(cg, ins):
    parts = ins.parts
    p = cg.open_aligned_guard()
    if parts[1] == "replace":
        if parts[2] != "tile" or parts[3] not in FIELDS:
            raise EmitError(f"tensormap.replace.{parts[2]}.{parts[3]} is not emulated")
        ops = list(ins.ops)
        a, ordinal = ops.pop(0), 0
        if len(ops) == 2:
            ordinal = ops.pop(0).value
        x = ops[0]
        value = str(x.value) if x.kind == "imm" else cg.src(x, parts[-1])
        cg.line(f"map_replace(f, {cg.addr(a)}, {parts[3]!r}, {ordinal}, {value}, {p}, {cg.pc()})")
    elif parts[1] == "cp_fenceproxy":
        d, s, n = cg.need(3)
        if n.value != 128:
            raise EmitError("the size must be 128")
        cg.line(f"if not aligned(f, {cg.pc()}, {p}): return {BLOCKED}")
        cg.line(f"map_copy(f, {cg.addr(d)}, {cg.addr(s)}, {p}, {cg.pc()})")
    else:
        raise EmitError(f"tensormap.{parts[1]} is not emulated")
    cg.close_guard(p)
