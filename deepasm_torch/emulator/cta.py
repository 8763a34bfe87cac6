"""Thread blocks and clusters: shared memory, warps, exits."""

import numpy as np

from .machine import Warp
from .shadow import Clocks, Shadow

SHARED_START = 0x400  # the first KiB of the window belongs to the system


class SharedMemory:
    """Shared-memory window of a CTA, addressed by offset (the low 24 bits of an address)."""

    def __init__(self, size, overlay):
        self.size = size
        self.bytes = np.full(-(-size // 16) * 16, 0xFF, np.uint8)
        self.view = self._views(self.bytes)
        self.async_bytes = self.bytes.copy() if overlay else self.bytes
        self.async_view = self._views(self.async_bytes) if overlay else self.view
        self.overlay = overlay
        self.dirty = []  # (agent, epoch, byte index or slice): generic writes nobody fenced yet

    @staticmethod
    def _views(b):
        return {
            1: b,
            2: b.view(np.uint16),
            4: b.view(np.uint32),
            8: b.view(np.uint64),
            16: b.view(np.complex128),
        }

    def publish(self, clock):
        """A proxy fence by a warp with ``clock``: show covered generic writes to async readers."""
        keep = []
        for agent, epoch, idx in self.dirty:
            if clock[agent] >= epoch:
                self.async_bytes[idx] = self.bytes[idx]
            else:
                keep.append((agent, epoch, idx))
        self.dirty = keep


class Cta:
    """One thread block."""

    def __init__(self, run, cluster, rank, id3):
        self.run, self.cluster, self.rank, self.id3 = run, cluster, rank, id3
        self.base = rank << 24
        self.smem = SharedMemory(run.smem_size, run.policy.overlay)
        self.shadow = None
        self.mbars, self.mbar_agents = {}, {}
        self.named = {}
        self.sym = {n: self.base | off for n, off in run.shared_symbols.items()}
        self.static_used = run.shared_used
        self.warps, self.groups = [], []
        self.sregs = {}
        self.pool = None
        self.gone = False
        self.acquired_maps = {}

    def start(self):
        run = self.run
        if run.hazards:
            self.shadow = Shadow(
                self.smem.size, run.program.granule, self.cluster.clocks, run.log, self
            )
        n = run.block[0] * run.block[1] * run.block[2]
        for w in range(-(-n // 32)):
            self.warps.append(Warp(self, w, n, run.program))
        self.live_warps = len(self.warps)
        self.local = {}

    def warp_done(self, warp):
        self.live_warps -= 1
        self.run.on_warp_exit(self, warp)
        for b in self.named.values():
            b.recheck()
        if self.cluster.barrier is not None:
            self.cluster.barrier.recheck()
        if self.live_warps == 0:
            self.run.on_cta_exit(self)


class Cluster:
    """CTAs that share a distributed shared memory (one CTA when the launch has no clusters)."""

    def __init__(self, run, index):
        self.run, self.index = run, index
        self.ctas = []
        self.barrier = None
        warps = -(-run.block[0] * run.block[1] * run.block[2] // 32)
        self.clocks = Clocks(run.cluster_size * (7 * warps + 96) + 8)
        self.grid_agent = self.clocks.new("the grid before this one")
        self.fenced = self.clocks.zero()  # what fences of any warp have covered
        self.foreign = {}  # cluster index -> clock of that cluster, learnt through global memory
        run.cluster_names[index] = self.clocks.names
