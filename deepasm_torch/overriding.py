"""`override()`: torch's own matrix products use deepasm inside a with block.

A TorchFunctionMode sees a call before autograd, autocast and dispatch do, so everything that
composes with `functional` composes with the override.  A call is taken only when it is certain to
mean the same; any other goes to torch untouched, which then also words the error of a bad call.
"""

from __future__ import annotations

import functools

import torch
from torch.overrides import TorchFunctionMode

from . import _library, functional
from .checks import INPUT_DTYPES

_DEVICES = ("cuda", "cpu", "meta")


def override(function=None):
    """Make torch.matmul, mm, bmm, addmm, baddbmm, `@`, F.linear and nn.Linear use deepasm.

    Use it as a context manager, or as a decorator with or without parentheses::

        with deepasm_torch.override():
            y = model(x)

        @deepasm_torch.override
        def step(x): ...

    Nests, is local to the thread, and composes with grad, autocast, torch.func and torch.compile
    (inside or outside of the compiled function).  The backward of a call that was taken uses
    deepasm wherever it runs.

    Taken are calls whose tensors are plain (Tensor or Parameter), dense, on one device (CUDA, CPU
    or meta), and of one dtype among bfloat16, float16, float32 and float64 (or made so by
    autocast), with legal shapes.  Everything else goes to torch: tensor subclasses, sparse,
    quantised, integer and complex tensors, in-place forms (`addmm_`), and the deprecated argument
    orders.

    Parameters
    ----------
    function : callable, optional
        Makes `@override` a decorator.

    Returns
    -------
    TorchFunctionMode, or the wrapped function

    Raises
    ------
    ImportError
        If the compiled part of deepasm_torch could not be loaded.
    """
    _library.require()
    if function is None:
        return OverrideMode()
    return OverrideMode()(function)


class OverrideMode(TorchFunctionMode):
    """The mode behind `override`; one object may be entered again and again."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def __call__(self, function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with OverrideMode():
                return function(*args, **kwargs)

        return wrapper


def _plain(t) -> bool:
    """A tensor that our dispatch keys serve, not a subclass with a dispatch of its own."""
    kind = type(t)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter and not _internal(kind):
        return False
    return not t.is_nested and t.layout is torch.strided and t.device.type in _DEVICES


def _internal(kind) -> bool:
    """Stand-ins that tracing puts in place of plain tensors."""
    return kind.__module__ in (
        "torch._subclasses.fake_tensor",
        "torch._subclasses.functional_tensor",
    )


def _takes(a, b, addend=None) -> bool:
    """Whether the operands and the addend can go to our op."""
    if not _plain(a) or not _plain(b) or not (addend is None or _plain(addend)):
        return False
    cast = functional._autocast(a)
    for t in (a, b) if addend is None else (a, b, addend):
        if t.device != a.device or t.dtype not in INPUT_DTYPES:
            return False
        # Autocast makes every dtype equal but float64, which it leaves alone.
        if t.dtype != a.dtype and (not cast or torch.float64 in (t.dtype, a.dtype)):
            return False
    return True


def _multiply(a, b) -> bool:
    """Whether torch.matmul would accept the shapes."""
    if not a.dim() or not b.dim() or a.shape[-1] != b.shape[-2 if b.dim() > 1 else 0]:
        return False
    return all(x == y or x == 1 or y == 1 for x, y in zip(a.shape[-3::-1], b.shape[-3::-1]))


def _out_fits(out, a, *others) -> bool:
    """out= needs the result's dtype; it switches autocast off, so operands must agree already."""
    if out is None:
        return True
    same = all(t is None or t.dtype == a.dtype for t in others)
    return same and _plain(out) and out.dtype == a.dtype and out.device == a.device


# Handlers answer NotImplemented for torch; `rest` are arguments that only torch knows.


def _matmul(input=None, other=None, *, out=None, **rest):
    if rest or not _takes(input, other) or not _multiply(input, other):
        return NotImplemented
    if not _out_fits(out, input, other):
        return NotImplemented
    return functional.matmul(input, other, out=out)


def _rmatmul(self, other):
    return _matmul(other, self)


def _product(rank, function):
    def handler(input=None, mat2=None, *more, out=None, **rest):
        if (
            more  # torch takes an out_dtype by position
            or rest
            or not _takes(input, mat2)
            or not input.dim() == mat2.dim() == rank
            or not _multiply(input, mat2)
            or (rank == 3 and input.shape[0] != mat2.shape[0])
            or not _out_fits(out, input, mat2)
        ):
            return NotImplemented
        return function(input, mat2, out=out)

    return handler


def _sum(rank, names, function):
    first, second = names

    def handler(input=None, *args, beta=1, alpha=1, out=None, **rest):
        # torch takes the matrices by position or by name.
        if len(args) < 1 and first in rest:
            args = (rest.pop(first),)
        if len(args) < 2 and second in rest:
            args = (*args, rest.pop(second))
        if rest or len(args) != 2:
            return NotImplemented
        a, b = args
        numbers = all(isinstance(v, (int, float)) for v in (beta, alpha))
        if (
            not numbers
            or not _takes(a, b, input)
            or not a.dim() == b.dim() == rank
            or not _multiply(a, b)
            or (rank == 3 and a.shape[0] != b.shape[0])
            or not _expands(input.shape, (*a.shape[:-1], b.shape[-1]))
            or not _out_fits(out, a, b, input)
        ):
            return NotImplemented
        return function(input, a, b, beta=beta, alpha=alpha, out=out)

    return handler


def _expands(shape, target) -> bool:
    pairs = zip(reversed(shape), reversed(target))
    return len(shape) <= len(target) and all(x == y or x == 1 for x, y in pairs)


def _linear(input=None, weight=None, bias=None, **rest):
    if (
        rest
        or not _takes(input, weight, bias)
        or weight.dim() != 2
        or not input.dim()
        or input.shape[-1] != weight.shape[1]
        or (bias is not None and not _expands(bias.shape, (weight.shape[0],)))
    ):
        return NotImplemented
    return functional.linear(input, weight, bias)


_mm, _bmm = _product(2, functional.mm), _product(3, functional.bmm)
_addmm = _sum(2, ("mat1", "mat2"), functional.addmm)
_baddbmm = _sum(3, ("batch1", "batch2"), functional.baddbmm)

#: torch's functions and methods, each with the handler that may take a call of it.
_HANDLERS = {
    torch.matmul: _matmul,
    torch.linalg.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__rmatmul__: _rmatmul,
    torch.mm: _mm,
    torch.Tensor.mm: _mm,
    torch.bmm: _bmm,
    torch.Tensor.bmm: _bmm,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.baddbmm: _baddbmm,
    torch.Tensor.baddbmm: _baddbmm,
    torch.nn.functional.linear: _linear,
}
