"""The readable twin of the GEMM kernels: act(alpha * (a @ b) + beta * c + bias) in plain torch.

It is the CPU kernel of the ops, the fallback on CUDA, and what tests compare kernels with.
"""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F

from .checks import Activation, infer

_HALF = (torch.bfloat16, torch.float16)
# A result must not be a view: autograd forbids in-place ops on a Function's output that is one.
_unsafe_view = torch.ops.aten._unsafe_view


def transformed() -> bool:
    """True inside forward-mode AD or a torch.func transform: requires_grad does not show them."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def activate(z: torch.Tensor, activation: int) -> torch.Tensor:
    if activation == Activation.RELU:
        return torch.relu(z)
    if activation == Activation.GELU_TANH:
        return F.gelu(z, approximate="tanh")
    if activation == Activation.GELU_ERF:
        return F.gelu(z)
    if activation == Activation.SILU:
        return F.silu(z)
    return z


def activation_grad(dy: torch.Tensor, saved: torch.Tensor, activation: int) -> torch.Tensor:
    """dy * act'(z), differentiable in both arguments.

    `saved` is the output for RELU (its sign is all that matters, and it is at hand anyway) and the
    pre-activation z for the others.  Linear in dy, so the same call pushes a tangent forward.
    """
    aten = torch.ops.aten  # one kernel each, and all but silu_backward are differentiable
    if activation == Activation.RELU:
        return aten.threshold_backward(dy, saved, 0)
    if activation == Activation.GELU_TANH:
        return aten.gelu_backward(dy, saved, approximate="tanh")
    if activation == Activation.GELU_ERF:
        return aten.gelu_backward(dy, saved, approximate="none")
    if activation == Activation.SILU:
        if not torch.is_grad_enabled() and not transformed():
            return aten.silu_backward(dy, saved)
        s = torch.sigmoid(saved)
        return dy * (s * (1 + saved * (1 - s)))
    return dy


def _row_major(z: torch.Tensor) -> torch.Tensor:
    """The ops always return canonical row-major strides; torch.matmul does not (it may fold)."""
    strides, step = [], 1
    for size in reversed(z.shape):
        strides.append(step)
        step = step * max(size, 1)
    if z.stride() == tuple(reversed(strides)):
        return z
    return torch.empty(z.shape, dtype=z.dtype, device=z.device).copy_(z)


def _float_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b of 16-bit operands with a float32 result that was never rounded to 16 bits."""
    if a.is_cuda and min(a.dim(), b.dim()) >= 2 and a.numel() and b.numel():
        # Tensor cores with an fp32 output. The fp32 GEMM below gives the same values 10x slower
        # (or, with TF32 allowed, equally fast: 16-bit inputs are exact in TF32).
        if b.dim() == 2:
            product = torch.mm(a.reshape(-1, a.shape[-1]), b, out_dtype=torch.float32)
            return _unsafe_view(product, a.shape[:-1] + b.shape[-1:])
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a3 = a.expand(batch + a.shape[-2:]).reshape((-1,) + a.shape[-2:])
        b3 = b.expand(batch + b.shape[-2:]).reshape((-1,) + b.shape[-2:])
        product = torch.bmm(a3, b3, out_dtype=torch.float32)
        return _unsafe_view(product, batch + product.shape[-2:])
    return torch.matmul(a.float(), b.float())


def gemm_reference(a, b, bias=None, c=None, alpha=1.0, beta=0.0, activation=0, out_dtype=None):
    """act(alpha * (a @ b) + beta * c + bias), matmul shape rules, any device.

    Parameters
    ----------
    a : Tensor, shape (K,) or (..., M, K); bfloat16, float16, float32 or float64; any strides
    b : Tensor, shape (K,) or (..., K, N); dtype and device of a; any strides
    bias : Tensor, shape (N,) or (1,), optional; dtype of a, or float32
    c : Tensor, optional; broadcastable to the result; dtype of a, or float32.
        Not read when beta is 0, so that a NaN in it does not spread.
    alpha, beta : float
    activation : int, see `checks.Activation`
    out_dtype : torch.dtype, optional; default the dtype of a

    Returns
    -------
    Tensor, row-major and freshly allocated.  16-bit inputs are multiplied, added and activated in
    float32 and rounded once; float32 and float64 use torch.matmul as it is (including its TF32
    setting).  On CUDA a 16-bit product with at most a bias is torch's own matmul or linear.

    Raises
    ------
    RuntimeError
        For any argument that `checks.infer` refuses.
    """
    _, dtype = infer(a, b, bias, c, activation, out_dtype)
    if beta == 0:
        c = None
    plain = alpha == 1 and c is None and not activation and dtype == a.dtype
    # The gemm op has applied autocast already; torch's own ops below must not apply it again.
    with torch._C._DisableAutocast():
        if plain and (a.is_cuda or a.dtype not in _HALF):
            if bias is None:
                return _row_major(torch.matmul(a, b))
            if bias.dtype == dtype and b.dim() == 2 and bias.shape[0] == b.shape[1]:
                return _row_major(F.linear(a, b.t(), bias))
        z = _float_product(a, b) if a.dtype in _HALF else torch.matmul(a, b)
        if alpha != 1 and a.shape[-1] != 0:  # an empty sum stays 0, for an infinite alpha too
            z = z * alpha
        if c is not None:
            z = z + c.to(z.dtype) * beta
        if bias is not None:
            # A 1-D b leaves no column dimension for its one-element bias.
            z = z + (bias if b.dim() > 1 else bias.squeeze(0)).to(z.dtype)
        return _row_major(activate(z, activation).to(dtype))
