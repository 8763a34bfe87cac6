"""Warpgroup MMA: asynchronous operations of four warps, commit groups, accumulator state.

The four warps issue independently; an operation exists once all four have issued it. Accumulators
live as one (64, N) matrix per register list while operations are pending and move back to a
warp's registers when that warp first touches them after its own wait. Row states of a warp's
block: 0 valid, 1 never written, 2 pending (touching it is a hazard), 3 valid in the matrix,
4 A fragment being read (writing it is a hazard).
"""

import numpy as np

from .fragments import a_matrix, load_operand, operand_chunks
from .machine import Waitable

OK, UNDEF, PENDING, LAZY, READING = range(5)
_FILL = [bytes([k]) * 256 for k in range(5)]


class MmaOp:
    """One wgmma.mma_async of a warpgroup."""

    __slots__ = (
        "a",
        "a_ty",
        "afrag",
        "arows",
        "b",
        "b_ty",
        "clock",
        "d_ty",
        "issued",
        "key",
        "n",
        "pc",
        "rows",
        "scale_a",
        "scale_b",
        "scale_d",
        "trans",
    )

    def same(self, other):
        return (
            self.a == other.a
            and self.b == other.b
            and self.scale_d == other.scale_d
            and self.pc == other.pc
        )


class WarpGroup(Waitable):
    """Tensor-core agent of four warps."""

    __slots__ = ("acc", "agent", "cta", "executed", "first", "index", "ops")

    def __init__(self, cta, index):
        super().__init__()
        self.cta, self.index = cta, index
        self.ops, self.first, self.executed = [], 0, 0
        self.acc = {}
        self.agent = cta.cluster.clocks.new(f"tensor core of warpgroup {index} of CTA {cta.id3}")

    def describe(self):
        return "its sister warps to issue the same wgmma group"

    def op(self, k):
        return self.ops[k - self.first]

    def matrix(self, op):
        d = self.acc.get(op.key)
        if d is None:
            dt = np.int64 if op.d_ty == "s32" else np.float32
            d = self.acc[op.key] = np.zeros((64, op.n), dt)
        return d

    # ------------------------------------------------------------------ execution
    def check_reads(self, op):
        """Record the operand footprint in the race detector."""
        sh = self.cta.shadow
        if sh is None:
            return
        who = (self.cta.id3, 4 * self.index)
        epoch = self.first + self.ops.index(op) + 1
        for desc, mn, tr in ((op.a, 64, op.trans[0]), (op.b, op.n, op.trans[1])):
            if desc is None:
                continue
            g = footprint(desc, mn, tr, sh.shift)
            if g[-1] >= len(sh.w):
                self.cta.run.log.add(
                    "oob-shared",
                    op.pc,
                    "a wgmma descriptor reaches past shared memory",
                    *who,
                    int(g[-1]) << sh.shift,
                )
                continue
            sh.read(g, self.agent, epoch, op.clock, op.pc, who, is_async=True)

    def run_until(self, k):
        """Execute operations up to index ``k`` (exclusive)."""
        while self.executed < k:
            self.execute(self.op(self.executed))
            self.executed += 1
        while self.first < self.executed - 64:  # keep a tail for state checks
            self.ops.pop(0)
            self.first += 1

    def execute(self, op):
        sm = self.cta.smem
        view = sm.async_view[16]
        top = len(view)
        if op.a is None:
            a = a_matrix(np.stack(op.afrag), op.a_ty).reshape(64, -1)
        else:
            idx = operand_chunks(op.a, 64, op.trans[0])
            a = load_operand(
                view,
                np.minimum(idx, top - 1) if idx.max() >= top else idx,
                op.a_ty,
                64,
                op.trans[0],
            )
        idx = operand_chunks(op.b, op.n, op.trans[1])
        b = load_operand(
            view, np.minimum(idx, top - 1) if idx.max() >= top else idx, op.b_ty, op.n, op.trans[1]
        )
        r = a @ b.T
        if op.scale_a * op.scale_b < 0:
            r = -r
        d = self.matrix(op)
        if op.d_ty == "s32":
            r = np.rint(r).astype(np.int64)
            d[:] = (d + r if op.scale_d else r).astype(np.int32)
        elif op.scale_d:
            d += r
        else:
            d[:] = r
        if op.d_ty == "f16":
            d[:] = d.astype(np.float16).astype(np.float32)
        self.cta.run.counters.add_bytes("mma_shared", (0 if op.a is None else 64 * 32) + op.n * 32)


_FOOT = {}


def footprint(desc, mn, tr, shift):
    """Sorted unique granules of an operand."""
    key = (desc, mn, tr, shift)
    g = _FOOT.get(key)
    if g is None:
        idx = np.unique(operand_chunks(desc, mn, tr))
        s = 4 - shift
        g = idx if s == 0 else ((idx << s)[:, None] + np.arange(1 << s)).reshape(-1)
        if len(_FOOT) > 4096:
            _FOOT.clear()
        _FOOT[key] = g
    return g


class WarpMma:
    """Issue state of one warp."""

    __slots__ = ("arows", "group", "groups", "issued", "pending", "quarter", "warp")

    def __init__(self, warp):
        self.warp = warp
        self.quarter = warp.index % 4
        gi = warp.index // 4
        cta = warp.cta
        while len(cta.groups) <= gi:
            cta.groups.append(None)
        if cta.groups[gi] is None:
            cta.groups[gi] = WarpGroup(cta, gi)
        self.group = cta.groups[gi]
        self.issued = 0
        self.groups = []  # operation index at each commit not waited for yet
        self.pending = []  # (operation index, key, A rows) issued and not waited for

    def at_exit(self, warp):
        if self.pending:
            warp.run.log.add(
                "mma-pending",
                self.pending[0][3],
                "the warp exits with wgmma operations it never waited for",
                warp.cta.id3,
                warp.index,
            )


def row_index(rows):
    """Index for a register list: ranges become slices (views, not copies)."""
    return slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)


def state(f):
    w = f.warp
    if w.mma is None:
        w.mma = WarpMma(w)
    return w.mma


def set_state(w, rows, value):
    """Give every row of a register list one state."""
    if isinstance(rows, range):
        w.vstate[rows.start : rows.stop] = _FILL[value][: len(rows)]
    else:
        for r in rows:
            w.vstate[r] = value


def all_in_state(vstate, rows, value):
    """True when every row of a register list has the state."""
    if isinstance(rows, range):
        return vstate.count(value, rows.start, rows.stop) == len(rows)
    return all(vstate[r] == value for r in rows)
