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
    d_major: str = "n"  # d's contiguous dimension; 'm' kernels serve the transposed problem

    op = "gemm"
    cluster = 1

    @property
    def reads(self) -> tuple[str, str]:
        """Majors that the caller's a and b must have: ('k' or 'm', 'k' or 'n'), '*' for any."""
        if self.d_major == "n":
            return self.a_major, self.b_major
        return {"k": "k", "n": "m"}[self.b_major], {"k": "k", "m": "n"}[self.a_major]

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the caller's output that one tile covers."""
        return (self.bm, self.bn) if self.d_major == "n" else (self.bn, self.bm)

    def __post_init__(self):
        if self.smem > MAX_SMEM[self.tier]:
            limit = MAX_SMEM[self.tier]
            raise ValueError(f"{self.name}: {self.smem} B of shared memory exceed {limit} B")
