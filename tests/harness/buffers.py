"""Guarded memory: logical tensors inside buffers whose every other byte is known.

Operands lie in a sea of NaN, so one element read outside the logical matrix makes the result NaN.
Outputs start as NaN with a payload no arithmetic produces, so what was not written, and what was
written outside, both show bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GUARD = 512  # elements in front and behind; a multiple of every alignment the kernels ask for

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
#: A quiet NaN with a payload, per type, as the integer that has its bits.
_POISON = {
    torch.float16: 0x7EA5,
    torch.bfloat16: 0x7FE5,
    torch.float32: 0x7FE5A5A5,
    torch.float64: 0x7FFC_A5A5_A5A5_A5A5,
}


def bits(t: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, because NaN never equals itself."""
    return t.view(_BITS[t.dtype]) if t.dtype in _BITS else t


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


@dataclass(eq=False)
class Guarded:
    """A strided view and the poisoned buffer it lives in."""

    view: torch.Tensor
    buffer: torch.Tensor
    snapshot: torch.Tensor | None = None

    def freeze(self) -> None:
        """Remember the buffer, guard bands and slack included."""
        self.snapshot = self.buffer.clone()

    def unchanged(self) -> bool:
        """Whether not one byte of the buffer differs from the snapshot."""
        return torch.equal(bits(self.buffer), bits(self.snapshot))

    def damage(self) -> str | None:
        """Where bytes outside the view no longer hold the poison, or None."""
        outside = torch.ones(self.buffer.numel(), dtype=torch.bool, device=self.buffer.device)
        torch.as_strided(
            outside, self.view.shape, self.view.stride(), self.view.storage_offset()
        ).fill_(False)
        hit = (bits(self.buffer) != _POISON[self.buffer.dtype]) & outside
        if not bool(hit.any()):
            return None
        first = int(hit.nonzero()[0])
        return (
            f"{int(hit.sum())} elements outside the output were overwritten; the first lies at "
            f"element {first - self.view.storage_offset():+d} from its start (strides "
            f"{tuple(self.view.stride())})"
        )

    def poison_left(self) -> int:
        """How many elements of the view were never written."""
        return int((bits(self.view) == _POISON[self.view.dtype]).sum())

    def poison(self) -> None:
        bits(self.buffer).fill_(_POISON[self.buffer.dtype])


def guarded(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    *,
    contiguous: str = "cols",
    align: int = 1,
    pad: int = 0,
    offset: int = 0,
    step: int = 1,
    expand: tuple[bool, ...] = (),
    swap_batch: bool = False,
) -> Guarded:
    """A view of `shape` = (*batch, rows, cols) in a poisoned buffer.

    Parameters
    ----------
    contiguous : {"cols", "rows"}
        The dimension with stride `step`.
    align : int
        The other stride, and batch strides, are multiples of this many elements (before `pad`).
    pad : int
        Elements added to that stride.
    offset : int
        Elements between an aligned address and the first element.
    expand : tuple of bool
        Batch dimensions with stride 0.
    swap_batch : bool
        Memory order of the batch dimensions is reversed, so that they do not collapse into one.
    """
    *batch, rows, cols = shape
    inner, outer = (cols, rows) if contiguous == "cols" else (rows, cols)
    pitch = -(-max(inner * step, 1) // align) * align + pad
    extent = -(-max(pitch * outer, 1) // align) * align + align * (len(batch) > 0)
    strides = [0] * len(batch)
    expand = expand or (False,) * len(batch)
    order = range(len(batch)) if swap_batch else reversed(range(len(batch)))
    for i in order:
        if not expand[i]:
            strides[i] = extent
            extent *= max(batch[i], 1)
    matrix = (pitch, step) if contiguous == "cols" else (step, pitch)
    buffer = torch.empty(GUARD + offset + extent + GUARD, dtype=dtype, device=device)
    view = torch.as_strided(buffer, (*batch, rows, cols), (*strides, *matrix), GUARD + offset)
    result = Guarded(view, buffer)
    result.poison()
    return result


def fill(view: torch.Tensor, gen: torch.Generator, kind: str, scale: float = 1.0) -> None:
    """Write normal values, or integers in [-4, 4], into a view that may repeat memory."""
    source = view
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.size(dim) > 1:
            source = source.narrow(dim, 0, 1)
    shape = source.shape
    if kind == "int":
        values = torch.randint(-4, 5, shape, generator=gen, device=gen.device)
    else:
        values = torch.randn(shape, generator=gen, device=gen.device) * scale
    source.copy_(values.to(source.dtype))


def poison_allocator(nbytes: int, device: str) -> None:
    """Leave NaN bytes where the allocator is about to place an output of `nbytes`."""
    torch.empty(max(nbytes, 1), dtype=torch.uint8, device=device).fill_(0xFF)
