"""mbarrier instructions: emitters and run-time part."""

import numpy as np

from ..codegen.registry import BLOCKED, op, rt
from ..errors import EmitError
from ..mbarrier import PENDING_BITS, MBarrier, lane_value, mbar_at


def _mb_addr(cg, o):
    if o.kind != "mem":
        raise EmitError("an address in brackets is expected")
    a = cg.addr(o)
    if o.base is not None and o.base.kind == "reg" and o.base.reg.width == 64:
        return f"narrow32({a})"
    return a


def mbar_blocking(ins):
    return "try_wait" in ins.parts


@op("mbarrier", cls="sync", blocking=mbar_blocking)
def emit_mbarrier(cg, ins):
    parts = ins.parts
    what = parts[1]
    ops = ins.ops
    if what in ("test_wait", "try_wait"):
        d, a, x = ops[:3]
        parity = "parity" in parts
        p = cg.open_guard()
        t = cg.name()
        fn = "mb_try" if what == "try_wait" else "mb_test"
        cg.line(
            f"{t} = {fn}(f, {_mb_addr(cg, a)}, {cg.src(x, 'b32' if parity else 'b64')}, {parity}"
            f", {p}, {cg.pc()})"
        )
        if what == "try_wait":
            cg.line(f"if {t} is None: return {BLOCKED}")
        cg.put(d, t, p)
        cg.close_guard(p)
        return
    p = cg.open_guard()
    if what == "init":
        cg.line(f"mb_init(f, {_mb_addr(cg, ops[0])}, {cg.src(ops[1], 'u32')}, {p}, {cg.pc()})")
    elif what == "inval":
        cg.line(f"mb_inval(f, {_mb_addr(cg, ops[0])}, {p}, {cg.pc()})")
    elif what in ("arrive", "arrive_drop"):
        expect = "expect_tx" in parts
        dest = None
        rest = list(ops)
        if rest[0].kind != "mem":
            dest = rest.pop(0)
        a = rest.pop(0)
        tx, n = "0", "1"
        if expect:
            tx = cg.src(rest.pop(0), "u32")
        elif rest:
            n = cg.src(rest.pop(0), "u32")
        e = f"mb_arrive(f, {_mb_addr(cg, a)}, {n}, {tx}, {expect}, {what == 'arrive_drop'}, {p}, "
        e += f"{cg.pc()})"
        if dest is not None and dest.kind != "sink":
            cg.put(dest, e, p)
        else:
            cg.line(e)
    elif what == "expect_tx":
        cg.line(f"mb_expect(f, {_mb_addr(cg, ops[0])}, {cg.src(ops[1], 'u32')}, {p}, {cg.pc()})")
    elif what == "complete_tx":
        cg.line(f"mb_complete(f, {_mb_addr(cg, ops[0])}, {cg.src(ops[1], 'u32')}, {p}, {cg.pc()})")
    elif what == "pending_count":
        cg.put(ops[0], f"mb_pending({cg.src(ops[1], 'b64')})", p)
    else:
        raise EmitError(f"mbarrier.{what} is not emulated")
    cg.close_guard(p)


@rt
def mb_init(f, a, count, p, pc):
    for lane in f.lanes(p):
        x, n = lane_value(a, lane), lane_value(count, lane)
        off, log = x & 0xFFFFFF, f.run.log
        if x >> 24 != f.cta.rank or off % 8 or off + 8 > f.cta.smem.size or off < 0x400:
            log.at(
                "mbarrier-address",
                f,
                pc,
                "not an 8-byte aligned address in this CTA's shared memory",
                x,
            )
            continue
        if not 1 <= n < 1 << 20:
            log.at("mbarrier-count", f, pc, f"count {n} is outside 1..1048575", x)
        if off in f.cta.mbars:
            log.at("mbarrier-reinit", f, pc, "initialised again without mbarrier.inval", x)
        w = f.warp
        old = f.cta.mbars.get(off)
        f.cta.mbars[off] = b = MBarrier(f.cta, off, n, (w.agent, w.epoch)) if old is None else old
        if old is not None:
            b.count = b.pending = n
            b.tx, b.phase = 0, 0
            b.init, b.fenced = (w.agent, w.epoch), False
        if f.cta.shadow is not None:  # the object's bytes belong to the barrier from now on
            sh = f.cta.shadow
            sh.write(sh.index(off, 8), w.agent, w.epoch, w.clock, pc, (f.cta.id3, w.index))


@rt
def mb_inval(f, a, p, pc):
    for lane in f.lanes(p):
        x = lane_value(a, lane)
        if mbar_at(f, x, pc) is not None:
            f.cta.mbars.pop(x & 0xFFFFFF, None)


@rt
def mb_arrive(f, a, n, tx, expect, drop, p, pc):
    """arrive, arrive.expect_tx, remote arrive; returns the state token of the last lane."""
    w = f.warp
    state = 0
    first = {}  # phase of each barrier before this instruction
    for lane in f.lanes(p):
        b = mbar_at(f, lane_value(a, lane), pc)
        if b is None:
            continue
        state = b.phase << PENDING_BITS | b.pending
        if b.phase > first.setdefault(b.offset, b.phase) + 1:
            f.run.log.at(
                "over-arrive",
                f,
                pc,
                f"one instruction completes several phases of {b.describe()}",
                b.cta.base | b.offset,
            )
        if f.run.hazards and b.phase and (b.done > w.clock).any():
            f.run.log.at(
                "early-arrive",
                f,
                pc,
                "nothing orders this arrival after the end of the phase before: it may count for"
                f" that one; {b.describe()}",
                b.cta.base | b.offset,
            )
        np.maximum(b.clock, w.clock, out=b.clock)
        if expect:
            b.tx += lane_value(tx, lane)
        b.arrive(lane_value(n, lane), f.run.log, pc, (f.cta.id3, w.index), drop)
    w.clock[w.agent] += 1
    return state


@rt
def mb_expect(f, a, tx, p, pc):
    for lane in f.lanes(p):
        b = mbar_at(f, lane_value(a, lane), pc)
        if b is not None:
            b.tx += lane_value(tx, lane)
            b.settle(f.run.log, pc)


@rt
def mb_complete(f, a, tx, p, pc):
    for lane in f.lanes(p):
        b = mbar_at(f, lane_value(a, lane), pc)
        if b is not None:
            b.complete_tx(lane_value(tx, lane), f.run.log, pc, False)


@rt
def mb_pending(state):
    """Pending arrivals of the phase when the token was made."""
    mask = (1 << PENDING_BITS) - 1
    return state & mask if state.__class__ is int else (state & mask).astype(np.uint32)


def _targets(f, a, x, p):
    if a.__class__ is int and x.__class__ is int:
        return [(a, x)] if p is True or f.lanes(p) else []
    return sorted({(lane_value(a, k), lane_value(x, k)) for k in f.lanes(p)})


@rt
def mb_try(f, a, x, parity, p, pc):
    """try_wait: True when all lanes' phases completed, None (blocked) otherwise.

    A suspended try_wait is woken by the phase change, so nothing spins; a random schedule lets
    it return false now and then, as the chip may.
    """
    w = f.warp
    for addr, v in _targets(f, a, x, p):
        b = mbar_at(f, addr, pc)
        if b is None:
            return True
        if not b.passed(v, parity):
            pol = f.run.policy
            if pol.spurious and f.n == 32 and pol.rng.random() < pol.spurious:
                f.run.progress_hint(f)
                return False
            f.block(b)
            return None
        w.acquire(b.done)
    return True


@rt
def mb_test(f, a, x, parity, p, pc):
    """test_wait: never blocks; a warp that polls in vain is suspended until something happens."""
    w = f.warp
    res = []
    for addr, v in _targets(f, a, x, p):
        b = mbar_at(f, addr, pc)
        if b is None:
            return True
        ok = b.passed(v, parity)
        if ok:
            w.acquire(b.done)
        res.append(ok)
    if not all(res):
        f.run.progress_hint(f)
    if len(res) <= 1:
        return bool(res and res[0])
    out = np.zeros(32, bool)
    for k in f.lanes(p):
        b = mbar_at(f, lane_value(a, k), pc)
        out[k] = b is not None and b.passed(lane_value(x, k), parity)
    return out
