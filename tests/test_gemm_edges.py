"""Edges of `deepasm::gemm` beyond reported faults: ranks, strides, outputs, aliasing, fallbacks."""

from __future__ import annotations

import pytest
import torch
from harness import compare
from harness.counters import counting
from harness.values import integers, want

import deepasm_torch

gemm = torch.ops.deepasm.gemm


@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((4, 5), (5,)),
        ((2, 4, 5), (5,)),
        ((5,), (2, 5, 3)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((1, 4, 5), (7, 5, 3)),
    ],
    ids=str,
)
def test_matmul_shape_rules(device, dtype, shapes):
    a, b = (integers(*s, device=device, dtype=dtype) for s in shapes)
    y = gemm(a, b)
    assert y.shape == torch.matmul(a, b).shape and y.is_contiguous()
    assert torch.equal(y, want(a, b))


def test_size_one_dimensions_with_odd_strides(device, half):
    """The stride of a dimension of size 1 means nothing, and must reach no alignment rule."""
    base = integers(4096, device=device, dtype=half)
    for a_shape, a_stride in (
        ((1, 64), (3, 1)),
        ((64, 1), (1, 5)),
        ((1, 8, 64), (7, 64, 1)),
        ((1, 1), (9, 11)),
    ):
        a = base.as_strided(a_shape, a_stride)
        b = base.as_strided((a_shape[-1], 1), (1, 77))
        assert torch.equal(gemm(a, b), want(a, b)), (a_shape, a_stride)
        wide = base.as_strided((a_shape[-1], 16), (16, 1))
        assert torch.equal(gemm(a, wide), want(a, wide)), (a_shape, a_stride)


def test_addend_may_be_the_output(device, half):
    """out is c: d = a @ b + d, in place."""
    a, b = (
        integers(130, 70, device=device, dtype=half),
        integers(70, 200, device=device, dtype=half),
    )
    d = integers(130, 200, device=device, dtype=half, modulus=3)
    expected = ((a.double() @ b.double()) + d.double()).to(half)
    torch.ops.deepasm._gemm.out(a, b, None, d, 1.0, 1.0, 0, None, -1, out=d)
    assert torch.equal(d, expected)


def test_beta_zero_ignores_nan(device, half):
    a, b = integers(9, 8, device=device, dtype=half), integers(8, 7, device=device, dtype=half)
    c = torch.full((9, 7), float("nan"), device=device, dtype=half)
    assert torch.equal(torch.ops.deepasm._gemm(a, b, None, c, 1.0, 0.0, 0, None, -1), want(a, b))


def test_more_batch_dimensions_than_a_launch_holds(device, half):
    """Batch dimensions that cannot be merged: two go into the launch, the host loops over more."""
    a = integers(2, 3, 2, 3, 9, 16, device=device, dtype=half).permute(3, 1, 0, 2, 4, 5)
    b = integers(2, 1, 3, 16, 8, device=device, dtype=half).transpose(0, 2)
    with counting() as counts:
        y = gemm(a, b)
    assert y.shape == (3, 3, 2, 2, 9, 8) and torch.equal(y, want(a, b))
    if device == "cuda":
        plan = deepasm_torch.explain("gemm", a, b).plan
        assert counts.launches == plan.launches > 1 and counts.fallbacks == 0


@pytest.mark.parametrize("strides", ["transposed", "stepped", "rows apart", "permuted batch"])
def test_out_of_any_strides(device, half, strides):
    a, b = (
        integers(2, 33, 24, device=device, dtype=half),
        integers(24, 40, device=device, dtype=half),
    )
    memory = torch.full((2, 40 * 3, 33 * 3), -9.0, device=device, dtype=half)
    out = {
        "transposed": memory[:, :40, :33].mT,
        "stepped": memory[:, :66:2, : 40 * 2 : 2],
        "rows apart": memory[:, : 33 * 3 : 3, :40],
        "permuted batch": memory.view(-1)[: 33 * 2 * 40].view(33, 2, 40).transpose(0, 1),
    }[strides]
    gemm.out(a, b, out=out)
    assert torch.equal(out, want(a, b))
    expected = memory.clone().fill_(-9.0)
    torch.as_strided(expected, out.shape, out.stride(), out.storage_offset()).copy_(out)
    assert torch.equal(memory, expected), "elements between those of out were written"


def test_out_may_be_an_operand(device, half):
    a, b = (integers(96, 96, device=device, dtype=half) for _ in range(2))
    expected = want(a, b)
    gemm.out(a, b, out=a)
    assert torch.equal(a, expected)
    b = integers(96, 96, device=device, dtype=half)
    expected = want(b, b)
    gemm.out(b, b.clone(), out=b)
    assert torch.equal(b, expected)


def test_out_that_overlaps_itself_is_refused(device, half):
    a = torch.ones(8, 8, device=device, dtype=half)
    with pytest.raises(RuntimeError, match=r"(?i)overlap|single memory location|clone"):
        gemm.out(a, a, out=torch.zeros(8, 1, device=device, dtype=half).expand(8, 8))


@pytest.mark.gpu
def test_float32_falls_back_and_says_so():
    a = torch.randn(64, 64, device="cuda")
    with counting() as counts:
        y = gemm(a, a)
    assert (counts.launches, counts.fallbacks) == (
        0,
        1,
    ) and "neither bfloat16 nor float16" in counts.reason
    bound = compare.tile_verdict(y, a.double() @ a.double(), a @ a, a.abs() @ a.abs(), (64, 64))
    assert bound.ok, bound.text
