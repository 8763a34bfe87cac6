"""The same products written in Triton: an honest yardstick for the hand-written PTX.

A baseline only counts when it is given every advantage its language offers, so these kernels are
persistent, load and store through TMA tensor descriptors where the hardware has them, and are
autotuned per problem. They take the same arguments as ``torch.ops.deepasm.*`` and pass the same
tests.

Triton is an optional dependency, imported by the first call and never by ``import deepasm_torch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["available", "gemm", "last_choice"]


def available() -> tuple[bool, str]:
    """Whether Triton can be imported here, and the reason when it cannot.

    Returns
    -------
    (bool, str)
        ``(True, "triton 3.6.0")`` or ``(False, reason)``.
    """
    try:
        import triton
    except Exception as error:  # a broken install raises more than ImportError
        return False, f"triton cannot be imported: {type(error).__name__}: {error}"
    return True, f"triton {triton.__version__}"


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: int = 0,
    out_dtype: torch.dtype | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``activation(a @ b + bias)`` by an autotuned Triton kernel.

    Parameters
    ----------
    a, b : Tensor
        Both bfloat16 or both float16, with the shape rules of ``torch.matmul`` (1-D, 2-D, batched,
        broadcast batches) and any strides; on a CUDA device of compute capability 8.0 or newer.
    bias : Tensor, optional
        1-D, of size N or 1; the input dtype or float32. Added in float32, before the activation.
    activation : int
        0 none, 1 relu, 2 gelu (tanh), 3 gelu (erf), 4 silu.
    out_dtype : torch.dtype, optional
        bfloat16, float16 or float32; the inputs' dtype by default.
    out : Tensor, optional
        Where to write, of the output's shape and dtype; it is also what is returned. Strided
        outputs cost a copy.

    Returns
    -------
    Tensor

    Notes
    -----
    The first call for a problem compiles and times a handful of tile shapes (a few seconds); later
    calls reuse the winner. Call once outside of CUDA-graph capture.
    """
    from .launch import gemm as run

    return run(a, b, bias, activation, out_dtype, out=out)


def last_choice() -> str:
    """Kernel and tile of the latest call, such as "tma 128x256x64 w8 s4"; "" before the first."""
    from .launch import last_choice as last

    return last()
