"""Execution state: fragments, warps, CTAs, clusters.

A warp starts as one fragment of 32 lanes. A divergent branch splits the fragment: each part gets
a shallow copy of the register list (values are replaced, never mutated) and runs without masks;
fragments merge where they meet again. A one-lane fragment holds Python ints only.
"""

import numpy as np

from .codegen.registry import BLOCKED, SPLIT
from .values import UNINIT, U

LANES = np.arange(32, dtype=np.uint32)


class Fragment:
    """Some lanes of a warp that share a PC."""

    __slots__ = (
        "R",
        "S",
        "V",
        "blocked",
        "cta",
        "full",
        "lane",
        "mask",
        "n",
        "pc",
        "run",
        "token",
        "warp",
    )

    def __init__(self, warp, mask, pc, regs):
        self.warp, self.cta, self.run = warp, warp.cta, warp.cta.run
        self.R, self.V, self.S, self.pc = regs, warp.V, warp.vstate, pc
        self.blocked = self.token = None
        self.set_mask(mask)

    def set_mask(self, mask):
        self.mask = mask
        self.n = int(np.count_nonzero(mask))
        self.full = self.n == 32
        self.lane = None
        if self.n == 1:
            k = self.lane = int(mask.argmax())
            self.R = [x.item(k) if isinstance(x, np.ndarray) else x for x in self.R]

    def active(self, p):
        """Boolean lane mask of this fragment under a predicate."""
        return self.mask if p is True else self.mask & p

    def lanes(self, p=True):
        """Active lane numbers under a predicate."""
        if p is False:
            return []
        if self.lane is not None:
            return [self.lane] if p is True or p.__class__ is bool or p[self.lane] else []
        return np.flatnonzero(self.active(p)).tolist()

    def block(self, on):
        """Suspend on an object with ``waiters``; generated code returns BLOCKED next."""
        self.blocked = on
        on.waiters.append(self)
        return False


class Waitable:
    """Something fragments can wait for."""

    __slots__ = ("waiters",)

    def __init__(self):
        self.waiters = []

    def wake(self):
        """Make every waiter runnable again; it re-evaluates its condition."""
        if self.waiters:
            for f in self.waiters:
                if f.blocked is self:
                    f.blocked = None
                    f.run.ready(f.warp)
            self.waiters = []


class Converge(Waitable):
    """Sibling lanes of a warp that must arrive before an .aligned instruction."""

    __slots__ = ("warp",)

    def __init__(self, warp):
        super().__init__()
        self.warp = warp

    def describe(self):
        return "the other lanes of its warp (an instruction that needs all of them)"


class Warp:
    """32 threads: fragments, clock, tensor-core operand block, counters."""

    def __init__(self, cta, index, n_threads, program):
        self.cta, self.index = cta, index
        self.run = cta.run
        self.count = [0] * len(program.blocks)
        self.lane_count = [0] * len(program.blocks)
        self.queued = False
        self.who = (cta.id3, index)
        self.done = False
        cl = cta.cluster.clocks
        tag = f"warp {index} of CTA {cta.id3}"
        self.agent = cl.new(tag)
        self.proxy = cl.new(f"proxy of {tag}")
        cl.proxy_of[self.agent] = self.proxy
        self.bulk_agent = cl.new(f"bulk store of {tag}")
        self.bulk_write_agent = cl.new(f"global writes of the bulk stores of {tag}")
        self.cp_agent = cl.new(f"cp.async of {tag}")
        self.clock = cl.zero()
        self.clock[self.agent] = 1
        rows = program.rows
        self.V = np.full((rows, 32), 0xFFFFFFFF, np.uint32) if rows else None
        self.vstate = bytearray(b"\1" * rows)
        self.states = np.frombuffer(self.vstate, np.uint8)  # the same bytes
        self.syncs = 1  # points at which all lanes' accesses were ordered
        self.touched = True  # a wgmma operand register was accessed since the last wgmma.fence
        self.bulk = {}  # lane -> bulk group state
        self.cp = None  # cp.async group state
        self.mma = None  # wgmma issue state
        self.converge = Converge(self)
        self.reg_alloc = None
        mask = np.arange(32) < n_threads - 32 * index
        self.live = mask.copy()
        self.frags = [Fragment(self, mask, 0, [UNINIT] * len(program.widths))]

    @property
    def epoch(self):
        return int(self.clock[self.agent])

    def release(self, into):
        """Publish this warp's clock into another clock, then start a new epoch."""
        np.maximum(into, self.clock, out=into)
        self.clock[self.agent] += 1

    def acquire(self, clock):
        """Take over everything ordered before ``clock``."""
        self.syncs += 1
        np.maximum(self.clock, clock, out=self.clock)

    def pick(self):
        """Lowest-PC runnable fragment (so that diverged lanes meet again), or None."""
        best = None
        for f in self.frags:
            if f.blocked is None and (best is None or f.pc < best.pc):
                best = f
        return best

    def merge_at(self, f):
        """Merge fragment ``f`` with siblings at the same PC; returns the surviving fragment."""
        for g in self.frags:
            if g is not f and g.pc == f.pc and g.token is None and f.token is None:
                self.merge(f, g)
                return self.merge_at(f)
        return f

    def merge(self, f, g):
        widths = self.run.program.widths
        a, b, m = f.R, g.R, f.mask
        out = a[:]
        for i, x in enumerate(a):
            y = b[i]
            if x is y:
                continue
            if x is UNINIT or y is UNINIT:
                out[i] = y if x is UNINIT else x
                continue
            if x.__class__ is int and y.__class__ is int and x == y:
                continue
            w = widths[i]
            if w == 1:
                out[i] = np.where(m, x, y)
            else:
                out[i] = np.where(m, x, y).astype(U[w], copy=False)
        g.blocked = None
        self.frags.remove(g)
        f.R = out
        f.set_mask(f.mask | g.mask)

    def step(self, quantum):
        """Run up to ``quantum`` blocks; returns True when the warp can still run."""
        program = self.run.program
        blocks, count, lane_count = program.blocks, self.count, self.lane_count
        f = self.pick()
        while f is not None and quantum > 0:
            quantum -= 1
            k, n = f.pc, f.n
            try:
                nxt = blocks[k].fn(f)
            except Exception as err:
                self.run.explain(err, f, k)
                raise
            if nxt >= 0:
                count[k] += 1
                lane_count[k] += n
                f.pc = nxt
                if len(self.frags) > 1:
                    self.merge_at(f)
                    if self.converge.waiters:
                        self.converge.wake()
                    f = self.pick()
            elif nxt == BLOCKED:
                f = self.pick()
            elif nxt == SPLIT:
                count[k] += 1
                lane_count[k] += n
                f = self.pick()
            else:
                count[k] += 1
                lane_count[k] += n
                self.frags.remove(f)
                if self.converge.waiters:
                    self.converge.wake()
                if not self.frags:
                    self.done = True
                    self.cta.warp_done(self)
                    return False
                f = self.pick()
        return f is not None
