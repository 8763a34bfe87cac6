"""Run one GEMM problem through one kernel and check everything that can be checked about it.

`check_gemm` fails with the seed, the variant, the problem, the first bad tile and a few elements.
What it checks, in order:

1. the `.out` overload into a poisoned, guarded output: every element written, nothing around it;
2. values: small integers exactly, random data per tile against float64 (see `compare`);
3. operands, bias and addend bitwise as before, slack and guards included;
4. the same call again: the same bits;
5. the allocating overload over a poisoned allocator: dtype, shape, strides, the same bits;
6. on CUDA: one launch and no fallback when the kernel is named, and no memory beyond the output.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from . import buffers, compare, counters, seeds
from .problem import GemmCase, Operands, allocate_out, build


@dataclass
class Call:
    """The two overloads under test, so that the harness can be tried on a faulty one."""

    allocate: object
    out: object

    @classmethod
    def extension(cls):
        ops = torch.ops.deepasm
        return cls(ops._gemm.default, ops._gemm.out)


def _compare(case, got, x: Operands, tile) -> compare.Verdict:
    extra = {"bias": x.bias and x.bias.view, "c": x.c and x.c.view}
    scaled = {"alpha": case.alpha, "beta": case.beta, "activation": case.activation}
    a, b = x.a.view, x.b.view
    want = compare.epilogue(a.double() @ b.double(), torch.float64, **extra, **scaled)
    if case.kind == "int":
        return compare.exact_verdict(got, want, tile)
    peer = compare.epilogue(compare.torch_product(a, b), torch.float32, **extra, **scaled).to(
        got.dtype
    )
    magnitude = compare.epilogue(
        compare.torch_product(a.abs(), b.abs()),
        torch.float32,
        alpha=abs(case.alpha),
        beta=abs(case.beta),
        bias=x.bias and x.bias.view.abs(),
        c=x.c and x.c.view.abs(),
    )
    return compare.tile_verdict(
        got, want, peer.expand_as(got), magnitude.expand_as(got), tile, case.k
    )


def check_gemm(
    case: GemmCase,
    device: str,
    *,
    variant: int = -1,
    tile: tuple[int, int] = (64, 64),
    native: bool = False,
    workspace: int = 0,
    call: Call | None = None,
    label: str = "",
) -> float:
    """Check one problem on one kernel; see the module docstring.

    Parameters
    ----------
    variant : int
        Row of the kernel table, or -1 for the planner's choice.
    native : bool
        The call must launch exactly one kernel and not fall back (CUDA).
    workspace : int
        Bytes the call may allocate besides its output (CUDA).
    label : str
        Names the kernel in failures and seeds the data.

    Returns
    -------
    float
        The largest error as a fraction of its bound.
    """
    call = call or Call.extension()
    gen = seeds.generator(device, label, case.name, case.kind)
    x = build(case, device, gen)
    out_dtype = case.out_dtype or case.dtype
    out = allocate_out(case, device)
    args = (
        x.a.view,
        x.b.view,
        x.bias and x.bias.view,
        x.c and x.c.view,
        case.alpha,
        case.beta,
        case.activation,
        out_dtype,
        variant,
    )
    cuda = torch.device(device).type == "cuda"

    def fail(what: str):
        raise AssertionError(
            f"{label or 'gemm'} (variant {variant}) on {device}: {what}\n  {case}\n"
            f"  replay with {seeds.ENV}={seeds.session_seed()}"
        )

    with contextlib.ExitStack() as stack:
        if case.max_sms:
            stack.enter_context(counters.option("max_sms", case.max_sms))
        call.out(*args, out=out.view)
        first = out.view.clone()
        if left := out.poison_left():
            fail(f"{left} of {first.numel()} output elements were never written")
        if damage := out.damage():
            fail(damage)
        verdict = _compare(case, first, x, tile)
        if not verdict.ok:
            fail(f"wrong values\n{verdict.text}")
        out.poison()
        call.out(*args, out=out.view)
        if not buffers.same_bits(out.view, first):
            fail("the second call gave other bits than the first")
        buffers.poison_allocator(first.numel() * first.element_size(), device)
        counted = stack.enter_context(contextlib.ExitStack())
        peak = counted.enter_context(counters.peak_memory()) if cuda else None
        counts = counted.enter_context(counters.counting()) if cuda else None
        result = call.allocate(*args)
        counted.close()
        if result.dtype != out_dtype or result.shape != first.shape or not result.is_contiguous():
            fail(
                f"allocated {result.dtype} {tuple(result.shape)} {result.stride()}, "
                f"expected contiguous {out_dtype} {tuple(first.shape)}"
            )
        if variant >= 0 or not cuda:  # the planner may choose by the layout of the output
            if not buffers.same_bits(result, first.contiguous()):
                fail("the allocating overload gave other bits than the .out overload")
        elif not (verdict := _compare(case, result, x, tile)).ok:
            fail(f"wrong values from the allocating overload\n{verdict.text}")
        if cuda and native and (counts.launches, counts.fallbacks, counts.copies) != (1, 0, 0):
            fail(f"expected one launch, no fallback and no copy, counted {counts}")
        size = result.numel() * result.element_size()
        if cuda and native and peak.nbytes > size + workspace:
            fail(
                f"used {peak.nbytes} B at its peak for {size} B of output and {workspace} B of "
                "workspace"
            )
    for name, operand in zip(("a", "b", "bias", "c"), (x.a, x.b, x.bias, x.c)):
        if operand is not None and not operand.unchanged():
            fail(f"operand {name}, or the memory around it, was modified")
    return verdict.worst
