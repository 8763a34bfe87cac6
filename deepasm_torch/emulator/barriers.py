"""Named barriers, the cluster barrier and the register pool of setmaxnreg."""

from .machine import Waitable


class Generation:
    """One use of a barrier: done flag, joined clock, predicate count for bar.red."""

    __slots__ = ("clock", "count", "done", "threads")

    def __init__(self, clock):
        self.done, self.clock = False, clock
        self.count = self.threads = 0


class NamedBarrier(Waitable):
    """bar.sync / bar.arrive resource; counts are threads, warps arrive as 32."""

    __slots__ = ("arrived", "cta", "expected", "gen", "index", "warps")

    def __init__(self, cta, index):
        super().__init__()
        self.cta, self.index = cta, index
        self.reset()

    def reset(self):
        self.arrived, self.expected, self.warps = 0, None, set()
        self.gen = Generation(self.cta.cluster.clocks.zero())

    def describe(self):
        return (
            f"barrier {self.index}: {self.arrived} of {self.expected or 'all'} threads arrived "
            f"(warps {sorted(self.warps)})"
        )

    def arrive(self, f, n, pc, is_sync):
        """Arrive once per execution; True when the fragment may go on."""
        w, log = f.warp, f.run.log
        if f.token is not None:
            if not f.token.done:
                return f.block(self)
            w.acquire(f.token.clock)
            f.token = None
            return True
        if n is not None and (n % 32 or n == 0):
            log.at("barrier-count", f, pc, f"thread count {n} is not a positive multiple of 32")
        if self.arrived and n != self.expected:
            log.at(
                "barrier-count",
                f,
                pc,
                f"barrier {self.index} is used with {n} threads while a "
                f"use with {self.expected} is in progress",
            )
        if w.index in self.warps:
            log.at(
                "barrier-reuse",
                f,
                pc,
                f"warp arrives twice at barrier {self.index} before it completed",
            )
        self.expected = n
        self.arrived += 32
        self.warps.add(w.index)
        gen = self.gen
        w.release(gen.clock)
        self.recheck()
        if not is_sync:
            return True
        if gen.done:
            w.acquire(gen.clock)
            return True
        f.token = gen
        return f.block(self)

    def recheck(self):
        """Complete when enough threads arrived (warps that exited do not count)."""
        if not self.arrived:
            return
        need = self.expected
        if need is None:
            need = 32 * self.cta.live_warps
        if self.arrived >= need:
            if self.expected is not None and self.arrived > need:
                self.cta.run.log.add(
                    "barrier-count",
                    None,
                    f"{self.arrived} threads arrived at barrier {self.index} that expects {need}",
                    self.cta.id3,
                )
            gen = self.gen
            gen.done = True
            self.reset()
            self.wake()


class ClusterBarrier(Waitable):
    """barrier.cluster.arrive / wait over all warps of the cluster."""

    __slots__ = ("arrived", "cluster", "gen", "state")

    def __init__(self, cluster):
        super().__init__()
        self.cluster = cluster
        self.state = {}  # warp -> generation it arrived at and has not waited for
        self.arrived = 0
        self.gen = Generation(cluster.clocks.zero())

    def describe(self):
        return f"the cluster barrier: {self.arrived} of {self.live()} warps arrived"

    def live(self):
        return sum(c.live_warps for c in self.cluster.ctas if c.warps)

    def arrive(self, f, pc, relaxed):
        w = f.warp
        if w in self.state:
            f.run.log.at("cluster-barrier", f, pc, "a warp arrives twice without waiting")
        self.state[w] = self.gen
        self.arrived += 1
        if not relaxed:
            w.release(self.gen.clock)
        self.recheck()

    def recheck(self):
        if self.arrived and self.arrived >= self.live():
            self.gen.done = True
            self.gen = Generation(self.cluster.clocks.zero())
            self.arrived = 0
            self.wake()

    def wait(self, f, pc):
        w = f.warp
        gen = self.state.get(w)
        if gen is None:
            f.run.log.at("cluster-barrier", f, pc, "a warp waits without having arrived")
            return True
        if not gen.done:
            return f.block(self)
        del self.state[w]
        w.acquire(gen.clock)
        return True


class RegisterPool(Waitable):
    """Registers of a CTA that setmaxnreg moves between warpgroups."""

    __slots__ = ("cta", "free", "pc", "per_warp")

    def __init__(self, cta):
        super().__init__()
        self.cta = cta
        d = cta.run.program.entry.directives
        threads = 32 * len(cta.warps)
        if d.get("maxnreg"):
            entry = d["maxnreg"][0]
        else:
            entry = min(255, 65536 // max(d.get("minnctapersm", (1,))[0] or 1, 1) // threads)
            entry = entry // 8 * 8
        self.per_warp = entry
        self.free = 0
        for w in cta.warps:
            w.reg_alloc = entry
        self.pc = None  # last setmaxnreg

    def describe(self):
        return f"registers from the CTA's pool ({self.free // 32} per thread of one warp free)"

    def at_exit(self):
        """The four warps of a warpgroup must have executed the same setmaxnreg."""
        for k in range(0, len(self.cta.warps), 4):
            counts = {w.reg_alloc for w in self.cta.warps[k : k + 4]}
            if len(counts) > 1:
                text = f"the warps of warpgroup {k // 4} end with {sorted(counts)} registers"
                self.cta.run.log.add("setmaxnreg", self.pc, text, self.cta.id3, k)

    def change(self, f, n, inc, pc):
        w = f.warp
        self.pc = pc
        old = w.reg_alloc
        if inc and n < old or not inc and n > old:
            f.run.log.at(
                "setmaxnreg", f, pc, f".{'inc' if inc else 'dec'} to {n} from {old} registers"
            )
        need = (n - old) * 32
        if need > self.free and inc:
            return f.block(self)
        self.free -= need
        w.reg_alloc = n
        if need < 0:
            self.wake()
        return True
