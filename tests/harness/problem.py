"""GEMM problems as data: shapes, layouts and epilogue, and the guarded operands of one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from . import buffers

_ALPHA_OFF, _BETA_OFF = 1.0, 0.0


@dataclass(frozen=True)
class GemmCase:
    """One problem: shapes, layouts, epilogue.

    `a_batch` and `b_batch` say how an operand meets the batch of the output: "full", "none" (a 2-D
    operand), "ones" (size-1 dimensions), "expand" (stride 0), "first" or "last" (it has only the
    first or last of two batch dimensions, the other has size 1).
    """

    name: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    a_major: str = "k"
    b_major: str = "k"
    batch: tuple[int, ...] = ()
    a_batch: str = "full"
    b_batch: str = "full"
    swap_batch: bool = False  # batch dimensions in reversed memory order
    align: int = 8  # strides of a and b are multiples of this many elements, plus `pad`
    pad: int = 0
    offset: int = 0
    step: int = 1  # stride of the dimension that is otherwise contiguous
    bias: str | None = None  # "in" (input dtype) or "f32"
    c: str | None = None
    c_shape: str = "full"  # "full", "row" (1, n), "col" (m, 1)
    alpha: float = _ALPHA_OFF
    beta: float = _BETA_OFF
    activation: int = 0
    out_dtype: torch.dtype | None = None
    out_pad: int = 0  # elements between rows of the output
    out_offset: int = 0
    addend_offset: int = 0  # elements in front of bias and c; also added to the row pitch of c
    max_sms: int = 0
    kind: str = "normal"  # or "int"

    @property
    def features(self) -> set[str]:
        """Names of what the problem exercises, for the coverage test."""
        found = {
            self.name,
            f"activation {self.activation}",
            f"out {self.out_dtype or self.dtype}",
            self.kind,
        }
        found |= {f"bias {self.bias}", f"c {self.c}", f"a {self.a_batch}", f"b {self.b_batch}"}
        found |= {f"c shape {self.c_shape}"} if self.c else set()
        found |= {"out pitch"} if self.out_pad else set()
        return found


@dataclass
class Operands:
    a: buffers.Guarded
    b: buffers.Guarded
    bias: buffers.Guarded | None
    c: buffers.Guarded | None

    def __iter__(self):
        return iter([x for x in (self.a, self.b, self.bias, self.c) if x is not None])


def _batched(batch, how):
    """(batch shape of the operand, which of its dimensions have stride 0)."""
    if how == "none":
        return (), ()
    if how == "ones":
        return (1,) * len(batch), (False,) * len(batch)
    if how == "first":
        return (batch[0], *(1,) * (len(batch) - 1)), (False,) * len(batch)
    if how == "last":
        return (*(1,) * (len(batch) - 1), batch[-1]), (False,) * len(batch)
    return batch, (how == "expand",) * len(batch)


def allocate(case: GemmCase, device: str) -> Operands:
    """Operands of `case` in poisoned buffers, not filled yet (on "meta": just the layout)."""
    layout = {
        "align": case.align,
        "pad": case.pad,
        "offset": case.offset,
        "step": case.step,
        "swap_batch": case.swap_batch,
    }
    a_shape, a_expand = _batched(case.batch, case.a_batch)
    b_shape, b_expand = _batched(case.batch, case.b_batch)
    a_run = "cols" if case.a_major == "k" else "rows"
    b_run = "rows" if case.b_major == "k" else "cols"
    a = buffers.guarded(
        (*a_shape, case.m, case.k), case.dtype, device, contiguous=a_run, expand=a_expand, **layout
    )
    b = buffers.guarded(
        (*b_shape, case.k, case.n), case.dtype, device, contiguous=b_run, expand=b_expand, **layout
    )
    types = {"in": case.dtype, "f32": torch.float32}
    bias = c = None
    if case.bias:
        bias = buffers.guarded((1, case.n), types[case.bias], device, offset=case.addend_offset)
        bias.view = bias.view[0]
    if case.c:
        batch = case.batch if case.c_shape == "full" else ()
        rows = 1 if case.c_shape == "row" else case.m
        cols = 1 if case.c_shape == "col" else case.n
        c = buffers.guarded(
            (*batch, rows, cols),
            types[case.c],
            device,
            pad=case.addend_offset,
            offset=case.addend_offset,
        )
    return Operands(a, b, bias, c)


def allocate_out(case: GemmCase, device: str) -> buffers.Guarded:
    """The poisoned output of `case`."""
    return buffers.guarded(
        (*case.batch, case.m, case.n),
        case.out_dtype or case.dtype,
        device,
        pad=case.out_pad,
        offset=case.out_offset,
    )


def build(case: GemmCase, device: str, gen: torch.Generator) -> Operands:
    """Operands of `case`, filled, frozen, surrounded by NaN."""
    result = allocate(case, device)
    for x in result:
        scale = 1.0 if x in (result.a, result.b) else max(1.0, case.k**0.5 / 2)
        buffers.fill(x.view, gen, case.kind, scale)
        x.freeze()
    return result


def integers(case: GemmCase) -> GemmCase:
    """The same problem on small integers, with an epilogue that keeps them exact."""
    return replace(
        case,
        kind="int",
        activation=case.activation if case.activation < 2 else 0,
        alpha=2.0 if case.alpha != _ALPHA_OFF else 1.0,
        beta=-1.0 if case.beta != _BETA_OFF else 0.0,
    )
