"""mbarrier objects: phase, pending arrivals, signed transaction count, clock."""

from .machine import Waitable

PENDING_BITS = 20  # a state token is phase << 20 | pending arrivals


class MBarrier(Waitable):
    """One mbarrier in shared memory.

    ``phase`` counts completed phases; waiting for parity P succeeds when the phase of that parity
    has completed, so on a fresh barrier parity 1 passes at once. The phase completes when no
    arrivals are pending and the transaction count is not positive; bytes beyond the expected ones
    are charged to the next phase (an under-counted expect_tx completes early on the chip too).
    """

    __slots__ = (
        "agent",
        "clock",
        "count",
        "cta",
        "done",
        "fenced",
        "init",
        "offset",
        "pending",
        "phase",
        "tx",
    )

    def __init__(self, cta, offset, count, agent_init):
        super().__init__()
        self.cta, self.offset, self.count = cta, offset, count
        self.pending, self.tx, self.phase = count, 0, 0
        cl = cta.cluster.clocks
        self.agent = cta.mbar_agents.get(offset)  # initialised again: the same copy engine
        if self.agent is None:
            self.agent = cl.new(f"TMA of the mbarrier at {cta.base | offset:#x} of CTA {cta.id3}")
            cta.mbar_agents[offset] = self.agent
        self.clock, self.done = cl.zero(), cl.zero()
        self.init = agent_init  # (agent, epoch) of the initialising warp
        self.fenced = False  # by fence.mbarrier_init

    def describe(self):
        return (
            f"the mbarrier at {self.cta.base | self.offset:#x}: phase {self.phase}, "
            f"{self.pending} of {self.count} arrivals pending, {self.tx} bytes outstanding"
        )

    def passed(self, x, parity):
        if parity:
            return (self.phase & 1) != (x & 1)
        return self.phase > x >> PENDING_BITS

    def settle(self, log, pc):
        """Complete the phase if it is due."""
        if self.pending == 0 and self.tx <= 0:
            if self.tx < 0:
                log.add(
                    "tx-count",
                    pc,
                    f"{-self.tx} more bytes arrived than {self.describe()} "
                    "expected; they count for the next phase",
                    self.cta.id3,
                    None,
                    self.cta.base | self.offset,
                )
            self.phase += 1
            self.pending = self.count
            self.done = self.clock.copy()
            self.cta.run.idle_polls = 0
            self.wake()

    def arrive(self, n, log, pc, who, drop=False):
        if n > self.pending:
            log.add(
                "over-arrive",
                pc,
                f"{n} arrivals at {self.describe()}",
                *who,
                self.cta.base | self.offset,
            )
            n = self.pending
        self.pending -= n
        if drop:
            self.count -= n
        self.settle(log, pc)

    def complete_tx(self, n, log, pc, asynchronous=True):
        """Bytes arrived (from the TMA agent)."""
        self.tx -= n
        if asynchronous:
            self.clock[self.agent] = self.phase + 1
        self.settle(log, pc)


def tx_bar_at(f, a, pc):
    """mbarrier object on which the copy engine, so the async proxy, will complete bytes."""
    b = mbar_at(f, a, pc)
    if b is None or b.fenced or not f.run.hazards:
        return b
    clocks = f.cta.cluster.clocks
    if f.warp.clock[clocks.proxy_of[b.init[0]]] < b.init[1]:
        f.run.log.at(
            "missing-proxy-fence",
            f,
            pc,
            "a copy signals an mbarrier whose mbarrier.init was not made visible to the async"
            " proxy (fence.mbarrier_init or fence.proxy.async after it)",
            a,
        )
    return b


def lane_value(x, lane):
    """Value of one lane."""
    return x if x.__class__ is int else int(x[lane])


def mbar_at(f, a, pc, use=True):
    """mbarrier object at a shared address, or None after a report."""
    rank = a >> 24
    cta = f.cta
    if rank != cta.rank:
        ctas = cta.cluster.ctas
        if rank >= len(ctas):
            f.run.log.at("mbarrier-address", f, pc, f"no CTA of rank {rank} in the cluster", a)
            return None
        cta = ctas[rank]
        if cta.gone:
            f.run.log.at("peer-exited", f, pc, f"CTA rank {rank} has exited", a)
    b = cta.mbars.get(a & 0xFFFFFF)
    if b is None:
        f.run.log.at("mbarrier-uninit", f, pc, "no mbarrier was initialised at this address", a)
        return None
    if use and f.run.hazards and f.warp.clock[b.init[0]] < b.init[1]:
        f.run.log.at(
            "mbarrier-init-race",
            f,
            pc,
            "mbarrier.init is not ordered before this use (no barrier in between)",
            a,
        )
    return b
