"""Counters of a launch. All are deterministic for a given schedule and seed."""

import numpy as np


def wavefronts(off, nb):
    """Shared-memory wavefronts of one warp request.

    Parameters
    ----------
    off : int64 array
        Byte offsets of the active lanes.
    nb : int
        Bytes per lane. Accesses of 8 bytes go in half warps, of 16 bytes in quarter warps.
    """
    per = 1 if nb <= 4 else nb // 4
    group = 32 // per
    total = 0
    for g in range(0, len(off), group):
        words = (off[g : g + group] >> 2)[:, None] + np.arange(per)
        total += int(np.bincount(np.unique(words) & 31).max())
    return total


def ideal_wavefronts(off, nb):
    """Wavefronts that the distinct bytes of a request need at 128 bytes each."""
    return -(-len(np.unique(off)) * nb // 128)


class Counters:
    """Totals of one launch.

    Attributes
    ----------
    instructions : dict
        Warp instructions by class; ``by_role[role][class]`` splits them by what the warp does
        ("mma", "load" or "other", from the instructions it executed).
    lanes : int
        Sum of active lanes over all warp instructions.
    shared_requests, shared_wavefronts, shared_ideal : int
    global_requests, sectors, sectors_ideal : int
    bytes : dict
        Bytes moved by path: ``global_load``, ``global_store``, ``shared_load``, ``shared_store``,
        ``tma_load``, ``tma_store``, ``cp_async``, ``mma_shared``.
    blocks : dict
        How often each basic block of the program ran, by its index.
    """

    def __init__(self):
        self.instructions, self.by_role = {}, {}
        self.lanes = self.issued = 0
        self.shared_requests = self.shared_wavefronts = self.shared_ideal = 0
        self.global_requests = self.sectors = self.sectors_ideal = 0
        self.bytes, self.blocks = {}, {}
        self._sector = {}

    def add_bytes(self, path, n):
        self.bytes[path] = self.bytes.get(path, 0) + n

    def shared(self, pat, path):
        """One request of a warp, described by its `Pattern`."""
        self.shared_requests += 1
        self.shared_wavefronts += pat.wavefronts
        self.shared_ideal += pat.ideal
        self.bytes[path] = self.bytes.get(path, 0) + pat.n * pat.size

    def shared_one(self, off, nb, path):
        """One request in which every lane uses the same address."""
        self.shared_requests += 1
        self.shared_wavefronts += 1
        self.shared_ideal += 1
        self.bytes[path] = self.bytes.get(path, 0) + nb

    def global_(self, a, nb, path):
        """One request: active lanes' arena offsets (array) of ``nb`` bytes."""
        n = len(a)
        if n == 0:
            return
        rel = a - (a[0] & ~31)
        key = (nb, rel.tobytes())
        c = self._sector.get(key)
        if c is None:
            uniq = np.unique(rel)
            if nb > 32:
                s = np.unique((uniq[:, None] >> 5) + np.arange(nb >> 5))
            else:
                s = np.unique(np.concatenate([uniq >> 5, (uniq + nb - 1) >> 5]))
            c = self._sector[key] = (len(s), -(-len(uniq) * nb // 32))
        self.global_requests += 1
        self.sectors += c[0]
        self.sectors_ideal += c[1]
        self.bytes[path] = self.bytes.get(path, 0) + n * nb

    def fold(self, warp, blocks):
        """Add a finished warp's block counts."""
        tot = {}
        for k, n in enumerate(warp.count):
            if n:
                self.blocks[k] = self.blocks.get(k, 0) + n
                for c, m in blocks[k].classes.items():
                    tot[c] = tot.get(c, 0) + n * m
                self.issued += n * blocks[k].n
                self.lanes += warp.lane_count[k] * blocks[k].n
        role = "mma" if tot.get("mma") else "load" if tot.get("async") else "other"
        mine = self.by_role.setdefault(role, {})
        for c, m in tot.items():
            mine[c] = mine.get(c, 0) + m
            self.instructions[c] = self.instructions.get(c, 0) + m

    @property
    def total(self):
        """All executed warp instructions."""
        return sum(self.instructions.values())

    @property
    def warp_efficiency(self):
        """Active lanes per issued instruction over 32."""
        return self.lanes / (32 * self.issued) if self.issued else 1.0

    def as_dict(self):
        """Plain dict, for JSON and tests."""
        return {
            "total": self.total,
            "instructions": dict(sorted(self.instructions.items())),
            "by_role": {k: dict(sorted(v.items())) for k, v in sorted(self.by_role.items())},
            "warp_efficiency": self.warp_efficiency,
            "shared": {
                "requests": self.shared_requests,
                "wavefronts": self.shared_wavefronts,
                "ideal": self.shared_ideal,
            },
            "global": {
                "requests": self.global_requests,
                "sectors": self.sectors,
                "ideal": self.sectors_ideal,
            },
            "bytes": dict(sorted(self.bytes.items())),
        }
