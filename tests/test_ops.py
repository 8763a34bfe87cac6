"""The ops themselves: values, shapes, strides, out=, autocast, version counters, opcheck."""

from __future__ import annotations

import pytest
import torch
from harness.compare import ACTIVATIONS
from surface import assert_near, randn

import deepasm_torch  # noqa: F401

ops = torch.ops.deepasm
gemm = ops.gemm

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((0,), (0,)),
    ((2, 3, 0), (0, 5)),
    ((0, 3, 4), (1, 4, 5)),
]


def canonical(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@pytest.mark.parametrize("a_shape, b_shape", SHAPES, ids=str)
def test_shape_strides_and_value_of_every_rank(device, dtype, a_shape, b_shape):
    a = randn(*a_shape, device=device, dtype=dtype, seed=1)
    b = randn(*b_shape, device=device, dtype=dtype, seed=2)
    y = gemm(a, b)
    want = torch.matmul(a.double(), b.double())
    assert y.dtype == dtype and y.stride() == canonical(want.shape) and not y._is_view()
    assert_near(y, want, torch.matmul(a, b))
    for mode in (torch.enable_grad, torch.inference_mode):  # _gemm's fake kernel, and gemm's own
        with mode():
            fake = gemm(a.to("meta"), b.to("meta"))
        assert (fake.shape, fake.stride(), fake.dtype) == (y.shape, y.stride(), y.dtype)


@pytest.mark.parametrize("activation", range(5))
@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float16], ids=str)
def test_epilogue_rounds_once(device, half, activation, out_dtype):
    a, b = randn(33, 40, device=device, dtype=half), randn(40, 24, device=device, dtype=half)
    bias = randn(24, device=device, dtype=torch.float32)
    y = gemm(a, b, bias, activation=activation, out_dtype=out_dtype)
    z = a.double() @ b.double() + bias.double()
    assert not y._is_view()
    peer = ACTIVATIONS[activation](a.float() @ b.float() + bias).to(out_dtype or half)
    assert y.dtype == (out_dtype or half)
    assert_near(y, ACTIVATIONS[activation](z), peer)


def test_c_alpha_and_beta(device, dtype):
    a = randn(2, 9, 16, device=device, dtype=dtype)
    b = randn(16, 8, device=device, dtype=dtype)
    bias, c = randn(8, device=device, dtype=dtype), randn(9, 1, device=device, dtype=dtype)
    y = ops._gemm(a, b, bias, c, 0.5, -2.0, 1, None, -1)
    want = torch.relu(0.5 * (a.double() @ b.double()) - 2.0 * c.double() + bias.double())
    assert_near(y, want, want.to(dtype))


@pytest.mark.parametrize("rows", [1, 3])
def test_c_of_other_strides_leaves_the_result_row_major(device, dtype, rows):
    a, b = randn(rows, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    c = randn(5, rows, device=device, dtype=dtype).t()
    for activation in (0, 2):
        y = ops._gemm(a, b, None, c, 1.0, 1.0, activation, None, -1)
        assert y.stride() == (5, 1)


def test_beta_zero_does_not_read_c(device, dtype):
    a, b = randn(3, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    c = torch.full((3, 5), float("nan"), device=device, dtype=dtype)
    assert torch.equal(ops._gemm(a, b, None, c, 1.0, 0.0, 0, None, -1), gemm(a, b))


def test_reference_accumulates_16_bit_inputs_in_float32(half):
    """4096 + 1 is lost in both 16-bit types; a sum kept in float32 keeps the ones."""
    a = torch.cat([torch.full((1, 1), 4096.0), torch.ones(1, 300)], 1).to(half)
    b = torch.ones(301, 1, dtype=half)
    y = ops._gemm_reference(a, b, None, None, 1.0, 0.0, 0, torch.float32)
    assert y.item() == 4396.0


@pytest.mark.parametrize("columns", ["dense", "slice", "transposed", "stepped"])
def test_out_of_any_layout(device, dtype, columns):
    a, b = randn(6, 8, device=device, dtype=dtype), randn(8, 5, device=device, dtype=dtype)
    canary = torch.full((6, 16), 7.0, device=device, dtype=dtype)
    out = {
        "dense": torch.empty(6, 5, device=device, dtype=dtype),
        "slice": canary[:, 3:8],
        "transposed": torch.empty(5, 6, device=device, dtype=dtype).t(),
        "stepped": canary[:, 1:11:2],
    }[columns]
    assert gemm.out(a, b, out=out) is None
    assert torch.equal(out, gemm(a, b))
    written = {"slice": range(3, 8), "stepped": range(1, 11, 2)}.get(columns, ())
    rest = [i for i in range(16) if i not in written]
    assert bool((canary[:, rest] == 7).all()), "written outside of out"


def test_out_may_be_an_operand(device, dtype):
    a, b = randn(8, 8, device=device, dtype=dtype), randn(8, 8, device=device, dtype=dtype, seed=3)
    want = gemm(a, b)
    gemm.out(a, b, out=a)
    assert torch.equal(a, want)


def test_out_decides_the_dtype(device, half):
    a, b = randn(6, 8, device=device, dtype=half), randn(8, 5, device=device, dtype=half)
    out = torch.empty(6, 5, device=device, dtype=torch.float32)
    gemm.out(a, b, out=out)
    assert torch.equal(out, gemm(a, b, out_dtype=torch.float32))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_out_bumps_the_version(device, mode):
    """On the meta device nothing is written, so that nothing but the op itself can do it."""
    a, b = randn(3, 4, device=device), randn(4, 5, device=device)
    out = torch.empty(3, 5, device=device)
    with mode():
        before = out._version
        gemm.out(a, b, out=out)
        middle = out._version
        ops._gemm.out(a, b, None, None, 1.0, 0.0, 0, None, -1, out=out)
    assert before < middle < out._version


def test_out_written_after_it_was_saved_is_noticed(device):
    x = randn(3, 5, device=device, requires_grad=True)
    a, b = randn(3, 4, device=device), randn(4, 5, device=device)
    out = torch.ones(3, 5, device=device)
    y = x * out
    gemm.out(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_modes_agree(device, dtype):
    """Grad mode, no_grad and inference mode take three different ways to the kernel."""
    a, b = randn(3, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    y = gemm(a, b)
    with torch.no_grad():
        assert torch.equal(gemm(a, b), y)
    with torch.inference_mode():
        assert torch.equal(gemm(a, b), y)
        assert torch.equal(gemm(a.clone(), b.clone()), y)
    assert torch.equal(gemm(a.requires_grad_(), b), y)


class TestAutocast:
    @pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16], ids=str)
    def test_casts_operands_to_the_autocast_dtype(self, device, cast):
        a, b = randn(9, 16, device=device), randn(16, 8, device=device)
        bias = randn(8, device=device)
        with torch.autocast(device, cast):
            y = gemm(a, b, bias, activation=1)
            wide = gemm(a, b, out_dtype=torch.float32)
            mixed = gemm(a.to(cast), b)
        assert y.dtype == cast and torch.equal(y, gemm(a.to(cast), b.to(cast), bias, activation=1))
        assert torch.equal(wide, gemm(a.to(cast), b.to(cast), out_dtype=torch.float32))
        assert torch.equal(mixed, gemm(a.to(cast), b.to(cast)))

    def test_a_16_bit_addend_follows(self, device):
        a, b = randn(9, 16, device=device), randn(16, 8, device=device)
        bias = randn(8, device=device, dtype=torch.float16)
        with torch.autocast(device, torch.bfloat16):
            y = gemm(a, b, bias)
        assert torch.equal(y, gemm(a.bfloat16(), b.bfloat16(), bias.bfloat16()))

    def test_float64_is_left_alone_as_in_torch(self, device):
        a, b = randn(3, 4, device=device).double(), randn(4, 5, device=device).double()
        with torch.autocast(device, torch.bfloat16):
            assert gemm(a, b).dtype == torch.matmul(a, b).dtype == torch.float64
            with pytest.raises(RuntimeError, match="dtype"):
                gemm(a, b.float())

    def test_gradients_have_the_dtype_of_the_leaves(self, device):
        a = randn(9, 16, device=device, requires_grad=True)
        b = randn(16, 8, device=device, requires_grad=True)
        bias = randn(8, device=device, requires_grad=True)
        with torch.autocast(device, torch.bfloat16):
            y = gemm(a, b, bias, activation=2)
        y.float().square().sum().backward()
        x, w, v = (t.detach().clone().requires_grad_() for t in (a, b, bias))
        with torch.autocast(device, torch.bfloat16):
            z = torch.nn.functional.gelu(x @ w + v, approximate="tanh")
        z.float().square().sum().backward()
        for got, want in ((a, x), (b, w), (bias, v)):
            assert got.grad.dtype == torch.float32
            assert torch.allclose(got.grad, want.grad, rtol=5e-2, atol=5e-2 * want.grad.abs().max())

    def test_is_off_inside(self, device):
        """The float32 products of the reference must not be cast a second time."""
        a, b = randn(9, 64, device=device).bfloat16(), randn(64, 8, device=device).bfloat16()
        with torch.autocast(device, torch.bfloat16):
            y = ops._gemm_reference(a, b, None, None, 1.0, 0.0, 0, torch.float32)
        assert torch.equal(y, ops._gemm_reference(a, b, None, None, 1.0, 0.0, 0, torch.float32))

    def test_reaches_torch_func(self, device):
        a, b = randn(3, 9, 16, device=device), randn(16, 8, device=device)
        with torch.autocast(device, torch.bfloat16):
            y = torch.func.vmap(gemm, (0, None))(a, b)
        assert y.dtype == torch.bfloat16 and torch.equal(y, gemm(a.bfloat16(), b.bfloat16()))


def _layouts(shape, device, dtype):
    yield randn(*shape, device=device, dtype=dtype)
    if len(shape) > 1:
        yield randn(*shape[:-2], shape[-1], shape[-2], device=device, dtype=dtype).mT
    wide = randn(*(2 * s for s in shape), device=device, dtype=dtype)
    yield wide[tuple(slice(None, None, 2) for _ in shape)]


@pytest.mark.parametrize(
    "a_shape, b_shape",
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((2, 1, 3, 4), (5, 4, 1)), ((3, 0), (0, 5))],
    ids=str,
)
def test_opcheck(device, a_shape, b_shape):
    pairs = zip(
        _layouts(a_shape, device, torch.bfloat16),
        reversed(list(_layouts(b_shape, device, torch.bfloat16))),
    )
    for a, b in pairs:
        bias = randn(b_shape[-1], device=device)
        leaves = [t.detach().requires_grad_() for t in (a, b, bias)]
        torch.library.opcheck(gemm.default, leaves, {"activation": 3})
        torch.library.opcheck(ops._gemm.default, (a, b, bias, None, 2.0, 0.0, 1, torch.float32, -1))
        torch.library.opcheck(gemm.out, (a, b, bias), {"out": torch.empty_like(gemm(a, b))})


def test_opcheck_of_the_other_ops(device):
    a = randn(3, 4, device=device, requires_grad=True)
    b, c = randn(4, 5, device=device), randn(3, 1, device=device)
    torch.library.opcheck(ops._gemm_grad.default, (a, b, None, 4, None))
    torch.library.opcheck(ops._gemm_reference.default, (a, b, None, c, 1.0, 2.0, 0, None))
    torch.library.opcheck(ops._addmm.default, (a, b, None, c, 1.0, 2.0, 2, None))
    out = torch.empty(5, 3, device=device).t()
    args = (a.detach(), b, None, c, 1.0, 2.0, 0, None, -1)
    torch.library.opcheck(ops._gemm.out, args, {"out": out})


def test_row_major_is_canonical():
    """torch promises no strides for its own results; the fake kernels promise ours."""
    from deepasm_torch.reference import _row_major

    for z in (torch.ones(3, 5).t(), torch.ones(2, 4)[:, ::2], torch.empty(1, 5).t().t()):
        assert _row_major(z).stride() == canonical(z.shape)
    z = torch.ones(3, 5)
    assert _row_major(z) is z
