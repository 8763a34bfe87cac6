"""Shadow state of global memory: who wrote each granule, in which order, and how often.

Modelled: races between warps, asynchronous agents and CTAs once a kernel has written an
allocation; reads of memory that nothing initialised; generic writes that a TMA load reads without
a proxy fence; accesses before `griddepcontrol.wait`; output elements written twice or never (on
request). Ordering between clusters comes from atomics and strong loads and stores only: a release
publishes what the warp knows (a relaxed operation only what a fence covered), an acquire makes it
known to the whole cluster of the acquiring warp. Scopes of fences are not distinguished.

Not modelled: a read that races with a later write of an allocation which the kernel had not written
yet (another schedule shows it the other way round), and stale non-coherent caches.

The granule is the narrowest global store of the program. A stamp is an index into `stamps`.
"""

import numpy as np

from .memory import GLOBAL_BASE

UNINIT = "reads global memory that nothing has written"


class Stamp:
    """One recorded access: cluster index, agent, epoch, instruction, strong or not."""

    __slots__ = ("agent", "cluster", "epoch", "pc", "strong")

    def __init__(self, cluster, agent, epoch, pc, strong):
        self.cluster, self.agent, self.epoch = cluster, agent, epoch
        self.pc, self.strong = pc, strong


class Accessor:
    """Who accesses: the agent, its epoch, and the clock that says what is ordered before it."""

    __slots__ = ("agent", "asynchronous", "clock", "cluster", "epoch", "strong", "who")

    def __init__(self, warp, agent=None, epoch=None, clock=None, asynchronous=False, strong=False):
        self.agent = warp.agent if agent is None else agent
        self.epoch = warp.epoch if epoch is None else epoch
        self.clock = warp.clock if clock is None else clock
        self.cluster, self.who = warp.cta.cluster, warp.who
        self.asynchronous, self.strong = asynchronous, strong


class GlobalShadow:
    """Race detector of one launch's global memory."""

    def __init__(self, run, granule, outputs):
        self.run, self.log, self.memory = run, run.log, run.memory
        self.shift = granule.bit_length() - 1
        self.stamps = [None]
        self.written, self.read_by = {}, {}  # allocation -> stamp index per granule
        self.counts = {}
        self.expected = {}
        for name, mask in outputs.items():
            al = self.memory.by_name[name]
            self.counts[al] = np.zeros(self._size(al), np.uint8)
            self.expected[al] = mask

    def _size(self, al):
        return ((al.end - 1) >> self.shift) - (al.start >> self.shift) + 1

    def _granules(self, al, off, nb):
        first = (off >> self.shift) - (al.start >> self.shift)
        k = max(1, nb >> self.shift)
        if k == 1:
            return first
        return (np.asarray(first)[..., None] + np.arange(k)).reshape(-1)

    def _stamp(self, by, pc):
        self.stamps.append(Stamp(by.cluster.index, by.agent, by.epoch, pc, by.strong))
        return len(self.stamps) - 1

    def _ordered(self, s, by, asynchronous=False):
        """True when the stamped access is ordered before accessor ``by``."""
        if s.strong and by.strong:
            return True
        if s.cluster == by.cluster.index:
            agent = by.cluster.clocks.proxy_of[s.agent] if asynchronous else s.agent
            return by.clock[agent] >= s.epoch
        known = by.cluster.foreign.get(s.cluster)
        return known is not None and known[s.agent] >= s.epoch

    def _late(self, stamps, by):
        """First stamp that is not ordered before the accessor, and where it occurs."""
        first = int(stamps[0])
        if (stamps == first).all():
            kinds = (first,)
        else:
            kinds = np.unique(stamps).tolist()
        for s in kinds:
            if s and not self._ordered(self.stamps[s], by):
                return self.stamps[s], stamps == s
        return None, None

    def _split(self, al, off, nb):
        """Pairs (allocation, offsets); ``al`` is the allocation when the caller knows it."""
        off = np.atleast_1d(off)
        if al is None:
            al = self.memory.find(int(off.min()))
            if al is None or int(off.max()) + nb > al.end:
                out = {}
                for o in off.tolist():
                    out.setdefault(self.memory.find(o), []).append(o)
                return [(al, np.array(v)) for al, v in out.items() if al is not None]
        return [(al, off)]

    # ------------------------------------------------------------------ checks
    def quiet(self, al):
        """True when reads of an allocation need no check: host data that no kernel code wrote."""
        return al is not None and not al.uninitialised and al not in self.written

    def read(self, by, off, nb, pc, known=None):
        """Check and record a read of ``nb`` bytes at each arena offset."""
        for al, o in self._split(known, off, nb):
            ids = self.written.get(al)
            if ids is None:
                if al.uninitialised:
                    self.report("uninit-global", al, int(o[0]), pc, by, UNINIT)
                continue
            g = self._granules(al, o, nb)
            w = ids[g]
            if al.uninitialised and not w.all():
                self.report("uninit-global", al, self._byte(al, g, w == 0), pc, by, UNINIT)
            s, where = self._late(w, by)
            if s is not None:
                text = "reads data that is not ordered before it, written by"
                self.report("race-global", al, self._byte(al, g, where), pc, by, text, s)
            elif by.asynchronous:
                self._proxy(al, g, w, by, pc)
            self.read_by[al][g] = self._stamp(by, pc)

    def _proxy(self, al, g, w, by, pc):
        for s in np.unique(w):
            if s and not self._ordered(self.stamps[s], by, True):
                text = (
                    "the async proxy reads generic writes to global memory without"
                    " fence.proxy.async after them, written by"
                )
                at = self._byte(al, g, w == s)
                self.report("missing-proxy-fence", al, at, pc, by, text, self.stamps[s])
                return

    def write(self, by, off, nb, pc, known=None, reduction=False):
        """Check and record a write (or a reduction, which may meet other reductions)."""
        for al, o in self._split(known, off, nb):
            ids = self.written.get(al)
            if ids is None:
                ids = self.written[al] = np.zeros(self._size(al), np.int32)
                self.read_by[al] = np.zeros(len(ids), np.int32)
            g = self._granules(al, o, nb)
            for kind, table in (("written by", ids), ("read by", self.read_by[al])):
                s, where = self._late(table[g], by)
                if s is None or (s.agent == by.agent and s.cluster == by.cluster.index):
                    continue
                text = f"overwrites data that is not ordered before it, {kind}"
                self.report("race-global", al, self._byte(al, g, where), pc, by, text, s)
            ids[g] = self._stamp(by, pc)
            count = self.counts.get(al)
            if count is not None and not reduction:
                count[g] += 1
                again = count[g] > 1
                if again.any():
                    text = "an output element is written a second time"
                    self.report("output-twice", al, self._byte(al, g, again), pc, by, text)

    def finish(self):
        """After the last CTA: output elements that nobody wrote."""
        for al, count in self.counts.items():
            missing = count == 0
            mask = self.expected[al]
            if mask is not None:
                flat = np.asarray(mask, bool).reshape(-1)
                per = max(1, al.dtype.itemsize >> self.shift)
                missing = missing & np.repeat(flat, per)[: len(missing)]
            n = int(np.count_nonzero(missing))
            if n:
                at = GLOBAL_BASE + self._byte(al, np.arange(len(missing)), missing)
                text = f"{n << self.shift} bytes of {al.name!r} were never written"
                self.log.add("output-missing", None, text, address=at)

    def _byte(self, al, g, where):
        """Arena offset of the first granule for which ``where`` holds."""
        k = int(np.atleast_1d(g)[int(np.atleast_1d(where).argmax())])
        return max(al.start, ((al.start >> self.shift) + k) << self.shift)

    def report(self, kind, al, at, pc, by, text, stamp=None):
        """Record a finding at an arena offset."""
        if stamp is not None:
            ins = self.run.program.ins[stamp.pc]
            names = self.run.cluster_names[stamp.cluster]
            text += f" {names[stamp.agent]} ({ins.where}: {ins.op})"
        text += f" -- byte {at - al.start} of {al.name!r}"
        self.log.add(kind, pc, text, *by.who, GLOBAL_BASE + at)


class SyncClocks:
    """Clocks of global locations that atomics and strong accesses use to synchronise."""

    def __init__(self):
        self.at = {}

    def release(self, warp, address, qualified):
        """Publish what a warp knows (or, without .release, what a fence covered) at an address."""
        cl = warp.cta.cluster
        clock = warp.clock if qualified else np.minimum(cl.fenced, warp.clock)
        here = self.at.setdefault(address, {})
        for c, known in ((cl.index, clock), *cl.foreign.items()):
            old = here.get(c)
            here[c] = known.copy() if old is None else np.maximum(old, known)
        warp.clock[warp.agent] += 1

    def acquire(self, warp, address):
        """Take over what was published at an address."""
        here = self.at.get(address)
        if here is None:
            return
        cl = warp.cta.cluster
        for c, known in here.items():
            if c == cl.index:
                warp.acquire(known)
            else:
                old = cl.foreign.get(c)
                cl.foreign[c] = known.copy() if old is None else np.maximum(old, known)
