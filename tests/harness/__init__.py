"""The GEMM test harness: checkasm's habits applied to GPU kernels.

One call of `check_gemm` builds guarded operands from a replayable seed, runs one kernel, and holds
the result against float64; `registry` decides which problems each row of the kernel table sees.
`@isolated()` runs a test in a process of its own, for cases that may poison the CUDA context.
"""

from .compare import Verdict, exact_verdict, tile_verdict
from .devices import cuda_missing, requires_gpu, tier_missing
from .gemm import check_gemm
from .problem import GemmCase, integers
from .process import isolated
from .seeds import case_seed, session_seed

__all__ = [
    "GemmCase",
    "Verdict",
    "case_seed",
    "check_gemm",
    "cuda_missing",
    "exact_verdict",
    "integers",
    "isolated",
    "requires_gpu",
    "session_seed",
    "tier_missing",
    "tile_verdict",
]
