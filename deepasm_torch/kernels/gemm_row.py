"""One row of the GEMM kernel table, and the vocabulary its columns use."""

from __future__ import annotations

from dataclasses import dataclass, field

DTYPES = {"bf16": 0, "f16": 1}  # input dtype -> number used by C++
LAYOUTS = {"nt": ("k", "k"), "nn": ("k", "n"), "tn": ("m", "n"), "tt": ("m", "k")}

MAX_SMEM = {80: 99 * 1024, 90: 227 * 1024}  # dynamic shared memory that every GPU of a tier has


@dataclass(frozen=True)
class GemmKernel:
    """One shipped GEMM kernel: identity, tile, launch shape, and the numbers its template uses."""

    name: str
    template: str  # path below ptx/
    tier: int  # 80 or 90
    dtype: str  # "bf16" or "f16"
    a_major: str  # 'k', 'm', or '*' (any strides)
    b_major: str  # 'k', 'n', or '*'
    schedule: str  # "coop", "pingpong" (sm90), "mma" (sm80)
    bm: int
    bn: int
    bk: int
    stages: int
    threads: int
    smem: int  # dynamic shared memory, bytes
    loads: str  # "tma", "cp16", "any"
    max_regs: int  # budget at entry; more, or any spill, fails the build
    values: dict = field(hash=False, compare=False, default_factory=dict)  # template variables

    op = "gemm"
    cluster = 1

    def __post_init__(self):
        if self.smem > MAX_SMEM[self.tier]:
            raise ValueError(f"{self.name}: {self.smem} B of shared memory exceed {MAX_SMEM[self.tier]} B")
