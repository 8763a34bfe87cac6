"""What can be known about integer and predicate registers without running a kernel.

A value is ``(lo, hi, vary, elect)``: an interval of non-negative integers (None when unknown), how
it differs between the threads of a block, and whether `elect.sync` had a part in it. Floating
registers are not tracked. The analysis is flow-sensitive, follows only feasible branches, and gives
up an interval where two different ones meet, so that it ends.
"""

from __future__ import annotations

from .arithmetic import (
    ANY_LANE,
    BLOCK,
    LANE,
    THREAD,
    UNKNOWN,
    WARP,
    constant,
    constant_of,
    evaluate,
)
from .operands import destination, registers

_SAME_IN_BLOCK = ("%ctaid", "%nctaid", "%ntid", "%smid", "%nsmid", "%gridid", "%cluster", "%ncl")
_SAME_IN_WARP = ("%warpid", "%nwarpid", "%clock", "%globaltimer")


class Values:
    """Fixed point of one entry.

    Parameters
    ----------
    flow : Flow
    threads : int or None
        Threads of a block, if known.
    first, count : int, optional
        Look at the threads ``first .. first + count - 1`` only; both multiples of 32.

    Attributes
    ----------
    guards : dict
        Index of a guarded instruction to the value of its guard, negation applied.
    operands : dict
        Index of an mbarrier.init, bar or barrier to the values of its operands.
    visited : set of int
        Blocks that some of these threads can reach.
    """

    def __init__(self, flow, threads, first=0, count=None):
        self.flow, self.threads = flow, threads
        entry = flow.entry
        dims = entry.directives.get("reqntid") or entry.directives.get("maxntid") or (1,)
        self.flat = all(n == 1 for n in dims[1:])
        if count is None:
            count = threads or 1024
        self.tid = (first, first + count - 1, THREAD if self.flat else LANE, False)
        self.guards, self.operands = {}, {}
        self.visited = set()
        self._run()

    # ------------------------------------------------------------------ fixed point
    def _run(self):
        flow = self.flow
        states = {0: {}} if flow.blocks else {}
        rank = {b: k for k, b in enumerate(flow.order)}
        todo = set(states)
        while todo:
            b = min(todo, key=rank.__getitem__)
            todo.discard(b)
            self.visited.add(b)
            state = dict(states[b])
            for s in self._through(b, state):
                if s not in states:
                    states[s] = dict(state)
                    todo.add(s)
                elif _merge(states[s], state):
                    todo.add(s)

    def _through(self, b, state):
        """Run a block on a state; the successors that are feasible."""
        flow = self.flow
        first, end = flow.blocks[b]
        ins = None
        for i in range(first, end):
            ins = flow.ins[i]
            guard = None
            if ins.pred is not None:
                guard = self.guards[i] = _negate(self._reg(ins.pred, state), ins.neg)
            if ins.op.startswith(("mbarrier.init", "bar.", "barrier.")):
                self.operands[i] = [self._value(o, state) for o in ins.ops]
            if guard is None or guard[0] != 0 or guard[1] != 0:
                self._step(ins, state, guard)
        succ = flow.succ[b]
        guard = self.guards.get(end - 1) if ins is not None and ins.pred is not None else None
        if guard is None or guard[0] is None or guard[0] != guard[1] or len(succ) < 2:
            return succ
        jumps = {flow.block_of[i] for i in flow.jumps.get(end - 1, ()) if i < len(flow.ins)}
        return [s for s in succ if (s in jumps) == bool(guard[0])]

    def _reg(self, reg, state):
        if reg.kind[0] == "f" or reg.kind.startswith("bf"):
            return ANY_LANE
        return state.get(reg.index, UNKNOWN)

    def _value(self, o, state):
        kind = o.kind
        if kind == "reg":
            value = self._reg(o.reg, state)
            return _negate(value, True) if o.neg else value
        if kind == "imm":
            return constant(o.value) if o.value >= 0 else UNKNOWN
        if kind == "sreg":
            return self._special(o.name)
        if kind == "mem":
            return self._value(o.base, state) if o.base is not None else UNKNOWN
        if kind in ("vec", "pair"):
            found = [self._value(x, state) for x in o.items]
            return _join_all(found)
        return UNKNOWN

    def _special(self, name):
        if name == "%tid.x":
            return self.tid
        if name.startswith("%tid"):
            return constant(0) if self.threads and self.flat else ANY_LANE
        if name == "%laneid":
            return (0, 31, THREAD, False)
        if name == "%ntid.x" and self.threads and self.flat:
            return constant(self.threads)
        if name.startswith(_SAME_IN_BLOCK):
            return UNKNOWN
        return (None, None, WARP if name.startswith(_SAME_IN_WARP) else LANE, False)

    def _step(self, ins, state, guard):
        target = destination(ins)
        if target is None:
            return
        regs = registers(target)
        regs = [r for r in regs if r.kind[0] != "f" and not r.kind.startswith("bf")]
        if not regs:
            return
        sources = [self._value(o, state) for o in ins.ops if o is not target]
        new = evaluate(ins, sources)
        for k, reg in enumerate(regs):
            value = new
            if len(regs) > 1 and not (k == 0 and target.kind == "pair"):
                value = (None, None, new[2], new[3])
            if guard is not None and guard[0] != 1:
                old = state.get(reg.index)
                value = value if old is None else _join(old, value)
                value = (value[0], value[1], max(value[2], guard[2]), value[3])
            state[reg.index] = value


def _join(a, b):
    if a == b:
        return a
    same = a[0] == b[0] and a[1] == b[1]
    return (a[0] if same else None, a[1] if same else None, max(a[2], b[2]), a[3] or b[3])


def _join_all(values):
    return (
        None,
        None,
        max((v[2] for v in values), default=BLOCK),
        any(v[3] for v in values),
    )


def _merge(into, state):
    """Join `state` into `into`; whether it changed."""
    changed = False
    for key, value in state.items():
        old = into.get(key)
        if old is None:
            into[key], changed = value, True
        elif old != value:
            new = _join(old, value)
            if new != old:
                into[key], changed = new, True
    return changed


def _negate(value, neg):
    if not neg:
        return value
    lo, hi, vary, elect = value
    return value if lo is None or lo != hi else (1 - lo, 1 - lo, vary, elect)


__all__ = ["ANY_LANE", "BLOCK", "LANE", "THREAD", "UNKNOWN", "WARP", "Values", "constant_of"]
