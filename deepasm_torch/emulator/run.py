"""One launch in progress: admission of CTAs, the main loop, exits and reports."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from .counters import Counters
from .cta import SHARED_START, Cluster, Cta
from .errors import DeviceFault, EmulatorError, TooManyHazards
from .global_shadow import GlobalShadow, SyncClocks
from .hazards import HazardLog
from .values import UNINIT

FAIR_POLLS = 500  # polls in vain after which the schedule turns fair
IDLE_POLLS = 20_000  # polls in vain, with nothing else happening, that make a hang


@dataclass
class Config:
    """Everything about a launch that is not the kernel or its data; see ``launch``."""

    grid: tuple
    block: tuple
    cluster: tuple
    smem: int
    policy: object
    hazards: bool
    max_resident: int
    limit: int
    programmatic: object
    outputs: dict
    max_blocks: int


class Run:
    """One launch in progress."""

    def __init__(self, program, config, params, memory):
        self.program, self.memory = program, memory
        self.grid, self.block, self.cluster_dims = config.grid, config.block, config.cluster
        self.cluster_size = config.cluster[0] * config.cluster[1] * config.cluster[2]
        self.policy, self.hazards = config.policy, config.hazards
        self.max_resident, self.blocks_left = config.max_resident, config.max_blocks
        self.grid_dependent = config.programmatic
        self.param_bytes = np.frombuffer(params + bytes(-len(params) % 16), np.uint8).copy()
        self.words = [int(x) for x in self.param_bytes.view(np.uint32)]
        self.log = HazardLog(program, config.limit)
        self.counters = Counters()
        self.inflight = []
        self.queue = deque()
        self._symbols(config.smem)
        self.clock_ticks = 0
        self.ctas = []
        self.idle_polls, self.polled, self.poll_pc = 0, {}, None
        self.cluster_names = {}
        self.maps = {}  # tensor maps in global memory that the kernel changed
        self.sync = SyncClocks()
        self.global_shadow = None
        if self.hazards or config.outputs:
            self.global_shadow = GlobalShadow(self, program.global_granule, config.outputs)

    # ------------------------------------------------------------------ set-up
    def _symbols(self, smem):
        e, mod = self.program.entry, self.program.module
        self.shared_symbols, self.sym = {}, {}
        off, dynamic = SHARED_START, []
        variables = list(e.shared.values()) + [v for v in mod.variables.values()]
        for v in variables:
            if v.space != "shared":
                continue
            if v.size == 0:
                dynamic.append(v)
                continue
            off = -(-off // v.align) * v.align
            self.shared_symbols[v.name] = off
            off += v.size
        self.shared_used = off - SHARED_START
        for v in dynamic:
            off = -(-off // v.align) * v.align
        for v in dynamic:
            self.shared_symbols[v.name] = off
        self.dynamic_start = off
        self.smem_size = off + smem
        self.patterns = self.program.patterns.setdefault(self.smem_size, {})
        if len(self.patterns) > 50_000:
            self.patterns.clear()
        for v in mod.variables.values():
            if v.space in ("global", "const"):
                key = f"${v.name}"
                if key not in self.memory:
                    data = (
                        np.frombuffer(v.init.ljust(v.size, b"\0"), np.uint8) if v.init else v.size
                    )
                    self.memory.alloc(key, data, fill=0)
                self.sym[v.name] = self.memory.address(key)

    def start(self):
        gx, gy, gz = self.grid
        cx, cy, cz = self.cluster_dims
        n = gx * gy * gz
        self.pending = []
        k = 0
        for z in range(0, gz, cz):
            for y in range(0, gy, cy):
                for x in range(0, gx, cx):
                    self.pending.append((k, x, y, z))
                    k += 1
        order = self.policy.order([_IndexOnly(*p) for p in self.pending])
        self.pending = deque((o.index, o.x, o.y, o.z) for o in order)
        self.resident = 0
        self.total = n
        self._admit()

    def _admit(self):
        while self.pending and self.resident + self.cluster_size <= max(
            self.max_resident, self.cluster_size
        ):
            k, x, y, z = self.pending.popleft()
            cl = Cluster(self, k)
            cx, cy, cz = self.cluster_dims
            rank = 0
            for dz in range(cz):
                for dy in range(cy):
                    for dx in range(cx):
                        cta = Cta(self, cl, rank, (x + dx, y + dy, z + dz))
                        cl.ctas.append(cta)
                        rank += 1
            self.ctas += cl.ctas
            for cta in cl.ctas:
                cta.start()
                self.resident += 1
            for cta in cl.ctas:
                for w in cta.warps:
                    self.ready(w)

    def ready(self, warp):
        if not warp.queued and not warp.done:
            warp.queued = True
            self.queue.append(warp)

    # ------------------------------------------------------------------ main loop
    def loop(self):
        q, policy = self.queue, self.policy
        while True:
            while q:
                # polls in vain: even an unfair schedule must let the others run
                i = policy.choose(q) if self.idle_polls < FAIR_POLLS else 0
                w = q[i]
                del q[i]
                w.queued = False
                if w.done:
                    continue
                if w.step(policy.quantum):
                    self.ready(w)
                policy.tick(self)
                self.blocks_left -= policy.quantum
                if self.blocks_left < 0:
                    self.deadlock("watchdog", "the launch ran longer than max_blocks allows")
                    return
                if self.idle_polls > IDLE_POLLS:
                    self.idle_polls = 0
                    if not self.inflight:
                        self.deadlock(text="warps poll memory that nobody changes", at=self.poll_pc)
                        return
                    self.complete(0)
            if self.inflight:
                self.complete(policy.rng.randrange(len(self.inflight)))
                continue
            if self.resident == 0 and not self.pending:
                if self.global_shadow is not None:
                    self.global_shadow.finish()
                return
            self.deadlock()
            return

    def issue(self, op):
        """Queue an asynchronous operation (a callable with no arguments), or do it now."""
        if self.policy.immediate():
            op()
        else:
            self.inflight.append(op)

    def progress_hint(self, f):
        """A poll failed; the main loop decides when polling has become a hang."""
        self.idle_polls += 1

    def poll(self, f, where, pc, value):
        """A strong load: it is a poll in vain when it returns what it returned before."""
        key = (f.warp.who, pc, where)
        if self.polled.get(key) == value:
            self.idle_polls += 1
            self.poll_pc = pc
        else:
            self.polled[key] = value
            self.idle_polls = 0

    def stored(self):
        """Global memory changed: somebody who polls may go on."""
        self.idle_polls = 0

    def complete(self, i):
        op = self.inflight[i]
        self.inflight[i] = self.inflight[-1]
        self.inflight.pop()
        op()

    # ------------------------------------------------------------------ exits and reports
    def on_warp_exit(self, cta, warp):
        self.counters.fold(warp, self.program.blocks)
        for b in warp.bulk.values():
            b.at_exit(warp)
        if warp.cp is not None:
            warp.cp.at_exit(warp)
        if warp.mma is not None:
            warp.mma.at_exit(warp)

    def on_cta_exit(self, cta):
        for op in list(self.inflight):
            if getattr(op, "cta", None) is cta and getattr(op, "into_shared", False):
                self.log.add(
                    "exit-pending-copy",
                    op.pc,
                    "the CTA exits while a copy into its shared memory is in flight",
                    cta.id3,
                    None,
                )
        if cta.pool is not None:
            cta.pool.at_exit()
        self.resident -= 1
        cta.gone = True
        self.ctas.remove(cta)
        self._admit()

    def deadlock(self, kind="deadlock", text="no warp can run", at=None):
        """Report where every warp is and what it waits for."""
        lines = []
        first = at
        for w in self._live():
            for f in w.frags:
                blk = self.program.blocks[f.pc]
                ins = self.program.ins[blk.first]
                first = blk.first if first is None else first
                on = f.blocked.describe() if f.blocked is not None else "nothing"
                lanes = "" if f.full else f" ({f.n} lanes)"
                lines.append(
                    f"CTA {w.cta.id3} warp {w.index}{lanes} {ins.where}: {ins.text} -- "
                    f"waits for {on}"
                )
        lines = list(dict.fromkeys(lines))
        self.log.add(kind, first, f"{text}:\n    " + "\n    ".join(lines))

    def _live(self):
        seen = []
        for c in self.ctas:
            for w in c.warps:
                if not w.done:
                    seen.append(w)
        return seen

    def explain(self, err, f, k):
        """Turn a Python error inside generated code into a hazard, or add the PTX line to it."""
        if isinstance(err, (DeviceFault, TooManyHazards)):
            return
        tb = err.__traceback__
        ins = None
        while tb is not None:
            ins = self.program.instruction_at(tb.tb_frame.f_code.co_filename, tb.tb_lineno) or ins
            tb = tb.tb_next
        if ins is None:
            return
        used = _registers(ins)
        missing = [r.name for r in used if r.row is None and f.R[r.index] is UNINIT]
        if missing:
            self.log.at(
                "uninit-register", f, ins.idx, f"{', '.join(missing)} is read but was never written"
            )
            raise TooManyHazards from err
        raise EmulatorError(f"{ins.where}: {ins.text}: {type(err).__name__}: {err}") from err


class _IndexOnly:
    def __init__(self, index, x, y, z):
        self.index, self.x, self.y, self.z = index, x, y, z


def _registers(ins):
    out = [ins.pred] if ins.pred is not None else []

    def walk(o, dest):
        if o is None:
            return
        if o.kind == "reg" and not dest:
            out.append(o.reg)
        elif o.kind in ("vec", "pair"):
            for x in o.items:
                walk(x, dest)
        elif o.kind == "mem":
            walk(o.base, False)
            walk(o.coords, False)

    store = ins.parts[0] in ("st", "stmatrix", "red", "bra", "cp", "mbarrier", "bar", "barrier")
    for k, o in enumerate(ins.ops):
        walk(o, k == 0 and not store)
    return out
