"""The GEMM kernels that ship: d = act(alpha * a @ b + beta * c + bias)."""

from .gemm_row import DTYPES, LAYOUTS, GemmKernel
from .gemm_sm80 import SM80_KERNELS
from .gemm_sm90 import SM90_KERNELS

#: Every shipped GEMM kernel; the index of a row is its `variant` number.
KERNELS = SM90_KERNELS + SM80_KERNELS

__all__ = ["DTYPES", "KERNELS", "LAYOUTS", "GemmKernel"]
