"""functional.* against torch's functions of the same names: values, signatures, out=, errors."""

from __future__ import annotations

import inspect
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from surface import assert_near, randn

import deepasm_torch
from deepasm_torch import Activation, functional

PAIRS = {
    "matmul": (functional.matmul, torch.matmul),
    "mm": (functional.mm, torch.mm),
    "bmm": (functional.bmm, torch.bmm),
    "linear": (functional.linear, F.linear),
    "addmm": (functional.addmm, torch.addmm),
    "baddbmm": (functional.baddbmm, torch.baddbmm),
}

#: name -> shapes of the tensors, keyword arguments
CALLS = [
    ("matmul", [(3, 4), (4, 5)], {}),
    ("matmul", [(2, 1, 3, 4), (5, 4, 2)], {}),
    ("matmul", [(4,), (4,)], {}),
    ("mm", [(3, 4), (4, 5)], {}),
    ("mm", [(0, 4), (4, 5)], {}),
    ("bmm", [(2, 3, 4), (2, 4, 5)], {}),
    ("linear", [(2, 3, 4), (5, 4), (5,)], {}),
    ("linear", [(4,), (5, 4)], {}),
    ("linear", [(3, 4), (4,)], {}),
    ("linear", [(3, 4), (5, 4), (1,)], {}),
    ("addmm", [(5,), (3, 4), (4, 5)], {}),
    ("addmm", [(5,), (3, 4), (4, 5)], {"beta": 2}),
    ("addmm", [(5,), (3, 4), (4, 5)], {"alpha": 3}),
    ("addmm", [(3, 5), (3, 4), (4, 5)], {"beta": 2, "alpha": 3}),
    ("addmm", [(3, 1), (3, 4), (4, 5)], {"beta": 0.5}),
    ("addmm", [(), (3, 4), (4, 5)], {"alpha": -1}),
    ("addmm", [(3, 5), (3, 0), (0, 5)], {"beta": 0.5}),
    ("baddbmm", [(5,), (2, 3, 4), (2, 4, 5)], {}),
    ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)], {"beta": 0.5, "alpha": 2.0}),
    ("baddbmm", [(1, 3, 1), (2, 3, 4), (2, 4, 5)], {"beta": -2}),
]
IDS = [f"{name}-{'-'.join(map(str, shapes))}-{kwargs}" for name, shapes, kwargs in CALLS]


def tensors(shapes, device, dtype, **more):
    return [randn(*s, device=device, dtype=dtype, seed=i, **more) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("name, shapes, kwargs", CALLS, ids=IDS)
def test_value(device, dtype, name, shapes, kwargs):
    ours, theirs = PAIRS[name]
    args = tensors(shapes, device, dtype)
    y = ours(*args, **kwargs)
    want = theirs(*(t.double() for t in args), **kwargs)
    assert y.dtype == dtype and y.is_contiguous()
    assert_near(y, want, theirs(*args, **kwargs))


@pytest.mark.parametrize("name, shapes, kwargs", CALLS, ids=IDS)
def test_gradients(device, name, shapes, kwargs):
    ours, theirs = PAIRS[name]
    args = tensors(shapes, device, torch.float64, requires_grad=True)
    got = torch.autograd.grad(ours(*args, **kwargs).square().sum(), args)
    want = torch.autograd.grad(theirs(*args, **kwargs).square().sum(), args)
    for g, w, t in zip(got, want, args):
        assert g.dtype == t.dtype and torch.allclose(g, w)


@pytest.mark.parametrize("name", PAIRS)
def test_torch_argument_names(name):
    """Every call that torch's documented signature allows by name is allowed here."""
    documented = {
        "matmul": ["input", "other", "out"],
        "mm": ["input", "mat2", "out_dtype", "out"],
        "bmm": ["input", "mat2", "out_dtype", "out"],
        "linear": ["input", "weight", "bias"],
        "addmm": ["input", "mat1", "mat2", "out_dtype", "beta", "alpha", "out"],
        "baddbmm": ["input", "batch1", "batch2", "out_dtype", "beta", "alpha", "out"],
    }[name]
    ours, theirs = PAIRS[name]
    assert list(inspect.signature(ours).parameters) == documented
    shapes = next(shapes for n, shapes, _ in CALLS if n == name)
    named = dict(zip(documented, tensors(shapes, "cpu", torch.float32)))
    assert torch.allclose(ours(**named), theirs(**named), atol=1e-6)
    for function in vars(functional).values():
        if inspect.isfunction(function) and function.__name__ in functional.__all__:
            assert "Parameters\n" in function.__doc__ and "Raises\n" in function.__doc__


@pytest.mark.parametrize("name, shapes, kwargs", [c for c in CALLS if c[0] != "linear"], ids=str)
def test_out(device, dtype, name, shapes, kwargs):
    ours, _ = PAIRS[name]
    args = tensors(shapes, device, dtype)
    want = ours(*args, **kwargs)
    out = torch.full_like(want, float("nan"))
    assert ours(*args, **kwargs, out=out) is out and torch.equal(out, want)
    empty = torch.empty(0, device=device, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(ours(*args, **kwargs, out=empty), want)
    if want.numel():
        other = torch.empty(7, device=device, dtype=dtype)
        with pytest.warns(UserWarning, match="resized"):
            ours(*args, **kwargs, out=other)
        assert torch.equal(other, want)


def test_out_can_be_the_input_of_addmm(device, dtype):
    c, a, b = tensors([(3, 5), (3, 4), (4, 5)], device, dtype)
    want = functional.addmm(c, a, b, beta=0.5)
    functional.addmm(c, a, b, beta=0.5, out=c)
    assert torch.equal(c, want)


def test_out_refuses_gradients_and_dtypes(device):
    a, b = tensors([(3, 4), (4, 5)], device, torch.float32)
    out = torch.empty(3, 5, device=device)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        functional.mm(a.requires_grad_(), b, out=out)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        functional.addmm(a[:, :1], a, b, beta=2, out=out)
    with torch.no_grad():
        functional.mm(a, b, out=out)
    with pytest.raises(RuntimeError, match="mm: out has dtype"):
        functional.mm(a.detach(), b, out=out.double())


def test_beta_zero_ignores_nan_and_still_has_a_gradient(device, dtype):
    a, b = tensors([(3, 4), (4, 5)], device, dtype)
    c = torch.full((3, 5), float("nan"), device=device, dtype=dtype, requires_grad=True)
    y = functional.addmm(c, a, b, beta=0)
    assert torch.equal(y, functional.mm(a, b))
    y.sum().backward()
    assert torch.equal(c.grad, torch.zeros_like(c))


def test_vector_input_is_the_kernels_bias(device, half):
    """A Linear's addmm and F.linear are the same kernel call, hence bitwise the same."""
    bias, a, w = tensors([(5,), (3, 4), (5, 4)], device, half)
    assert torch.equal(functional.addmm(bias, a, w.t()), functional.linear(a, w, bias))


def test_one_rounding_where_an_unfused_sum_has_two(device, half):
    """The product 1 + tiny rounds to 1 in the 16-bit type; added to -1 in float32 it survives."""
    tiny = 2.0**-9 if half == torch.bfloat16 else 2.0**-12
    a = torch.tensor([[1.0, tiny]], device=device, dtype=half)
    b, c = torch.ones(2, 1, device=device, dtype=half), torch.ones(1, 1, device=device, dtype=half)
    assert functional.addmm(c, a, b, beta=-1).item() == tiny
    assert functional.gemm(a, b, -c.reshape(1)).item() == tiny


@pytest.mark.parametrize("spelling", ["none", "relu", "GELU_TANH", Activation.GELU_ERF, 4], ids=str)
def test_gemm_activation_spellings(device, spelling):
    a, b, bias = tensors([(3, 4), (4, 5), (5,)], device, torch.float32)
    number = Activation[spelling.upper()] if isinstance(spelling, str) else int(spelling)
    y = functional.gemm(a, b, bias, activation=spelling)
    assert torch.equal(y, torch.ops.deepasm.gemm(a, b, bias, activation=int(number)))
    out = torch.empty(3, 5, device=device)
    assert functional.gemm(a, b, bias, activation=spelling, out=out) is out
    assert torch.equal(out, y)


def test_out_dtype(device, half):
    a, b = tensors([(33, 40), (40, 24)], device, half)
    y = functional.mm(a, b, torch.float32)
    assert y.dtype == torch.float32
    assert_near(y, a.double() @ b.double(), a.float() @ b.float())
    batch = functional.bmm(a[None], b[None], out_dtype=torch.float32)
    assert torch.equal(batch[0], y)
    c = torch.ones(24, device=device)
    assert torch.equal(functional.addmm(c, a, b, out_dtype=torch.float32), y + 1)


BAD = [
    ("mm", [(3, 4), (2, 4, 5)], {}),
    ("mm", [(3, 4), (5, 6)], {}),
    ("mm", [(4,), (4, 5)], {}),
    ("bmm", [(2, 3, 4), (4, 5)], {}),
    ("bmm", [(2, 3, 4), (3, 4, 5)], {}),
    ("bmm", [(1, 3, 4), (3, 4, 5)], {}),
    ("baddbmm", [(5,), (1, 3, 4), (3, 4, 5)], {}),
    ("matmul", [(), (4,)], {}),
    ("matmul", [(2, 3, 4), (3, 4, 5)], {}),
    ("linear", [(3, 4), (5, 6)], {}),
    ("linear", [(3, 4), (5, 4), (6,)], {}),
    ("addmm", [(6,), (3, 4), (4, 5)], {}),
    ("addmm", [(2, 3, 5), (3, 4), (4, 5)], {}),
    ("baddbmm", [(5,), (2, 3, 4), (3, 4, 5)], {}),
    ("addmm", [(5,), (3, 4), (4, 5)], {"alpha": 1j}),
]


@pytest.mark.parametrize("name, shapes, kwargs", BAD, ids=str)
def test_same_exception_type_as_torch(device, name, shapes, kwargs):
    ours, theirs = PAIRS[name]
    args = tensors(shapes, device, torch.float32)
    with pytest.raises(Exception) as theirs_raised:
        theirs(*args, **kwargs)
    with pytest.raises(theirs_raised.type) as ours_raised:
        ours(*args, **kwargs)
    assert re.search("expected|cannot be|need to be|must match", str(ours_raised.value))


@pytest.mark.parametrize("name", PAIRS)
def test_mixed_dtypes_raise_as_in_torch(device, name):
    ours, theirs = PAIRS[name]
    shapes = next(shapes for n, shapes, _ in CALLS if n == name)
    for odd in range(len(shapes)):
        args = tensors(shapes, device, torch.float32)
        args[odd] = args[odd].bfloat16()
        for function in (theirs, ours):
            with pytest.raises(RuntimeError):
                function(*args)


@pytest.mark.parametrize("name", [n for n in PAIRS if n != "linear"])
def test_not_a_tensor(name):
    ours, theirs = PAIRS[name]
    shapes = next(shapes for n, shapes, _ in CALLS if n == name)
    args = tensors(shapes, "cpu", torch.float32)
    args[-1] = args[-1].tolist()
    for function in (theirs, ours):
        with pytest.raises(TypeError):
            function(*args)


def test_unknown_activation_name():
    a = torch.ones(2, 2)
    with pytest.raises(ValueError, match="'gelu', expected 'none', 'relu'"):
        functional.gemm(a, a, activation="gelu")
    with pytest.raises(ValueError, match="out_dtype"):
        functional.gemm(a, a, out_dtype=torch.float64, out=torch.empty(2, 2))


def test_autocast(device):
    a, w, bias = tensors([(3, 4), (5, 4), (5,)], device, torch.float32)
    c = randn(3, 5, device=device)
    with torch.autocast(device, torch.bfloat16):
        results = [
            functional.linear(a, w, bias),
            functional.addmm(c, a, w.t(), beta=0.5),
            functional.matmul(a, w.t()),
        ]
        peers = [F.linear(a, w, bias), torch.addmm(c, a, w.t(), beta=0.5), a @ w.t()]
    for y, peer in zip(results, peers):
        assert y.dtype == peer.dtype == torch.bfloat16
        assert torch.allclose(y.float(), peer.float(), rtol=2e-2, atol=2e-2)


def test_package_exports():
    for name in deepasm_torch.__all__:
        assert getattr(deepasm_torch, name) is not None
    assert not set(functional.__all__) - set(vars(functional))


def test_torch_function_protocol():
    """torch.fx records the functions, subclasses see them, and modes do: as torch's own."""

    class Model(torch.nn.Module):
        def forward(self, x, w):
            return functional.linear(x, w) + functional.mm(x, mat2=w.t())

    x, w = randn(3, 4), randn(5, 4)
    traced = torch.fx.symbolic_trace(Model())
    assert functional.linear in {n.target for n in traced.graph.nodes}
    assert torch.equal(traced(x, w), Model()(x, w))

    class Logged(torch.Tensor):
        seen: list = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    y = functional.linear(x.as_subclass(Logged), w)
    assert functional.linear in Logged.seen and type(y) is Logged
    with torch.device("meta"):  # itself a mode
        assert torch.equal(functional.linear(x, w), y.as_subclass(torch.Tensor))


@pytest.mark.parametrize("alpha", [float("inf"), float("nan")])
def test_an_empty_sum_is_zero_for_any_alpha(device, alpha):
    c = torch.ones(2, 2, device=device)
    a, b = torch.zeros(2, 0, device=device), torch.zeros(0, 2, device=device)
    assert torch.equal(functional.addmm(c, a, b, alpha=alpha), torch.addmm(c, a, b, alpha=alpha))
