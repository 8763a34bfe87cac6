"""Reported faults of other GEMM libraries (cases G*) that show in gradients.

The cases speak of a patched nn.Linear; here the same layer runs through `functional.linear`, and
through `override()`, which sends torch's own F.linear to the extension.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness.counters import counting
from torch import nn

import deepasm_torch
from deepasm_torch import functional

gemm = torch.ops.deepasm.gemm


@pytest.fixture(params=["functional", "override"])
def call(request):
    """How an nn.Linear reaches the extension: call(layer, x)."""
    if request.param == "functional":
        return lambda m, x: functional.linear(x, m.weight, m.bias)

    def overridden(m, x):
        with deepasm_torch.override():
            return m(x)

    return overridden


@contextlib.contextmanager
def work(device, dtype):
    """Count the GEMMs of a block on CUDA: launches, or fallbacks where the type has no kernel."""
    if device == "cpu":
        yield lambda: None
        return
    with counting() as counts:
        yield lambda: counts.launches if dtype is not torch.float32 else counts.fallbacks


def test_g01_empty_sum_backward(device, dtype):
    a = torch.empty(2, 0, device=device, dtype=dtype, requires_grad=True)
    b = torch.empty(0, 3, device=device, dtype=dtype, requires_grad=True)
    y = gemm(a, b)
    y.sum().backward()
    assert torch.equal(y, torch.zeros(2, 3, device=device, dtype=dtype))
    assert a.grad.shape == (2, 0) and b.grad.shape == (0, 3)


def test_g02_no_rows(device, dtype, call):
    m = nn.Linear(64, 32, device=device, dtype=dtype)
    y = call(m, torch.empty(0, 64, device=device, dtype=dtype))
    y.sum().backward()
    assert y.shape == (0, 32)
    assert torch.equal(m.weight.grad, torch.zeros(32, 64, device=device, dtype=dtype))
    assert torch.equal(m.bias.grad, torch.zeros(32, device=device, dtype=dtype))


def test_g08_gradients_of_expanded_operands(device, dtype):
    a = torch.arange(6.0, device=device).to(dtype).view(1, 2, 3).requires_grad_()
    b = torch.arange(3.0, device=device).to(dtype).view(1, 3, 1).requires_grad_()
    gemm(a.expand(4, 2, 3), b.expand(4, 3, 5)).sum().backward()
    assert a.grad.tolist() == [[[0.0, 20.0, 40.0]] * 2]
    assert b.grad.tolist() == [[[4 * 5 * 3.0], [4 * 5 * 5.0], [4 * 5 * 7.0]]]


def test_g17_only_what_needs_a_gradient_gets_one(device, dtype, call):
    m = nn.Linear(64, 32, device=device, dtype=dtype)
    torch.nn.init.constant_(m.weight, 2.0)
    m.weight.data[:, ::3] = -3.0
    x = torch.ones(8, 64, device=device, dtype=dtype)

    y = call(m, x).sum()
    with work(device, dtype) as gemms:
        y.backward()
    assert torch.equal(m.weight.grad, torch.full_like(m.weight, 8))
    assert torch.equal(m.bias.grad, torch.full_like(m.bias, 8))
    assert x.grad is None and gemms() in (None, 1)

    m.weight.requires_grad_(False)
    m.bias.grad = None
    y = call(m, x).sum()
    with work(device, dtype) as gemms:
        y.backward()
    assert torch.equal(m.bias.grad, torch.full_like(m.bias, 8))
    assert torch.equal(m.weight.grad, torch.full_like(m.weight, 8))
    assert gemms() in (None, 0), "a bias gradient needs no GEMM"

    m.bias.requires_grad_(False)
    x.requires_grad_()
    y = call(m, x).sum()
    with work(device, dtype) as gemms:
        y.backward()
    assert torch.equal(x.grad, m.weight.detach().sum(0).expand(8, 64))
    assert gemms() in (None, 1)


def test_g17_weight_gradient_has_the_strides_of_the_weight(device, dtype, call):
    m = nn.Linear(48, 40, device=device, dtype=dtype)
    call(m, torch.ones(2, 3, 48, device=device, dtype=dtype)).sum().backward()
    assert m.weight.grad.stride() == m.weight.stride()


def test_g18_in_place_change_of_a_saved_operand_is_noticed(device, dtype):
    leaf = torch.randn(4, 4, device=device, dtype=dtype, requires_grad=True)
    b = torch.randn(4, 4, device=device, dtype=dtype, requires_grad=True)
    a = leaf * 1
    y = gemm(a, b)
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("activation", range(5))
def test_g18_second_derivative(device, activation):
    """Against torch.mm in float64: a partial second derivative would be far off."""
    from harness.compare import ACTIVATIONS

    gen = torch.Generator(device=device).manual_seed(7)
    leaf, b = (torch.randn(6, 6, device=device, generator=gen) + 0.1 for _ in range(2))

    def second(multiply, x, y):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        (g,) = torch.autograd.grad(multiply(x, y).square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, y))

    got = second(lambda x, y: gemm(x, y, activation=activation), leaf, b)
    want = second(lambda x, y: ACTIVATIONS[activation](x @ y), leaf.double(), b.double())
    for g, w in zip(got, want):
        assert torch.allclose(g.double(), w, rtol=1e-4, atol=1e-4 * float(w.abs().max()))


def test_expanded_output_gradient(device, dtype):
    """y.sum() sends back one element expanded with strides 0."""
    a = torch.ones(33, 40, device=device, dtype=dtype, requires_grad=True)
    b = torch.ones(40, 24, device=device, dtype=dtype, requires_grad=True)
    gemm(a, b).sum().backward()
    assert bool((a.grad == 24).all()) and bool((b.grad == 33).all())
