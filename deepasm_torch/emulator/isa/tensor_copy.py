"""Tensor (TMA) loads, stores and reductions: run-time part."""

import numpy as np

from ..codegen.registry import rt
from ..copygroups import BulkGroups
from ..cta import SHARED_START
from ..global_shadow import Accessor
from ..mbarrier import lane_value, tx_bar_at
from ..memory import GLOBAL_BASE, SHARED_BASE
from ..tma import box_layout, chunk_index, coords_ok, fetch_box, read_map, store_box
from .control import fault
from .global_memory import grid_check


def scoord(x):
    """Signed 32-bit coordinate."""
    return x - (1 << 32) if x & 0x80000000 else x


def shared_addr(f, a):
    """Shared-space address from a shared or generic address."""
    return a - SHARED_BASE if a >= SHARED_BASE else a


class Copy:
    """An asynchronous operation in flight: call it to complete it."""

    __slots__ = ("cta", "fn", "into_shared", "pc")

    def __init__(self, fn, cta, pc, into_shared):
        self.fn, self.cta, self.pc, self.into_shared = fn, cta, pc, into_shared

    def __call__(self):
        self.fn()


def land(cta, idx16, data, bar, clock, pc, who):
    """Write chunks of 16 bytes into shared memory on behalf of a barrier's TMA agent."""
    sm = cta.smem
    sm.view[16][idx16] = data
    if sm.overlay:
        sm.async_view[16][idx16] = data
    sh = cta.shadow
    if sh is not None:
        sh.write(sh.expand(idx16), bar.agent, bar.phase + 1, clock, pc, who)


def _dest_ctas(f, dst, mask):
    """CTAs that receive a load: the one in the address, or the multicast mask's."""
    cl = f.cta.cluster.ctas
    if mask is None:
        return [cl[dst >> 24]] if dst >> 24 < len(cl) else []
    return [c for c in cl if mask >> c.rank & 1]


@rt
def tma_load(f, dst, map_addr, coords, mbar, offs, mask, p, pc, mode="tile"):
    """cp.async.bulk.tensor global -> shared; one operation per active lane."""
    for lane in f.lanes(p):
        _tma_load_one(
            f,
            shared_addr(f, lane_value(dst, lane)),
            lane_value(map_addr, lane),
            [scoord(lane_value(c, lane)) for c in coords],
            shared_addr(f, lane_value(mbar, lane)),
            None if offs is None else [lane_value(o, lane) for o in offs],
            None if mask is None else lane_value(mask, lane),
            pc,
            mode,
        )


def box_in_shared(f, a, nbytes, pc, what):
    """Offset of a box in shared memory after alignment and bounds checks, or None."""
    off = a & 0xFFFFFF
    if off % 128:
        f.run.log.at("misaligned", f, pc, f"TMA {what} {a:#x} is not a multiple of 128", a)
        return None
    if off < SHARED_START or off + nbytes > f.cta.smem.size:
        text = f"box of {nbytes} bytes at offset {off:#x} leaves shared memory"
        f.run.log.at("oob-shared", f, pc, text, a)
        return None
    return off


def deliver(f, ctas, mask, b0, idx, chunks, nbytes, clock, pc):
    """Land 16-byte chunks in each destination CTA and complete the bytes on its mbarrier."""
    log, who = f.run.log, f.warp.who
    for cta in ctas:
        # a unicast copy signals the barrier it was given, a multicast one each CTA's own
        b = b0 if mask is None else cta.mbars.get(b0.offset)
        at = cta.base | b0.offset
        if b is None:
            text = f"CTA rank {cta.rank} has no mbarrier at this offset"
            log.add("mbarrier-uninit", pc, text, *who, at)
            continue
        if cta.gone:
            text = f"a copy lands in CTA rank {cta.rank}, which has exited"
            log.add("peer-exited", pc, text, *who, at)
        land(cta, idx, chunks, b, clock, pc, who)
        b.complete_tx(nbytes, log, pc)


def map_dependency(f, m, pc):
    """The allocation behind a tensor map obeys the grid dependency too."""
    if f.run.grid_dependent is not None:
        off = m.base - GLOBAL_BASE
        grid_check(f, f.run.memory.find(off), off, pc)


def _tma_load_one(f, dst, map_addr, c, mbar, offs, mask, pc, mode="tile"):
    run, log, w = f.run, f.run.log, f.warp
    m = read_map(f, map_addr, pc)
    if m is None:
        return
    if m.mode != mode:
        fault(f, pc, f"a {mode} copy through a tensor map encoded for {m.mode}")
    coords_ok(f, m, c, False, pc)
    if m.mode == "im2col":
        _im2col_start(f, m, c, pc)
        if m.rank == 4:
            offs = [o & 0xFF for o in offs]
    rows, _per = box_layout(m)
    nbytes = rows * m.inner_bytes
    off = box_in_shared(f, dst, nbytes, pc, "destination")
    b0 = tx_bar_at(f, mbar, pc)
    if off is None or b0 is None:
        return
    ctas = _dest_ctas(f, dst, mask)
    if not ctas:
        log.at("oob-shared", f, pc, f"destination {dst:#x} names no CTA of the cluster", dst)
        return
    map_dependency(f, m, pc)
    clock = w.clock.copy()
    idx = chunk_index(m, off, rows)

    def done():
        box = fetch_box(run.memory, m, c, offs)
        if box.outside:
            text = "the tensor map reaches outside its allocation: "
            log.add("oob-global", pc, text + run.memory.describe(box.outside), *w.who, box.outside)
        elif run.global_shadow is not None and box.offsets is not None:
            al = run.memory.find(int(box.offsets[0]))
            if not run.global_shadow.quiet(al):
                by = Accessor(w, b0.agent, b0.phase + 1, clock, asynchronous=True)
                run.global_shadow.read(by, box.offsets, box.nbytes, pc, al)
        chunks = box.data.reshape(-1, 16).view(np.complex128)[:, 0]
        deliver(f, ctas, mask, b0, idx, chunks, nbytes, clock, pc)
        run.counters.add_bytes("tma_load", nbytes)

    run.issue(Copy(done, f.cta, pc, True))


def _im2col_start(f, m, c, pc):
    for k in range(m.rank - 2):
        hi = m.dims[1 + k] - 1 + m.upper[k]
        if not m.lower[k] <= c[1 + k] <= hi:
            fault(
                f,
                pc,
                f"start pixel {c[1 + k]} of dimension {1 + k} is outside the corner box "
                f"{m.lower[k]}..{hi} (an illegal instruction on the device)",
            )


@rt
def tma_store(f, map_addr, coords, src, op_, p, pc):
    """cp(.reduce).async.bulk.tensor shared -> global."""
    for lane in f.lanes(p):
        _tma_store_one(
            f,
            lane,
            lane_value(map_addr, lane),
            [scoord(lane_value(c, lane)) for c in coords],
            shared_addr(f, lane_value(src, lane)),
            op_,
            pc,
        )


def _tma_store_one(f, lane, map_addr, c, src, op_, pc):
    run, log, w = f.run, f.run.log, f.warp
    m = read_map(f, map_addr, pc)
    if m is None:
        return
    coords_ok(f, m, c, True, pc)
    rows, _per = box_layout(m)
    off = box_in_shared(f, src, rows * m.inner_bytes, pc, "source")
    if off is None:
        return
    if op_ in ("min", "max") and m.dtype in ("uint16", "uint8"):
        fault(f, pc, f"reduce .{op_} on a {m.dtype} tensor map")
    map_dependency(f, m, pc)
    idx = chunk_index(m, off, rows)
    cta = f.cta
    g = groups(f, lane)
    sh = cta.shadow
    if sh is not None:
        sh.read(sh.expand(idx), w.bulk_agent, g.next, w.clock, pc, w.who, is_async=True)
    by = Accessor(w, w.bulk_write_agent, g.next, w.clock.copy())

    def read():
        return cta.smem.async_view[16][idx].view(np.uint8).reshape(rows, m.inner_bytes)

    def write(data):
        kind, text, good, n = store_box(run.memory, m, c, data, op_)
        if kind:
            log.add(kind, pc, text, *w.who, m.base)
        if n and kind != "oob-global":
            if run.global_shadow is not None:
                run.global_shadow.write(by, good, n, pc, reduction=op_ is not None)
            run.stored()
        run.counters.add_bytes("tma_store", data.size)

    g.add(read, write, pc)


def groups(f, lane):
    """Bulk groups of one thread."""
    g = f.warp.bulk.get(lane)
    if g is None:
        g = f.warp.bulk[lane] = BulkGroups(f.warp, lane)
    return g


@rt
def bulk_commit(f, p, pc):
    for lane in f.lanes(p):
        groups(f, lane).commit()


@rt
def bulk_wait(f, n, read, p, pc):
    """cp.async.bulk.wait_group(.read) N."""
    for lane in f.lanes(p):
        g = f.warp.bulk.get(lane)
        if g is not None:
            g.wait(n, read)
