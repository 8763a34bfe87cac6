"""Tile shapes worth trying, by the shape of the problem.

Few on purpose: the whole set for one problem has to compile and run in seconds. The lists come from
what is known to work on Hopper (128x256x64 on 8 warps for large products, deep rings of small tiles
when there are fewer tiles than multiprocessors, two resident CTAs whose epilogues and main loops
overlap when K is short).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    parts: int = 1  # epilogue column slices (TMA kernel)
    resident: int = 1  # CTAs per multiprocessor the persistent grid is sized for
    group_m: int = 8

    def smem(self, out_bytes: int) -> int:
        """Bytes of shared memory the ring and one epilogue slice take (barriers aside)."""
        ring = (self.bm + self.bn) * self.bk * 2 * self.stages
        return ring + self.bm * self.bn // self.parts * out_bytes

    def __str__(self) -> str:
        text = f"{self.bm}x{self.bn}x{self.bk} w{self.warps} s{self.stages}"
        return text + (f" x{self.resident}" if self.resident > 1 else "")


LARGE = (
    Config(128, 256, 64, 8, 3, parts=2),
    Config(128, 256, 64, 8, 4, parts=2),
    Config(256, 128, 64, 8, 3, parts=2),
    Config(128, 128, 64, 8, 4, parts=2),
    Config(128, 128, 64, 4, 3, parts=2, resident=2),
    Config(128, 128, 128, 8, 3, parts=2),
)
MEDIUM = (
    Config(128, 128, 64, 8, 5),
    Config(64, 128, 64, 4, 6),
    Config(128, 64, 64, 4, 6),
    Config(64, 256, 64, 4, 4, parts=2),
    Config(64, 64, 128, 4, 5),
    Config(64, 64, 64, 4, 6, resident=2),
)
# One side at most 64 wide: bandwidth decides, so many bytes in flight and enough tiles for all SMs.
NARROW_M = (
    Config(64, 128, 128, 4, 4),
    Config(64, 64, 128, 4, 6),
    Config(64, 32, 128, 4, 7),
    Config(64, 16, 128, 4, 8),
    Config(64, 64, 64, 4, 5, resident=2),
)
NARROW_N = (
    Config(128, 64, 64, 4, 6),
    Config(128, 32, 64, 4, 6, resident=2),
    Config(64, 64, 128, 4, 6),
    Config(64, 32, 128, 4, 7),
    Config(64, 16, 128, 4, 8),
)

POINTER = (
    Config(128, 256, 64, 8, 3),
    Config(128, 128, 64, 8, 3),
    Config(128, 128, 32, 4, 4),
    Config(64, 128, 32, 4, 4),
    Config(64, 64, 64, 4, 4),
    Config(32, 64, 64, 4, 4),
)
POINTER_NARROW = (
    Config(16, 64, 128, 4, 4),
    Config(16, 128, 64, 4, 4),
    Config(64, 16, 128, 4, 4),
    Config(64, 64, 64, 4, 4),
    Config(128, 32, 64, 4, 4),
)


def candidates(
    m: int, n: int, batch: int, sms: int, smem_limit: int, out_bytes: int, tma: bool
) -> tuple[Config, ...]:
    """The configurations to time for one problem, best guess first.

    Parameters
    ----------
    m, n, batch : int
        Output sizes.
    sms : int
        Multiprocessors of the device.
    smem_limit : int
        Shared memory one CTA may have, bytes.
    out_bytes : int
        Size of an output element (the TMA kernel stages its epilogue in shared memory).
    tma : bool
        For the TMA kernel, else for the pointer kernel.
    """
    if tma:
        tiles = -(-m // 128) * -(-n // 256) * batch
        if m <= 64:
            chosen = NARROW_M
        elif n <= 64:
            chosen = NARROW_N
        elif tiles * 4 >= sms * 3:
            chosen = LARGE
        elif tiles * 2 >= sms:
            chosen = LARGE[:4] + MEDIUM[1:3]
        else:
            chosen = MEDIUM
        staged = out_bytes
    else:
        chosen = POINTER_NARROW if min(m, n) <= 32 else POINTER
        staged = 0
    # 256 bytes for the barriers.
    fitting = tuple(c for c in chosen if c.smem(staged) + 256 <= smem_limit)
    return fitting or (Config(64, 64, 32, 4, 2),)
