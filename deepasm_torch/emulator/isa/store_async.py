"""st.async: stores to a peer's shared memory that complete bytes on an mbarrier there."""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..mbarrier import lane_value, mbar_at
from ..text.statements import WIDTH
from ..values import U
from .access import scalar
from .loads import addr32
from .tensor_copy import Copy


@rt
def store_async(f, a, vals, mbar, nb, reduction, p, pc):
    """One asynchronous store (or reduction) per active lane.

    ``reduction`` is None or (operation, type).
    """
    for lane in f.lanes(p):
        x = [lane_value(v, lane) for v in vals]
        _one(f, lane_value(a, lane), x, lane_value(mbar, lane), nb, reduction, pc)


def _one(f, a, x, mbar, nb, reduction, pc):
    from .atomics import combine

    n = nb * len(x)
    cta = scalar(f, a, n, pc, "st.async")
    b = mbar_at(f, mbar, pc)
    if cta is None or b is None:
        return
    if a >> 24 != mbar >> 24:
        text = "the destination and the mbarrier of st.async lie in different CTAs"
        f.run.log.at("mbarrier-address", f, pc, text, mbar)
        return
    run, w, o = f.run, f.warp, a & 0xFFFFFF
    clock = w.clock.copy()

    def done():
        if cta.gone:
            run.log.add("peer-exited", pc, f"CTA rank {cta.rank} has exited", *w.who, a)
        sh = cta.shadow
        if sh is not None:
            strong = reduction is not None
            sh.write(sh.index(o, n), b.agent, b.phase + 1, clock, pc, w.who, strong=strong)
        view = cta.smem.view[nb]
        for k, v in enumerate(x):
            new = np.array([v], U[8 * nb])
            if reduction is not None:
                new = combine(*reduction, view[o // nb + k : o // nb + k + 1], new, None, False)
            view[o // nb + k] = new[0]
        if cta.smem.overlay:
            cta.smem.async_bytes[o : o + n] = cta.smem.bytes[o : o + n]
        run.counters.add_bytes("dsmem", n)
        b.complete_tx(n, run.log, pc)

    run.issue(Copy(done, cta, pc, True))


@op("st.async", cls="async")
def emit_st_async(cg, ins):
    parts = ins.parts
    if "mbarrier::complete_tx::bytes" not in parts:
        raise EmitError("only st.async.mbarrier::complete_tx::bytes is emulated")
    ty = next((x for x in parts if x in WIDTH), None)
    if ty is None:
        raise EmitError("a type suffix is missing")
    a, s, b = cg.need(3)
    values = s.items if s.kind == "vec" else [s]
    p = cg.open_guard()
    x = ", ".join(cg.src(v, ty) for v in values)
    cg.line(
        f"store_async(f, {addr32(a, cg.addr(a))}, ({x},), {addr32(b, cg.addr(b))}, "
        f"{WIDTH[ty] // 8}, None, {p}, {cg.pc()})"
    )
    cg.close_guard(p)
