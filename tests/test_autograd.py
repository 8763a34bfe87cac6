"""Derivatives of the gemm ops: reverse, forward, second order, and what they cost."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from surface import Recorder, assert_near, leaves, randn, reference
from torch.autograd import gradcheck, gradgradcheck

import deepasm_torch  # noqa: F401

ops = torch.ops.deepasm
gemm = ops.gemm

SHAPES = [
    ((3, 4), (4, 2)),
    ((4,), (4, 2)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 2)),
    ((3, 4), (2, 4, 2)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 2)),
    ((1, 3, 4), (2, 4, 2)),
]


@pytest.mark.parametrize("a_shape, b_shape", SHAPES, ids=str)
def test_gradcheck_in_every_mode(device, a_shape, b_shape):
    activation = SHAPES.index((a_shape, b_shape)) % 5

    def f(a, b, bias):
        return gemm(a, b, bias, activation=activation)

    args = leaves(a_shape, b_shape, device)
    gradcheck(f, args, check_forward_ad=True, check_batched_grad=True)
    gradgradcheck(f, args)


@pytest.mark.parametrize("activation", range(5))
def test_gradcheck_with_c_alpha_beta(device, activation):
    a, b, bias = leaves((3, 4), (4, 2), device)
    c = randn(3, 1, device=device, dtype=torch.float64, seed=9, requires_grad=True)

    def f(a, b, bias, c):
        return ops._addmm(a, b, bias, c, 0.5, -1.5, activation, None)

    gradcheck(f, (a, b, bias, c), check_forward_ad=True)
    gradgradcheck(f, (a, b, bias, c))


@pytest.mark.parametrize("activation", range(5))
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=["same", "f32"])
def test_16_bit_gradients_are_as_good_as_torch(device, half, activation, out_dtype):
    a = randn(2, 33, 40, device=device, dtype=half, requires_grad=True)
    w = randn(24, 40, device=device, dtype=half, scale=0.2, requires_grad=True)
    bias = randn(24, device=device, dtype=half, requires_grad=True)
    dy = randn(2, 33, 24, device=device, dtype=out_dtype or half, seed=5)
    y = gemm(a, w.t(), bias, activation=activation, out_dtype=out_dtype)
    got = torch.autograd.grad(y, (a, w, bias), dy)

    def truth(dtype):
        x = [t.detach().to(dtype).requires_grad_() for t in (a, w, bias)]
        y = reference(x[0], x[1].t(), x[2], activation=activation)
        return torch.autograd.grad(y, x, dy.to(dtype))

    for g, leaf, want, peer in zip(got, (a, w, bias), truth(torch.float64), truth(half)):
        assert g.dtype == half and g.shape == leaf.shape
        assert_near(g, want, peer)


@pytest.mark.parametrize("a_shape, b_shape", SHAPES, ids=str)
def test_only_needed_gradients_are_computed(device, a_shape, b_shape):
    """One gemm for each operand that needs a gradient, and none for the bias."""
    for needed in (0b001, 0b010, 0b100, 0b011, 0b111):
        args = leaves(a_shape, b_shape, device, torch.float32)
        for i, t in enumerate(args):
            t.requires_grad_(bool(needed >> i & 1))
        y = gemm(*args)
        with Recorder() as seen:
            y.sum().backward()
        assert [t.grad is not None for t in args] == [bool(needed >> i & 1) for i in range(3)]
        assert len(seen.gemms()) == bin(needed & 0b011).count("1")


def test_nothing_needs_a_gradient(device):
    a, b, _ = leaves((3, 4), (4, 2), device, torch.float32)
    y = gemm(a.detach(), b.detach())
    assert y.grad_fn is None and not y.requires_grad


def test_shared_weight_gradient_is_one_folded_product(device):
    a = randn(5, 6, 7, 4, device=device)
    w = randn(3, 4, device=device, requires_grad=True)
    y = gemm(a, w.t())
    with Recorder() as seen:
        torch.autograd.grad(y, w, torch.ones_like(y))
    ((_, (left, right, *_), _),) = seen.gemms()
    assert sorted((left.shape, right.shape)) == sorted(((3, 210), (210, 4)))
    assert {left.data_ptr(), right.data_ptr()} & {a.data_ptr()}, "the fold of a is a view"


@pytest.mark.parametrize("saves", ["weight only", "input only"])
def test_saves_no_more_than_backward_reads(device, saves):
    a = randn(3, 4, device=device, requires_grad=saves == "input only")
    b = randn(4, 2, device=device, requires_grad=saves == "weight only")
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        gemm(a, b)
    want = a if saves == "weight only" else b
    assert [t.data_ptr() for t in saved] == [want.data_ptr()]


@pytest.mark.parametrize(
    "layout",
    ["row-major", "column-major", "linear weight", "one row", "one column", "slice", "3-D"],
)
def test_gradients_have_the_strides_of_the_leaf(device, dtype, layout):
    made = {
        "row-major": torch.empty(8, 6),
        "column-major": torch.empty(6, 8).t(),
        "linear weight": torch.empty(6, 8),
        "one row": torch.empty(8, 1),
        "one column": torch.empty(1, 8).t(),
        "slice": torch.empty(16, 6)[::2],
        "3-D": torch.empty(2, 6, 8).mT,
    }[layout].to(device, dtype)
    leaf = made.detach().fill_(0.5).requires_grad_()
    b = leaf.t() if layout == "linear weight" else leaf
    a = torch.ones(5, 8, device=device, dtype=dtype, requires_grad=True)
    gemm(a, b).sum().backward()
    dense = layout != "slice"  # autograd makes the gradient of a non-dense leaf contiguous
    assert leaf.grad.stride() == (leaf.stride() if dense else (6, 1))
    assert torch.equal(leaf.grad, torch.full_like(leaf.grad, 5))
    assert a.grad.stride() == a.stride()


def test_gradient_of_a_has_the_strides_of_a(device, dtype):
    b = torch.ones(8, 6, device=device, dtype=dtype)
    for a in (torch.ones(5, 8), torch.ones(8, 5).t(), torch.ones(2, 8, 5).mT):
        a = a.to(device, dtype).requires_grad_()
        with Recorder() as seen:
            gemm(a, b).sum().backward()
        assert a.grad.stride() == a.stride() and torch.equal(a.grad, torch.full_like(a, 6))
        assert a.grad.data_ptr() == seen.gemms()[-1][2], "the gradient was copied"


def test_gradient_reaches_the_leaf_without_a_copy(device):
    """The gradient that autograd accumulates is the very tensor that the last gemm wrote."""
    x, w = randn(5, 8, device=device), randn(6, 8, device=device, requires_grad=True)
    y = gemm(x, w.t())
    with Recorder() as seen:
        y.sum().backward()
    assert [w.grad.data_ptr()] == [address for _, _, address in seen.gemms()]


@pytest.mark.parametrize(
    "a_shape, b_shape",
    [((2, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 4), (4, 0)), ((0, 2, 4), (4, 3))],
    ids=str,
)
def test_empty_problems_have_zero_gradients(device, dtype, a_shape, b_shape):
    args = leaves(a_shape, b_shape, device, dtype)
    gemm(*args).sum().backward()
    for t in args[:2]:
        assert torch.equal(t.grad, torch.zeros_like(t))
    assert torch.equal(args[2].grad, torch.full_like(args[2], float(a_shape[0] == 2 and 2)))


@pytest.mark.parametrize("kind", ["expanded", "transposed", "stepped"])
def test_any_layout_of_the_output_gradient(device, dtype, kind):
    args = leaves((9, 8), (8, 6), device, dtype)
    y = gemm(*args)
    dy = {
        "expanded": torch.full((), 0.5, device=device, dtype=dtype).expand(9, 6),
        "transposed": randn(6, 9, device=device, dtype=dtype).t(),
        "stepped": randn(18, 12, device=device, dtype=dtype)[::2, ::2],
    }[kind]
    got = torch.autograd.grad(y, args, dy, retain_graph=True)
    want = torch.autograd.grad(y, args, dy.contiguous())
    for g, w in zip(got, want):
        assert torch.allclose(g, w, rtol=1e-2, atol=1e-2)


def test_bias_gradient_is_summed_in_float32(device, half):
    """3000 ones stop at 256 (bf16) or 2048 (fp16) when they are added in the type itself."""
    bias = torch.zeros(4, device=device, dtype=half, requires_grad=True)
    wide = torch.zeros(1, device=device, requires_grad=True)
    a, b = (
        torch.ones(3000, 8, device=device, dtype=half),
        torch.ones(8, 4, device=device, dtype=half),
    )
    gemm(a, b, bias).sum().backward()
    gemm(a, b, wide).sum().backward()
    assert bias.grad.tolist() == [torch.tensor(3000.0).to(half).item()] * 4
    assert wide.grad.tolist() == [12000.0]


def test_broadcast_operand_gradient_is_summed_in_float32(device, half):
    """The gradient of one example, big + 1, rounds to big; the other example takes big away."""
    big = 256.0 if half == torch.bfloat16 else 2048.0
    a = torch.ones(1, 1, device=device, dtype=half, requires_grad=True)
    b = torch.tensor([[[big, 1.0]], [[-big, 0.0]]], device=device, dtype=half)
    gemm(a, b).sum().backward()
    assert a.grad.item() == 1.0


def test_silu_of_a_very_negative_float16_is_not_nan(device):
    a = torch.full((1, 4), -300.0, device=device, dtype=torch.float16, requires_grad=True)
    b = torch.full((4, 1), 300.0, device=device, dtype=torch.float16, requires_grad=True)
    for activation in (2, 3, 4):
        gemm(a, b, activation=activation).sum().backward()
        assert bool((a.grad == 0).all()) and bool((b.grad == 0).all())


def test_relu_at_zero_and_nan(device):
    a = torch.tensor([[0.0], [float("nan")], [-1.0], [2.0]], device=device, requires_grad=True)
    b = torch.ones(1, 1, device=device)
    y = gemm(a, b, activation=1)
    y.sum().backward()
    x = a.detach().clone().requires_grad_()
    torch.relu(x).sum().backward()
    assert torch.equal(a.grad.nan_to_num(-5), x.grad.nan_to_num(-5))


def test_in_place_change_is_noticed(device):
    for victim in range(3):
        args = [t * 1 for t in leaves((3, 4), (4, 2), device, torch.float32)]
        y = gemm(*args, activation=2)
        args[victim].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_relu_output_changed_in_place_is_noticed(device):
    y = gemm(*leaves((3, 4), (4, 2), device, torch.float32), activation=1)
    y.add_(1)  # in-place operations on the result are legal as such
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad], ids=["grad", "no_grad"])
def test_forward_mode(device, mode):
    from deepasm_torch import functional

    a, b, _ = (t.detach() for t in leaves((3, 4), (4, 2), device))
    with mode(), forward_ad.dual_level(), Recorder() as seen:
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        tangent = forward_ad.unpack_dual(functional.matmul(dual, b)).tangent
    assert torch.allclose(tangent, torch.ones_like(a) @ b)
    assert len(seen.gemms()) == 2, "the tangent is not made of our own gemm"


def test_checkpoint(device):
    from torch.utils.checkpoint import checkpoint

    args = leaves((3, 4), (4, 2), device)
    y = checkpoint(lambda *t: gemm(*t, activation=2), *args, use_reentrant=False)
    got = torch.autograd.grad(y.sum(), args)
    want = torch.autograd.grad(reference(*args, activation=2).sum(), args)
    assert all(torch.allclose(x, y) for x, y in zip(got, want))


def test_exceptions_keep_their_type(device):
    """They pass through C shims that would make each one a RuntimeError."""

    class Stop(Exception):
        pass

    def pack(t):
        raise Stop("from a hook")

    args = leaves((3, 4), (4, 2), device)
    with pytest.raises(Stop, match="from a hook"):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            gemm(*args)
    with pytest.raises(RuntimeError, match="dtype"):  # nothing is left over for the next error
        gemm(args[0], args[1].float())
    assert gemm(*args).requires_grad


@pytest.mark.parametrize("shape", [(6, 1), (1, 6), (1, 1)])
def test_thin_linear_weights_keep_their_strides(device, dtype, shape):
    """weight.t() of nn.Linear(1, N) has stride 1 twice, which leaves the layout open."""
    weight = torch.ones(shape, device=device, dtype=dtype, requires_grad=True)
    x = torch.ones(7, shape[1], device=device, dtype=dtype, requires_grad=True)
    gemm(x, weight.t()).sum().backward()
    assert weight.grad.stride() == weight.stride() and x.grad.stride() == x.stride()
    assert torch.equal(weight.grad, torch.full_like(weight, 7))
