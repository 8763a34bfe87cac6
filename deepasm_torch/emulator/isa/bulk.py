"""1-D bulk copies between global and shared memory and between CTAs: run-time part."""

import numpy as np

from ..codegen.registry import rt
from ..cta import SHARED_START
from ..global_shadow import Accessor
from ..mbarrier import lane_value, tx_bar_at
from ..tma import reduce_bytes
from .global_memory import scalar_global
from .tensor_copy import Copy, _dest_ctas, deliver, groups, land, shared_addr


@rt
def bulk_copy(f, kind, dst, src, size, mbar, mask, op_, ty, p, pc):
    """cp.async.bulk between global and shared memory, or shared and a peer's shared memory."""
    for lane in f.lanes(p):
        d, s, n = (lane_value(x, lane) for x in (dst, src, size))
        mb = None if mbar is None else shared_addr(f, lane_value(mbar, lane))
        mk = None if mask is None else lane_value(mask, lane)
        if n % 16 or d % 16 or s % 16:
            text = (
                f"bulk copy of {n} bytes from {s:#x} to {d:#x}: size and addresses must be"
                " multiples of 16"
            )
            f.run.log.at("misaligned", f, pc, text, d)
            continue
        if n == 0:
            continue
        if kind == "load":
            _bulk_load(f, shared_addr(f, d), s, n, mb, mk, pc)
        elif kind == "store":
            _bulk_store(f, lane, d, shared_addr(f, s), n, op_, ty, pc)
        else:
            _bulk_peer(f, shared_addr(f, d), shared_addr(f, s), n, mb, op_, ty, pc)


def _global_range(f, a, n, pc):
    """Arena offset of a global range after checks, or None."""
    o = scalar_global(f, a, 16, pc, "bulk copy")
    if o is not None and not f.run.memory.inside(a, a + n):
        text = f"bulk copy of {n} bytes: {f.run.memory.describe(a + n - 1)}"
        f.run.log.at("oob-global", f, pc, text, a)
        return None
    return o


def _shared_range(f, a, n, pc):
    """Offset of a shared range after checks, or None."""
    off = a & 0xFFFFFF
    if off < SHARED_START or off + n > f.cta.smem.size:
        text = f"bulk copy of {n} bytes at offset {off:#x} leaves shared memory"
        f.run.log.at("oob-shared", f, pc, text, a)
        return None
    return off


def _bulk_load(f, d, s, n, mb, mask, pc):
    run, w = f.run, f.warp
    o, off, b0 = _global_range(f, s, n, pc), _shared_range(f, d, n, pc), tx_bar_at(f, mb, pc)
    if o is None or off is None or b0 is None:
        return
    ctas = _dest_ctas(f, d, mask)
    clock = w.clock.copy()
    idx = np.arange(off >> 4, (off + n) >> 4)

    def done():
        sh = run.global_shadow
        if sh is not None and not sh.quiet(run.memory.find(o)):
            by = Accessor(w, b0.agent, b0.phase + 1, clock, asynchronous=True)
            sh.read(by, np.array([o]), n, pc)
        chunks = run.memory.view[16][o >> 4 : (o + n) >> 4]
        deliver(f, ctas, mask, b0, idx, chunks, n, clock, pc)
        run.counters.add_bytes("tma_load", n)

    run.issue(Copy(done, f.cta, pc, True))


def _bulk_store(f, lane, d, s, n, op_, ty, pc):
    run, w, cta = f.run, f.warp, f.cta
    o, off = _global_range(f, d, n, pc), _shared_range(f, s, n, pc)
    if o is None or off is None:
        return
    g = groups(f, lane)
    sh = cta.shadow
    if sh is not None:
        sh.read(sh.index(off, n), w.bulk_agent, g.next, w.clock, pc, w.who, is_async=True)
    by = Accessor(w, w.bulk_write_agent, g.next, w.clock.copy())

    def read():
        return cta.smem.async_bytes[off : off + n].copy()

    def write(data):
        if run.global_shadow is not None:
            run.global_shadow.write(by, np.array([o]), n, pc, reduction=op_ is not None)
        if op_ is not None:
            data = reduce_bytes(run.memory.bytes[o : o + n].copy(), data, ty, op_)
        run.memory.bytes[o : o + n] = data
        run.stored()
        run.counters.add_bytes("tma_store", n)

    g.add(read, write, pc)


def _bulk_peer(f, d, s, n, mb, op_, ty, pc):
    run, w, src = f.run, f.warp, f.cta
    b = tx_bar_at(f, mb, pc)
    ctas = _dest_ctas(f, d, None)
    so, do = _shared_range(f, s, n, pc), _shared_range(f, d, n, pc)
    if b is None or not ctas or so is None or do is None:
        return
    peer = ctas[0]
    clock = w.clock.copy()
    sh = src.shadow
    if sh is not None:
        sh.read(sh.index(so, n), b.agent, b.phase + 1, clock, pc, w.who, is_async=True)

    def done():
        data = src.smem.async_bytes[so : so + n].copy()
        if op_ is not None:
            data = reduce_bytes(peer.smem.bytes[do : do + n].copy(), data, ty, op_)
        if peer.gone:
            text = f"a copy lands in CTA rank {peer.rank}, which has exited"
            run.log.add("peer-exited", pc, text, *w.who, d)
        chunks = data.view(np.complex128)
        land(peer, np.arange(do >> 4, (do + n) >> 4), chunks, b, clock, pc, w.who)
        b.complete_tx(n, run.log, pc)
        run.counters.add_bytes("dsmem", n)

    run.issue(Copy(done, f.cta, pc, True))
