"""torch.func over the gemm ops, against the same transforms of torch's own matmul."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from surface import Recorder, leaves, randn, reference
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from deepasm_torch import functional
from deepasm_torch.reference import gemm_reference

ops = torch.ops.deepasm
gemm = ops.gemm

TRANSFORMS = {
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": hessian,
    "jacrev of jacrev": lambda f, n: jacrev(jacrev(f, n), n),
    "jacrev of jacfwd": lambda f, n: jacrev(jacfwd(f, n), n),
    "jacfwd of jacfwd": lambda f, n: jacfwd(jacfwd(f, n), n),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("activation", [1, 2, 4])
def test_jacobians(device, name, activation):
    transform = TRANSFORMS[name]
    args = [t.detach() for t in leaves((2, 3), (3, 2), device)]
    args.append(randn(2, 2, device=device, dtype=torch.float64, seed=9))

    def ours(a, b, bias, c):
        return ops._addmm(a, b, bias, c, 1.5, 0.5, activation, None)

    def theirs(a, b, bias, c):
        return reference(a, b, bias, c, 1.5, 0.5, activation)

    for n in range(4):
        got, want = transform(ours, n)(*args), transform(theirs, n)(*args)
        assert torch.allclose(got, want, atol=1e-10)


def test_mixed_second_derivative_in_forward_mode(device):
    """torch's documented pattern for custom functions returns zero here."""
    a, b = (t.detach() for t in leaves((2, 3), (3, 2), device)[:2])

    def second(f):
        return jacfwd(jacfwd(f, 0), 1)(a, b)

    assert torch.equal(second(gemm), second(torch.matmul)) and bool(second(gemm).any())


@pytest.fixture
def opaque():
    """`_gemm` on the CPU as it is on CUDA: its kernel knows neither gradients nor tangents."""
    lib = torch.library.Library("deepasm", "IMPL")

    def kernel(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
        with torch._C._AutoDispatchBelowAutograd():
            return gemm_reference(a, b, bias, c, alpha, beta, activation, out_dtype)

    def kernel_out(*args, out):
        out.copy_(kernel(*args))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overriding a kernel is what we mean to do
        lib.impl("_gemm", kernel, "CPU", allow_override=True)
        lib.impl("_gemm.out", kernel_out, "CPU", allow_override=True)
    yield
    lib._destroy()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize(
    "call", [gemm, gemm.default, functional.gemm], ids=["gemm", "gemm.default", "functional.gemm"]
)
def test_forward_mode_keeps_tangents_with_and_without_grad_mode(opaque, call, mode):
    a, b, bias = (t.detach() for t in leaves((3, 4), (4, 2)))
    with forward_ad.dual_level():
        plain = ops._gemm(forward_ad.make_dual(a, a), b, None, None, 1.0, 0.0, 0, None, -1)
        assert forward_ad.unpack_dual(plain).tangent is None, "the kernel is not opaque"
    with forward_ad.dual_level(), mode():
        duals = [forward_ad.make_dual(t, torch.ones_like(t)) for t in (a, b, bias)]
        got = forward_ad.unpack_dual(call(*duals, activation=2))
        want = forward_ad.unpack_dual(reference(*duals, activation=2))
        assert torch.allclose(got.primal, want.primal)
        assert torch.allclose(got.tangent, want.tangent) and bool(want.tangent.any())
        assert torch.allclose(call(a, b, bias), a @ b + bias)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_out_refuses_tangents(opaque, mode):
    a, b, bias = (t.detach() for t in leaves((3, 4), (4, 2)))
    out, c = torch.empty(3, 2, dtype=a.dtype), torch.ones(3, 2, dtype=a.dtype)
    with forward_ad.dual_level(), mode():
        dual, dual_c = (forward_ad.make_dual(t, torch.ones_like(t)) for t in (a, c))
        for call in (
            lambda: torch.matmul(dual, b, out=out),
            lambda: gemm.out(dual, b, out=out),
            lambda: gemm(dual, b, out=out),
            lambda: gemm.out(a, b, forward_ad.make_dual(bias, bias), out=out),
            lambda: gemm.out(a, b, out=dual_c),
            lambda: functional.matmul(dual, b, out=out),
            lambda: functional.addmm(dual_c, a, b, beta=2, out=out),
        ):
            with pytest.raises(NotImplementedError, match="forward"):
                call()
        gemm.out(a, b, bias, out=out)
        assert torch.allclose(out, a @ b + bias)
        functional.addmm(c, a, b, beta=2, out=out)
        assert torch.allclose(out, a @ b + 2)


def test_grad_vjp_jvp_of_the_op_itself(device):
    a, b, bias = (t.detach() for t in leaves((3, 4), (4, 2), device))

    def ours(a, b, bias):
        return gemm(a, b, bias, activation=2).square().sum()

    def theirs(a, b, bias):
        return reference(a, b, bias, activation=2).square().sum()

    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            for got, want in zip(
                grad(ours, (0, 1, 2))(a, b, bias), grad(theirs, (0, 1, 2))(a, b, bias)
            ):
                assert torch.allclose(got, want)
            got, want = (vjp(f, a, b, bias)[1](a.new_ones(())) for f in (ours, theirs))
            assert all(torch.allclose(x, y) for x, y in zip(got, want))
            tangents = (torch.ones_like(a), torch.ones_like(b), torch.ones_like(bias))
            got, want = (jvp(f, (a, b, bias), tangents)[1] for f in (ours, theirs))
            assert torch.allclose(got, want)


@pytest.mark.parametrize(
    "a_shape, b_shape, c_shape",
    [
        ((3, 4), (4, 5), (3, 5)),
        ((4,), (4, 5), (5,)),
        ((3, 4), (4,), (3,)),
        ((4,), (4,), ()),
        ((2, 3, 4), (4, 5), (5,)),
        ((3, 4), (2, 4, 5), (3, 1)),
        ((2, 1, 3, 4), (5, 4, 2), (2, 5, 3, 2)),
        ((4,), (2, 4, 5), (2, 1)),
    ],
    ids=str,
)
def test_vmap_over_any_dimensions(device, a_shape, b_shape, c_shape):
    shapes = (a_shape, b_shape, (b_shape[-1] if len(b_shape) > 1 else 1,), c_shape)

    def ours(a, b, bias, c):
        return ops._addmm(a, b, bias, c, 1.5, 0.5, 1, None)

    def theirs(a, b, bias, c):
        return reference(a, b, bias, c, 1.5, 0.5, 1)

    for in_dims in (
        (0, None, None, None),
        (None, 0, None, None),
        (None, None, 0, None),
        (None, None, None, 0),
        (-1, -1, None, None),
        (0, None, -1, None),
        (None, -1, None, 0),
        (1, 1, 0, None),
        (0, 0, 0, 0),
    ):
        args = [
            randn(*shape, device=device, dtype=torch.float64, seed=i)
            if dim is None
            else randn(7, *shape, device=device, dtype=torch.float64, seed=i).movedim(0, dim)
            for i, (shape, dim) in enumerate(zip(shapes, in_dims))
        ]
        got, want = (vmap(f, in_dims)(*args) for f in (ours, theirs))
        assert torch.allclose(got, want), in_dims


def test_vmap_is_one_gemm_and_folds_into_rows(device):
    a, b = randn(6, 3, 4, device=device), randn(4, 5, device=device)
    with Recorder() as seen:
        y = vmap(gemm, (0, None))(a, b)
    assert torch.allclose(y, a @ b) and [args[0].shape for _, args, _ in seen.gemms()] == [(18, 4)]
    with Recorder() as seen:
        y = vmap(vmap(gemm, (0, None)), (None, 0))(a, torch.stack([b, b + 1]))
    assert torch.allclose(y, torch.stack([a @ b, a @ (b + 1)])) and len(seen.gemms()) == 1


def test_per_sample_gradients(device):
    x, w = randn(6, 3, 4, device=device), randn(4, 5, device=device)

    def loss(multiply):
        return lambda w, x: multiply(x, w).square().sum()

    got, want = (vmap(grad(loss(f)), (None, 0))(w, x) for f in (gemm, torch.matmul))
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)


def test_functionalize(device):
    a, b = (t.detach() for t in leaves((3, 4), (4, 2), device)[:2])
    assert torch.allclose(functionalize(gemm)(a, b), a @ b)
    got = grad(functionalize(lambda a: gemm(a, b).square().sum()))(a)
    assert torch.allclose(got, grad(lambda a: (a @ b).square().sum())(a))


def test_what_is_not_supported_says_so(device):
    a, b = (t.detach() for t in leaves((3, 4), (4, 2), device)[:2])
    out = torch.empty(3, 2, device=device, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"out cannot be written inside a torch\.func"):
        vmap(lambda a: gemm.out(a, b, out=out))(a[None])
    with pytest.raises(RuntimeError, match="variant"):
        vmap(lambda a: ops._gemm(a, b, None, None, 1.0, 0.0, 0, None, 0))(a[None])
    with pytest.raises(RuntimeError, match="Functionalize"):
        functionalize(grad(lambda a: gemm(a, b).sum()))(a)
