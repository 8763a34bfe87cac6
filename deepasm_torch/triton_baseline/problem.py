"""What a GEMM call asks for, as numbers: no Triton, no launch, so it is tested on any machine.

:func:`describe` applies torch.matmul's shape rules, collapses the batch to at most two dimensions
and finds, for each operand, which of its dimensions is contiguous and how well it is aligned.
"""

from __future__ import annotations

import dataclasses
import math

import torch

TMA_BYTES = 16  # base addresses and all strides but the innermost, in bytes
ACTIVATIONS = ("none", "relu", "gelu_tanh", "gelu_erf", "silu")
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclasses.dataclass(frozen=True)
class Operand:
    """One input as the kernels see it: [z1, z0, rows, cols], strides in elements.

    ``rows`` is the output dimension (M of A, N of B) and ``cols`` is K, whatever the storage order.
    ``major`` is "k" when K is contiguous, "o" when the output dimension is, "" when neither.
    """

    tensor: torch.Tensor
    rows: int
    cols: int
    row_stride: int
    col_stride: int
    z0_stride: int
    z1_stride: int
    major: str

    @property
    def outer_stride(self) -> int:
        return self.row_stride if self.major == "k" else self.col_stride

    @property
    def unit(self) -> int:
        """Largest power of two, at most 8 elements, that divides every stride but the unit one."""
        if not self.major:
            return 1
        return math.gcd(8, self.outer_stride, self.z0_stride, self.z1_stride)

    @property
    def tma(self) -> bool:
        """Whether TMA can load it: one unit stride, everything else a multiple of 16 bytes."""
        per = TMA_BYTES // self.tensor.element_size()
        strides = (self.outer_stride, self.z0_stride, self.z1_stride)
        return (
            bool(self.major)
            and self.tensor.data_ptr() % TMA_BYTES == 0
            and all(stride >= 0 and stride % per == 0 for stride in strides)
        )


@dataclasses.dataclass(frozen=True)
class Problem:
    """A whole call: ``out[z1, z0] = act(a @ b + bias)``."""

    a: Operand
    b: Operand
    bias: torch.Tensor | None
    activation: int
    m: int
    n: int
    k: int
    nz0: int
    nz1: int
    shape: tuple[int, ...]
    out_dtype: torch.dtype

    @property
    def batch(self) -> int:
        return self.nz0 * self.nz1

    @property
    def tma_load(self) -> bool:
        """TMA loads need one batch dimension; two appear only with partly broadcast batches."""
        return self.nz1 == 1 and self.a.tma and self.b.tma

    @property
    def tma_store(self) -> bool:
        """A TMA store clips at 16-byte granularity, so the rows must be whole chunks."""
        return self.n * self.out_dtype.itemsize % TMA_BYTES == 0


def describe(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Problem:
    """Check the arguments and normalise them.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given, what is supported and what to do instead.
    """
    if a.dtype != b.dtype or a.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(
            f"a, b: got {a.dtype} and {b.dtype}; the Triton baseline takes two bfloat16 or two "
            "float16 tensors. Convert the inputs, or call torch.matmul."
        )
    out_dtype = out_dtype or a.dtype
    if out_dtype not in OUT_DTYPES:
        raise TypeError(f"out_dtype: got {out_dtype}; supported are bfloat16, float16, float32.")
    if not 0 <= activation < len(ACTIVATIONS):
        raise ValueError(
            f"activation: got {activation}; supported are "
            + ", ".join(f"{code} ({name})" for code, name in enumerate(ACTIVATIONS))
        )
    if not a.dim() or not b.dim():
        raise ValueError(
            "a, b: a 0-dimensional tensor was given; at least one dimension is needed."
        )

    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(1) if b.dim() == 1 else b
    m, k = left.shape[-2:]
    n = right.shape[-1]
    if right.shape[-2] != k:
        raise ValueError(
            f"a, b: the inner dimensions differ, {tuple(a.shape)} @ {tuple(b.shape)}; a's last "
            "dimension must equal b's second to last. Transpose one of them."
        )
    try:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except RuntimeError as error:
        raise ValueError(
            f"a, b: batch dimensions {tuple(left.shape[:-2])} and {tuple(right.shape[:-2])} do not "
            "broadcast. Reshape or expand one of them."
        ) from error
    shape = (*batch, *([m] if a.dim() > 1 else []), *([n] if b.dim() > 1 else []))

    if bias is not None:
        if bias.dim() != 1 or bias.shape[0] not in (1, n):
            raise ValueError(f"bias: got shape {tuple(bias.shape)}; supported is ({n},) or (1,).")
        bias = bias.expand(n).contiguous()

    if right.dim() == 2 and left.dim() > 2 and _folds(left):
        # One product with more rows instead of a batch that shares its B.
        left = left.flatten(0, -2)
        m, batch = left.shape[0], torch.Size()

    left = left.expand(*batch, m, k)
    right = right.expand(*batch, k, n)
    sizes, a_z, b_z = _collapse(batch, left.stride()[:-2], right.stride()[:-2])
    if len(sizes) > 2:
        # Three or more batch dimensions broadcast in different patterns: copy, then one remains.
        left, right = left.reshape(-1, m, k), right.reshape(-1, k, n)
        sizes, a_z, b_z = [left.shape[0]], [left.stride(0)], [right.stride(0)]
    nz1, nz0 = [1] * (2 - len(sizes)) + sizes
    a_z = [0] * (2 - len(a_z)) + a_z
    b_z = [0] * (2 - len(b_z)) + b_z

    return Problem(
        a=_operand(left, m, k, left.stride(-2), left.stride(-1), *a_z),
        b=_operand(right, n, k, right.stride(-1), right.stride(-2), *b_z),
        bias=bias,
        activation=activation,
        m=m,
        n=n,
        k=k,
        nz0=nz0,
        nz1=nz1,
        shape=shape,
        out_dtype=out_dtype,
    )


def _folds(tensor: torch.Tensor) -> bool:
    """Whether the leading dimensions and the rows form one dimension without a copy."""
    try:
        tensor.view(-1, tensor.shape[-1])
    except RuntimeError:
        return False
    return tensor.numel() > 0


def _collapse(sizes, a_strides, b_strides) -> tuple[list[int], list[int], list[int]]:
    """Merge neighbouring batch dimensions whose strides nest in both operands; drop size-1 ones."""
    out: list[tuple[int, int, int]] = []
    for size, a_stride, b_stride in zip(sizes, a_strides, b_strides, strict=True):
        if size == 1:
            continue
        if out:
            before, a_before, b_before = out[-1]
            if a_before == a_stride * size and b_before == b_stride * size:
                out[-1] = (before * size, a_stride, b_stride)
                continue
        out.append((size, a_stride, b_stride))
    return [s for s, _, _ in out], [s for _, s, _ in out], [s for _, _, s in out]


def _operand(tensor, rows, cols, row_stride, col_stride, z1_stride, z0_stride) -> Operand:
    # The stride of a dimension of size 1 is never followed and may be anything: replace it by what
    # a contiguous tensor would have, so that it spoils no alignment.
    if rows == 1 and cols == 1:
        row_stride, col_stride = 8, 1
    elif rows == 1:
        row_stride = -(-cols // 8) * 8 if col_stride == 1 else 1
    elif cols == 1:
        col_stride = -(-rows // 8) * 8 if row_stride == 1 else 1
    if col_stride == 1 and row_stride >= cols:
        major = "k"
    elif row_stride == 1 and col_stride >= rows:
        major = "o"
    else:
        major = ""  # strided both ways, or rows that overlap (expanded, sliding windows)
    return Operand(tensor, rows, cols, row_stride, col_stride, z0_stride, z1_stride, major)
