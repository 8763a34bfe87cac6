"""torch's matrix products with torch's signatures, computed by `torch.ops.deepasm.gemm`.

`gemm` shows everything the op can do; `matmul`, `mm`, `bmm`, `linear`, `addmm` and `baddbmm` are
drop-in replacements: the same argument names, shapes, errors and `out=` rules as in torch.

All of them: inputs of one dtype among bfloat16, float16 (hand-written kernels on CUDA), float32 and
float64 (torch, counted in `deepasm_torch.fallbacks()`); any strides, including broadcast (stride 0)
and misaligned ones; results are fresh and row-major; differentiable twice, in forward mode, and
under torch.func, autocast, torch.compile and torch.export.  Integer, complex, sparse and nested
tensors raise RuntimeError (torch's own functions take some of them).
"""

from __future__ import annotations

import functools
import warnings

import torch
import torch.autograd.forward_ad as forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from . import _library
from .autograd import check_out_tangents
from .checks import (
    Activation,
    check_out_grad,
    need_dtype,
    need_number,
    need_rank,
    need_same_batch,
    need_tensor,
    product_shape,
    refuse,
)

_ops = torch.ops.deepasm

__all__ = ["addmm", "baddbmm", "bmm", "gemm", "linear", "matmul", "mm"]


def _overridable(function):
    """Give a function torch's __torch_function__ protocol: modes, subclasses, torch.fx proxies."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        relevant = (*args, *kwargs.values())
        if has_torch_function(relevant):
            return handle_torch_function(call, relevant, *args, **kwargs)
        return function(*args, **kwargs)

    return call


@_overridable
def gemm(a, b, bias=None, *, activation="none", out_dtype=None, out=None):
    """act(a @ b + bias) with one rounding, in one kernel.

    Parameters
    ----------
    a : Tensor, shape (K,) or (..., M, K)
    b : Tensor, shape (K,) or (..., K, N); dtype and device of a
    bias : Tensor, shape (N,) or (1,), optional; dtype of a, or float32
        Added in float32, before the activation.
    activation : {"none", "relu", "gelu_tanh", "gelu_erf", "silu"}, Activation or int
    out_dtype : torch.dtype, optional
        bfloat16, float16, float32 or float64; default the dtype of a (of `out` when given).
    out : Tensor, optional
        Written and returned. Its dtype decides the output type; it is resized as in torch when its
        shape differs. Not differentiable.

    Returns
    -------
    Tensor, shape of `torch.matmul(a, b)`

    Raises
    ------
    RuntimeError
        Shapes that do not multiply, mixed devices or dtypes, unsupported dtypes or layouts.
    ValueError
        Unknown activation name, or an `out_dtype` that contradicts `out`.

    See Also
    --------
    torch.matmul : the shape rules.
    """
    a, b = need_tensor("gemm", "a", a), need_tensor("gemm", "b", b)
    if isinstance(activation, str):
        try:
            activation = Activation[activation.upper()]
        except KeyError:
            names = ", ".join(repr(v.name.lower()) for v in Activation)
            raise ValueError(
                f"gemm: activation is {activation!r}, expected {names}; apply another one to the "
                "result"
            ) from None
    activation = int(activation)
    if out is None:
        return _call(a, b, bias, activation, out_dtype)
    need_tensor("gemm", "out", out)
    if out_dtype is not None and out_dtype != out.dtype:
        raise ValueError(
            f"gemm: out has dtype {out.dtype} but out_dtype is {out_dtype}; leave out_dtype away, "
            "out decides"
        )
    return _write("gemm", out, a, b, bias, activation=activation)


@_overridable
def matmul(input, other, *, out=None):
    """Matrix product of two tensors, as torch.matmul.

    Parameters
    ----------
    input : Tensor, shape (K,) or (..., M, K)
    other : Tensor, shape (K,) or (..., K, N)
        Batch dimensions broadcast.
    out : Tensor, optional; dtype of the result; resized as in torch

    Returns
    -------
    Tensor, shape (..., M, N) without the dimension of a 1-D operand

    Raises
    ------
    RuntimeError
        As torch.matmul, and for dtypes and layouts that only torch supports.
    """
    input, other = need_tensor("matmul", "input", input), need_tensor("matmul", "other", other)
    if out is not None:
        need_dtype("matmul", "out", out, input.dtype)
        return _write("matmul", out, input, other)
    return _call(input, other)


@_overridable
def mm(input, mat2, out_dtype=None, *, out=None):
    """Product of two matrices, as torch.mm: no broadcasting.

    Parameters
    ----------
    input : Tensor, shape (M, K)
    mat2 : Tensor, shape (K, N)
    out_dtype : torch.dtype, optional; e.g. float32 from bfloat16 inputs, never rounded between
    out : Tensor, optional; dtype of the result; resized as in torch

    Returns
    -------
    Tensor, shape (M, N)

    Raises
    ------
    RuntimeError
        As torch.mm: operands that are not 2-D or do not multiply, mixed dtypes or devices.
    """
    need_rank("mm", "input", input, 2)
    need_rank("mm", "mat2", mat2, 2)
    return _plain("mm", input, mat2, out_dtype, out)


@_overridable
def bmm(input, mat2, out_dtype=None, *, out=None):
    """Batched product of matrices, as torch.bmm: equal batch sizes, no broadcasting.

    Parameters
    ----------
    input : Tensor, shape (B, M, K)
    mat2 : Tensor, shape (B, K, N)
    out_dtype : torch.dtype, optional
    out : Tensor, optional; dtype of the result; resized as in torch

    Returns
    -------
    Tensor, shape (B, M, N)

    Raises
    ------
    RuntimeError
        As torch.bmm: operands that are not 3-D, unequal batch sizes, mixed dtypes or devices.
    """
    need_rank("bmm", "input", input, 3)
    need_rank("bmm", "mat2", mat2, 3)
    need_same_batch("bmm", input, mat2)
    return _plain("bmm", input, mat2, out_dtype, out)


@_overridable
def linear(input, weight, bias=None):
    """input @ weight^T + bias, as torch.nn.functional.linear.

    Parameters
    ----------
    input : Tensor, shape (..., in_features)
    weight : Tensor, shape (out_features, in_features) or (in_features,)
    bias : Tensor, optional, shape (out_features,) or () for a 1-D weight; dtype of input
        A vector is added by the same kernel; other broadcastable shapes are read as a matrix.

    Returns
    -------
    Tensor, shape (..., out_features), or (...) for a 1-D weight

    Raises
    ------
    RuntimeError
        As F.linear: shapes that do not multiply, mixed dtypes or devices.
    """
    input, weight = need_tensor("linear", "input", input), need_tensor("linear", "weight", weight)
    if bias is not None and not _autocast(input):
        need_dtype("linear", "bias", bias, input.dtype)
    if weight.dim() > 2:
        refuse(
            "weight",
            f"has shape {tuple(weight.shape)}",
            "(out_features, in_features) or (in_features,)",
            "use matmul for batched weights",
            "linear",
        )
    matrix = weight.t()  # a 1-D weight is its own transpose
    if bias is None or bias.dim() == 1:
        return _call(input, matrix, bias)
    return _ops._addmm(input, matrix, None, bias, 1.0, 1.0, 0, None)


@_overridable
def addmm(input, mat1, mat2, out_dtype=None, *, beta=1, alpha=1, out=None):
    """beta * input + alpha * (mat1 @ mat2), as torch.addmm.

    Parameters
    ----------
    input : Tensor, broadcastable to (M, N); dtype of mat1 (or of the result)
        Not read when beta is 0: NaN and infinity in it do not spread.
    mat1 : Tensor, shape (M, K)
    mat2 : Tensor, shape (K, N)
    out_dtype : torch.dtype, optional
    beta, alpha : number
    out : Tensor, optional; dtype of the result; resized as in torch; may be `input` itself

    Returns
    -------
    Tensor, shape (M, N).  Product, scaling and sum are made in float32 (float64 for float64) and
    rounded once.

    Raises
    ------
    RuntimeError
        As torch.addmm: matrices that are not 2-D or do not multiply, an `input` that does not
        broadcast to the product, mixed dtypes or devices.
    """
    need_rank("addmm", "mat1", mat1, 2)
    need_rank("addmm", "mat2", mat2, 2)
    return _added("addmm", input, mat1, mat2, out_dtype, beta, alpha, out)


@_overridable
def baddbmm(input, batch1, batch2, out_dtype=None, *, beta=1, alpha=1, out=None):
    """beta * input + alpha * (batch1 @ batch2), as torch.baddbmm.

    Parameters
    ----------
    input : Tensor, broadcastable to (B, M, N); dtype of batch1 (or of the result)
        Not read when beta is 0.
    batch1 : Tensor, shape (B, M, K)
    batch2 : Tensor, shape (B, K, N)
    out_dtype : torch.dtype, optional
    beta, alpha : number
    out : Tensor, optional; dtype of the result; resized as in torch; may be `input` itself

    Returns
    -------
    Tensor, shape (B, M, N)

    Raises
    ------
    RuntimeError
        As torch.baddbmm: operands that are not 3-D, unequal batch sizes, an `input` that does not
        broadcast to the product, mixed dtypes or devices.
    """
    need_rank("baddbmm", "batch1", batch1, 3)
    need_rank("baddbmm", "batch2", batch2, 3)
    need_same_batch("baddbmm", batch1, batch2)
    return _added("baddbmm", input, batch1, batch2, out_dtype, beta, alpha, out)


# ---- shared ------------------------------------------------------------------------------------


def _call(a, b, bias=None, activation=0, out_dtype=None):
    # What the op's Python entry does too (see errors): traced code does not pass through that.
    if forward_ad._current_level >= 0 and not torch.is_grad_enabled():
        return _ops._addmm(a, b, bias, None, 1.0, 0.0, activation, out_dtype)
    return _ops.gemm(a, b, bias, activation=activation, out_dtype=out_dtype)


def _plain(name, a, b, out_dtype, out):
    if out is not None:
        need_dtype(name, "out", out, out_dtype or a.dtype)
        return _write(name, out, a, b)
    return _call(a, b, out_dtype=out_dtype)


def _added(name, input, a, b, out_dtype, beta, alpha, out):
    need_tensor(name, "input", input)
    if out is not None or not _autocast(a):
        need_dtype(name, "input", input, a.dtype, out_dtype)
    beta, alpha = need_number(name, "beta", beta), need_number(name, "alpha", alpha)
    # The vector of a Linear layer goes through the kernels' bias, anything else through c.
    vector = input.dim() == 1 and beta == 1 and alpha == 1
    bias, c = (input, None) if vector else (None, input)
    if out is not None:
        need_dtype(name, "out", out, out_dtype or a.dtype)
        return _write(name, out, a, b, bias, c, alpha, beta)
    if vector:
        return _call(a, b, bias, out_dtype=out_dtype)
    return _ops._addmm(a, b, None, c, alpha, beta, 0, out_dtype)


def _write(name, out, a, b, bias=None, c=None, alpha=1.0, beta=0.0, activation=0):
    """torch's out= rules, then the op that fills `out`."""
    _library.require()
    check_out_grad(name, a, b, bias, c, out)
    check_out_tangents(name, a, b, bias, c, out)
    shape = product_shape(a, b)
    if tuple(out.shape) != shape and _multiply(a, b):
        if out.numel() != 0:
            warnings.warn(
                f"{name}: out has shape {tuple(out.shape)} and was resized to {shape}; as in torch "
                "this is deprecated for an out that is not empty: out.resize_(0) before reuse",
                stacklevel=3,
            )
        out.resize_(shape)
    if c is None and alpha == 1:
        _ops.gemm.out(a, b, bias, activation=activation, out=out)
    else:
        _ops._gemm.out(a, b, bias, c, alpha, beta, activation, None, -1, out=out)
    return out


def _multiply(a, b) -> bool:
    return a.dim() > 0 < b.dim() and a.shape[-1] == b.shape[-2 if b.dim() > 1 else 0]


def _autocast(t) -> bool:
    kind = t.device.type
    return kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
