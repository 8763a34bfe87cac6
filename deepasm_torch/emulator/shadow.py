"""Shadow state of a CTA's shared memory: last writer and readers per granule, vector clocks.

Every warp and every asynchronous agent (one tensor-core agent per warpgroup, one TMA agent per
mbarrier, per warp one bulk-store and one cp.async agent) has an index into the clocks of its
cluster. A stamp is ``agent << 48 | instruction << 32 | epoch``; an access is ordered after the
stamped one when the accessor's clock holds at least that epoch for the agent.

The granule is the narrowest per-thread shared access of the program (16, 4, 2 or 1 bytes): finer
would cost time, coarser would report neighbours.
"""

import numpy as np

from .errors import EmulatorError

EPOCH = (1 << 32) - 1
SEVERAL = 32  # in place of a lane number: the whole warp


class Clocks:
    """Agent numbering of one cluster; clocks are int64 arrays that may grow."""

    def __init__(self, capacity):
        self.n = 1  # agent 0 is "nobody"
        self.names = ["nobody"]
        self.capacity = capacity
        self.proxy_of = np.arange(capacity)
        self._proxies = None

    def new(self, name):
        """A new agent index."""
        i = self.n
        if i >= self.capacity:
            raise EmulatorError(
                "one cluster uses more mbarriers and warps than the race detector can"
                " tell apart; run with hazards=False"
            )
        self.n += 1
        self.names.append(name)
        return i

    def proxies(self):
        """Index arrays (agents, their proxy agents) of all warps."""
        if self._proxies is None or self._proxies[0] != self.n:
            agents = np.flatnonzero(self.proxy_of != np.arange(self.capacity))
            self._proxies = (self.n, agents, self.proxy_of[agents])
        return self._proxies[1:]

    def zero(self):
        return np.zeros(self.capacity, np.int64)


class Shadow:
    """Race detector of one shared-memory window."""

    def __init__(self, size, granule, clocks, log, cta):
        self.shift = granule.bit_length() - 1
        n = (size >> self.shift) + 1
        self.w = np.zeros(n, np.int64)
        self.strong = set()  # instructions that synchronise (atomics, volatile accesses)
        self.readers = {}  # agent -> [epochs, newest epoch, last pc]
        self.clocks, self.log, self.cta = clocks, log, cta
        self.lane_w = self.lane_r = None  # made when a warp first uses per-lane accesses

    def index(self, off, nbytes):
        """Granule index array or slice of byte offsets (int or array) of ``nbytes`` each."""
        s = self.shift
        if off.__class__ is int:
            return slice(off >> s, ((off + nbytes - 1) >> s) + 1)
        if nbytes <= 1 << s:
            return off >> s
        k = nbytes >> s
        return ((off >> s)[:, None] + np.arange(k)).reshape(-1)

    def expand(self, idx16):
        """Granules of 16-byte chunks."""
        s = 4 - self.shift
        if s == 0:
            return idx16
        return ((idx16 << s)[:, None] + np.arange(1 << s)).reshape(-1)

    # ------------------------------------------------------------------ checks
    def read(self, idx, agent, epoch, clock, pc, who, is_async=False, strong=False):
        """Check and record a read of granules ``idx``."""
        if strong:
            self.strong.add(pc)
        w = self.w[idx]
        ag = w >> 48
        have = clock[self.clocks.proxy_of[ag]] if is_async else clock[ag]
        if not w.all() or (have < (w & EPOCH)).any():
            self.bad_read(idx, w, clock, pc, who, is_async, strong)
        r = self.readers.get(agent)
        if r is None:
            r = self.readers[agent] = [np.zeros(len(self.w), np.int64), 0, pc]
        r[0][idx] = epoch
        r[1], r[2] = epoch, pc

    def write(self, idx, agent, epoch, clock, pc, who, strong=False):
        """Check and record a write of granules ``idx``."""
        if strong:
            self.strong.add(pc)
        w = self.w[idx]
        bad = clock[w >> 48] < (w & EPOCH)
        if bad.any():
            k = int(bad.argmax())
            s = int(w[k])
            if not (strong and self._pc(s) in self.strong):
                text = "overwrites data that is not ordered before it, written by"
                self.report("race-waw", idx, k, pc, who, s, text)
        for a, r in self.readers.items():
            if a != agent and clock[a] < r[1]:
                late = r[0][idx] > clock[a]
                if late.any() and not (strong and r[2] in self.strong):
                    text = "overwrites data that may still be read by"
                    self.report(
                        "race-war", idx, int(late.argmax()), pc, who, r[2] << 32 | a << 48, text
                    )
                    break
        self.w[idx] = agent << 48 | pc << 32 | epoch

    # ------------------------------------------------------------------ lanes of one warp
    def lanes_read(self, idx, lane, warp, pc):
        """A per-lane read: no other lane may have written since the warp last synchronised.

        ``lane`` is a lane number per granule, or `SEVERAL` for instructions of the whole warp.
        """
        if self.lane_w is None:
            self.lane_w, self.lane_r = np.zeros(len(self.w), np.int64), np.zeros_like(self.w)
        mark = warp.agent << 32 | warp.syncs
        old = self.lane_w[idx]
        bad = (old >> 8 == mark) & ((old & 255) != lane)
        if bad.any():
            bad &= self.w[idx] >> 48 == warp.agent
            self._lanes(idx, bad, "reads what another lane", "wrote", warp, pc)
        self.lane_r[idx] = mark << 8 | lane

    def lanes_write(self, idx, lane, warp, pc):
        """A per-lane write: no other lane may have accessed it since the warp synchronised."""
        if self.lane_w is None:
            self.lane_w, self.lane_r = np.zeros(len(self.w), np.int64), np.zeros_like(self.w)
        mark = warp.agent << 32 | warp.syncs
        for seen, what in ((self.lane_w, "wrote"), (self.lane_r, "read")):
            old = seen[idx]
            bad = (old >> 8 == mark) & ((old & 255) != lane)
            if bad.any():
                self._lanes(idx, bad, "overwrites what another lane", what, warp, pc)
        self.lane_w[idx] = mark << 8 | lane

    def _lanes(self, idx, bad, text, what, warp, pc):
        if bad.any():
            text = f"{text} of the warp {what}, without bar.warp.sync or a barrier in between"
            self.report("race-lanes", idx, int(bad.argmax()), pc, warp.who, None, text)

    # ------------------------------------------------------------------ reports
    @staticmethod
    def _pc(stamp):
        return (stamp >> 32) & 0xFFFF

    def bad_read(self, idx, w, c, pc, who, is_async, strong):
        none = w == 0
        if none.any():
            text = "reads shared memory that nothing has written"
            self.report("uninit-shared", idx, int(none.argmax()), pc, who, None, text)
        late = c[w >> 48] < (w & EPOCH)
        if late.any():
            k = int(late.argmax())
            s = int(w[k])
            if not (strong and self._pc(s) in self.strong):
                text = "reads data that is not ordered before it, written by"
                self.report("race-raw", idx, k, pc, who, s, text)
        elif is_async:
            px = c[self.clocks.proxy_of[w >> 48]] < (w & EPOCH)
            if px.any():
                k = int(px.argmax())
                text = (
                    "the async proxy reads generic writes without fence.proxy.async after them,"
                    " written by"
                )
                self.report("missing-proxy-fence", idx, k, pc, who, int(w[k]), text)

    def report(self, kind, idx, k, pc, who, other, text):
        if isinstance(idx, slice):
            g = idx.start + k
        else:
            g = int(np.asarray(idx).reshape(-1)[k])
        if other is not None:
            ins = self.log.program.ins[(other >> 32) & 0xFFFF]
            text += f" {self.clocks.names[other >> 48]} ({ins.where}: {ins.op})"
        cta, warp = who
        self.log.add(kind, pc, text, cta, warp, (self.cta.rank << 24) | (g << self.shift))
