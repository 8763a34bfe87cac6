"""Checked shared-memory accesses of a warp, with everything derived from the addresses cached.

A warp repeats few address patterns many times, so one dictionary look-up replaces the bounds and
alignment checks, the shadow granules and the bank-conflict count of an access.
"""

import numpy as np

from ..counters import ideal_wavefronts, wavefronts
from ..cta import SHARED_START


class Pattern:
    """What a set of active lanes' shared addresses means.

    Attributes
    ----------
    rank : int
        CTA rank all addresses name, or -1 when they name several.
    off : int64 array
        Byte offsets of the active lanes; ``index`` the same in units of the element size.
    mask : bool array or None
        Active lanes; None means all 32.
    error : (kind, address, lane offset) or None
    """

    __slots__ = (
        *("bytes", "error", "granules", "ideal", "index", "lane", "mask", "n", "off", "rank"),
        "size",
        "wavefronts",
    )

    def __init__(self, act, size, nb, mask, limit, shift):
        self.mask, self.size, self.n = mask, size, len(act)
        ranks = act >> 24
        self.rank = int(ranks[0]) if (ranks == ranks[0]).all() else -1
        self.off = off = (act & 0xFFFFFF).astype(np.int64)
        self.error = None
        bad = (off + size > limit) | (off < SHARED_START)
        if bad.any():
            self.error = ("oob-shared", int(act[int(bad.argmax())]))
        elif (off & (size - 1)).any():
            self.error = ("misaligned", int(act[int((off & (size - 1) != 0).argmax())]))
        self.index = off // nb
        if size <= 1 << shift:
            self.granules = off >> shift
        else:
            self.granules = ((off >> shift)[:, None] + np.arange(size >> shift)).reshape(-1)
        lane = np.arange(32) if mask is None else np.flatnonzero(mask)
        self.lane = np.repeat(lane[: self.n], len(self.granules) // self.n)  # of each granule
        self.wavefronts, self.ideal = wavefronts(off, size), ideal_wavefronts(off, size)
        self.bytes = None

    def byte_index(self):
        """Every byte of the access, for the write-visibility overlay."""
        if self.bytes is None:
            self.bytes = (self.off[:, None] + np.arange(self.size)).reshape(-1)
        return self.bytes


def report_error(f, pc, what, size, kind, address):
    """Report an out-of-bounds or misaligned shared access."""
    if kind == "misaligned":
        text = f"{what} of {size} bytes at a shared address that is not a multiple of {size}"
    else:
        text = (
            f"{what} of {size} bytes at offset {address & 0xFFFFFF:#x} is outside the "
            f"{f.cta.smem.size - SHARED_START} bytes of shared memory"
        )
    f.run.log.at(kind, f, pc, text, address)


def cta_of(f, rank, address, pc):
    """CTA of the cluster by rank, or None after a report."""
    cta = f.cta
    if rank == cta.rank:
        return cta
    ctas = cta.cluster.ctas
    if rank >= len(ctas):
        text = f"shared address {address:#x} names CTA rank {rank} of a cluster of {len(ctas)}"
        f.run.log.at("oob-shared", f, pc, text, address)
        return None
    if ctas[rank].gone:
        f.run.log.at("peer-exited", f, pc, f"CTA rank {rank} of the cluster has exited", address)
    return ctas[rank]


def pattern(f, a, nb, nv, p, pc, what):
    """Pattern of a per-lane access (``nv`` elements of ``nb`` bytes) and its CTA.

    Returns
    -------
    (Pattern, Cta)
        The pattern is None when no lane is active or the access was reported and must not happen;
        the CTA is None when the lanes address different CTAs.
    """
    if f.full and p is True:
        m = None
        key = (a.tobytes(), nb, nv)
    else:
        m = f.active(p)
        key = (a.tobytes(), nb, nv, m.tobytes())
    cache = f.run.patterns
    pat = cache.get(key)
    if pat is None:
        act = a if m is None else a[m]
        if not act.size:
            return None, None
        if m is not None and m.all():
            m = None
        shift = f.run.program.granule.bit_length() - 1
        pat = cache[key] = Pattern(act, nb * nv, nb, m, f.run.smem_size, shift)
    if pat.error is not None:
        report_error(f, pc, what, pat.size, *pat.error)
        return None, None
    if pat.rank == f.cta.rank:
        return pat, f.cta
    if pat.rank < 0:
        return pat, None
    cta = cta_of(f, pat.rank, pat.rank << 24, pc)
    return (None, None) if cta is None else (pat, cta)


def scalar(f, a, size, pc, what):
    """CTA of an access by one address, or None after a report."""
    cta = f.cta if a >> 24 == f.cta.rank else cta_of(f, a >> 24, a, pc)
    if cta is None:
        return None
    o = a & 0xFFFFFF
    if o < SHARED_START or o + size > cta.smem.size:
        report_error(f, pc, what, size, "oob-shared", a)
        return None
    if o % size:
        report_error(f, pc, what, size, "misaligned", a)
        return None
    return cta
