"""Kernel tables: one row per shipped kernel, data rather than code.

`kernels.gemm.KERNELS` is the order in which kernels are embedded in the extension; the index of a
row is the `variant` number that the internal ops take.  This package imports nothing but the
standard library, because the build uses it before torch or the extension is importable.
"""

from . import gemm, params

#: Every shipped kernel, in embedding order.
ALL = gemm.KERNELS

__all__ = ["ALL", "gemm", "params"]
