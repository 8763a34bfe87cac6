"""override(): which calls are taken, which go to torch untouched, and what it composes with."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from surface import Recorder, randn

import deepasm_torch
from deepasm_torch import override

ops = torch.ops.deepasm


def counted(function):
    """Result of function(), and how many deepasm ops it dispatched under override()."""
    with Recorder() as seen, override():
        result = function()
    return result, seen.ours()


def made(device, dtype):
    a, b = randn(3, 4, device=device, dtype=dtype), randn(4, 5, device=device, dtype=dtype)
    return a, b, a.expand(2, 3, 4), b.expand(2, 4, 5), randn(3, 5, device=device, dtype=dtype)


TAKEN = {
    "@": lambda a, b, A, B, c: a @ b,
    "torch.matmul": lambda a, b, A, B, c: torch.matmul(A, b),
    "torch.matmul by name": lambda a, b, A, B, c: torch.matmul(input=a, other=b),
    "Tensor.matmul": lambda a, b, A, B, c: a.matmul(B),
    "__rmatmul__": lambda a, b, A, B, c: b.__rmatmul__(a),
    "linalg.matmul": lambda a, b, A, B, c: torch.linalg.matmul(a, b),
    "matmul out=": lambda a, b, A, B, c: torch.matmul(a, b, out=torch.empty_like(c)),
    "torch.mm": lambda a, b, A, B, c: torch.mm(a, b),
    "Tensor.mm": lambda a, b, A, B, c: a.mm(mat2=b),
    "torch.bmm": lambda a, b, A, B, c: torch.bmm(A, B),
    "Tensor.bmm": lambda a, b, A, B, c: A.bmm(B),
    "torch.addmm": lambda a, b, A, B, c: torch.addmm(c, a, b, beta=2, alpha=0.5),
    "torch.addmm by name": lambda a, b, A, B, c: torch.addmm(input=c, mat1=a, mat2=b),
    "Tensor.addmm": lambda a, b, A, B, c: c.addmm(a, mat2=b),
    "torch.baddbmm": lambda a, b, A, B, c: torch.baddbmm(c, A, B),
    "Tensor.baddbmm": lambda a, b, A, B, c: c.expand(2, 3, 5).baddbmm(A, B, beta=0),
    "F.linear": lambda a, b, A, B, c: F.linear(A, b.t(), c[0]),
    "F.linear by name": lambda a, b, A, B, c: F.linear(input=a, weight=b.t(), bias=None),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(device, dtype, name):
    args = made(device, dtype)
    y, ours = counted(lambda: TAKEN[name](*args))
    assert ours == 1
    assert torch.allclose(y.float(), TAKEN[name](*args).float(), rtol=2e-2, atol=3e-2)


UNTOUCHED = {
    "integers": lambda a, b, A, B, c: a.int() @ b.int(),
    "complex": lambda a, b, A, B, c: a.to(torch.complex64) @ b.to(torch.complex64),
    "sparse": lambda a, b, A, B, c: torch.sparse.mm(a.to_sparse(), b),
    "sparse @": lambda a, b, A, B, c: a.to_sparse() @ b,
    "in place": lambda a, b, A, B, c: c.clone().addmm_(a, b),
    "other functions": lambda a, b, A, B, c: a + a,
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_untouched(name):
    args = made("cpu", torch.float32)
    y, ours = counted(lambda: UNTOUCHED[name](*args))
    want = UNTOUCHED[name](*args)
    assert ours == 0 and torch.equal(y, want)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(1, 3, 2)),
        lambda: torch.ones(2, 3) @ torch.ones(3, 2).double(),
        lambda: torch.bmm(torch.ones(2, 3, 3), torch.ones(1, 3, 3)),
        lambda: torch.addmm(torch.ones(4), torch.ones(2, 3), torch.ones(3, 2)),
        lambda: F.linear(torch.ones(2, 3), torch.ones(5, 3), torch.ones(4)),
        lambda: torch.matmul(torch.ones(3)),
        lambda: torch.matmul(torch.ones(3), torch.ones(3), nonsense=1),
        lambda: torch.matmul(torch.ones(3), 4),
        lambda: torch.addmm(torch.ones(3)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2), out=torch.ones(2, 2).double()),
    ],
)
def test_bad_calls_raise_torchs_own_error(call):
    with pytest.raises(Exception) as want:
        call()
    with override(), pytest.raises(want.type) as got:
        call()
    assert str(got.value) == str(want.value)


def test_module_forward_and_backward(device, dtype):
    m = torch.nn.Linear(8, 6, device=device, dtype=dtype)
    x = randn(2, 3, 8, device=device, dtype=dtype, requires_grad=True)
    dy = randn(2, 3, 6, device=device, dtype=dtype, seed=3)
    with override():
        y = m(x)
    with Recorder() as outside:
        got = torch.autograd.grad(y, (x, m.weight, m.bias), dy)
    assert outside.ours() == 2, "the backward of a taken call is ours wherever it runs"
    want = torch.autograd.grad(m(x), (x, m.weight, m.bias), dy)
    for g, w in zip(got, want):
        assert g.stride() == w.stride()
        assert torch.allclose(g.float(), w.float(), rtol=2e-2, atol=3e-2)


def test_ends_with_the_block_even_after_an_exception():
    a = torch.ones(2, 2)
    with pytest.raises(ZeroDivisionError), override():
        1 / 0
    with Recorder() as seen:
        a @ a
    assert seen.ours() == 0


def test_nests_and_reenters():
    a, mode = torch.ones(2, 2), override()
    with Recorder() as seen:
        with mode, override():
            a @ a
            with mode:
                a @ a
        with mode:
            a @ a
        a @ a
    assert seen.ours() == 3


def test_decorators():
    @override
    def bare(a):
        """Doc."""
        return a @ a

    @override()
    def called(a):
        return bare(a) @ a

    with Recorder() as seen:
        called(torch.ones(2, 2))
        called(torch.ones(2, 2))
    assert seen.ours() == 4 and bare.__name__ == "bare" and bare.__doc__ == "Doc."


def test_is_local_to_the_thread():
    a, counts = torch.ones(2, 2), []

    def work():
        with Recorder() as seen:
            a @ a
        counts.append(seen.ours())

    with override():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert counts == [0]


def test_autocast(device):
    a, b, *_ = made(device, torch.float32)
    with override(), torch.autocast(device, torch.bfloat16):
        y, mixed, double = a @ b, a.bfloat16() @ b, a.double() @ b.double()
    with torch.autocast(device, torch.bfloat16), override():
        z = a @ b
    assert y.dtype == z.dtype == mixed.dtype == torch.bfloat16 and double.dtype == torch.float64
    assert torch.equal(y, z) and torch.equal(y, ops.gemm(a.bfloat16(), b.bfloat16()))
    with torch.autocast(device, torch.bfloat16):
        with pytest.raises(RuntimeError) as want:
            a.double() @ b
        with override(), pytest.raises(RuntimeError) as got:
            a.double() @ b
    assert str(got.value) == str(want.value), "autocast leaves float64 alone, so this is torch's"


def test_torch_func(device):
    a, b, *_ = made(device, torch.float64)
    with override():
        got = torch.func.hessian(lambda a: (a @ b).square().sum())(a)
        per_sample = torch.func.vmap(torch.matmul, (0, None))(a.expand(6, 3, 4), b)
    assert torch.allclose(got, torch.func.hessian(lambda a: (a @ b).square().sum())(a))
    assert torch.allclose(per_sample, (a @ b).expand(6, 3, 5))


class Logged(torch.Tensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """A wrapper subclass with a dispatch of its own, like DTensor or a quantised tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func.namespace == "deepasm":
            raise AssertionError("a tensor subclass must not meet an op it does not know")
        return func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))


def test_tensor_subclasses_go_to_torch():
    a = torch.ones(2, 2)
    with override():
        y = a.as_subclass(Logged) @ a
        z = torch.mm(Wrapper(a), a)
    assert type(y) is Logged and Logged.seen and torch.equal(z, a @ a)


def test_parameters_and_fake_tensors_are_plain():
    from torch._subclasses.fake_tensor import FakeTensorMode

    _, ours = counted(lambda: torch.nn.Parameter(torch.ones(2, 2)) @ torch.ones(2, 2))
    assert ours == 1
    with FakeTensorMode():
        y, ours = counted(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    assert ours == 1 and y.shape == (2, 4)


def test_meta_tensors():
    y, ours = counted(lambda: torch.ones(2, 3, device="meta") @ torch.ones(3, 4, device="meta"))
    assert ours == 1 and y.shape == (2, 4) and y.device.type == "meta"


def test_needs_the_compiled_part(monkeypatch):
    monkeypatch.setattr(deepasm_torch._library, "C", None)
    monkeypatch.setattr(deepasm_torch._library, "load_error", ImportError("not built"))
    with pytest.raises(ImportError, match="not built"):
        override()


def test_a_positional_out_dtype_goes_to_torch():
    a = torch.zeros(64, 64, dtype=torch.bfloat16, device="meta")
    with deepasm_torch.override():
        assert torch.mm(a, a, torch.float32).dtype == torch.float32
        assert torch.bmm(a[None], a[None], torch.float32).dtype == torch.float32
