"""Differentiation of the GEMM ops: one torch.autograd.Function serves every way of asking.

Reverse mode, double backward, forward mode, torch.func transforms and vmap all go through `Gemm`.
Its formulas call `apply`, hence deepasm ops, so they are differentiable in their turn.

With y = act(z), z = alpha * (a @ b) + beta * c + bias, and dz = dy * act'(z):

    da = alpha * dz @ b^T      db = alpha * a^T @ dz      dbias = sum of dz      dc = beta * dz

Choices
- The backward of an activation recomputes z with one more GEMM instead of saving it: training
  keeps no M x N tensor, as for a plain product.  z has the result's dtype, as it would in a chain
  of torch ops, but float32 where that is float16.  RELU saves its output instead, which the caller
  holds anyway, and masks with it.
- dz has the result's dtype and is converted to the operands' before the two products (the kernels
  take 16-bit operands); dbias and dc are computed from the unconverted dz.  Every sum is
  accumulated in float32 and rounded once.
- Gradients are written in the orientation of the operand they belong to: b = weight.t() gets
  db = (dz^T @ a)^T, so that weight.grad has exactly weight's strides without a copy.
- An operand is saved only if another input's gradient needs its values.
"""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import unwrap_dead_wrappers

from .checks import Activation, is_size
from .reference import activation_grad, transformed
from .vmap import gemm_batched

_ops = torch.ops.deepasm


def apply(a, b, bias=None, c=None, alpha=1.0, beta=0.0, activation=0, out_dtype=None):
    """The differentiable `_gemm`; skips the Function when nothing can need a derivative."""
    if (torch.is_grad_enabled() and _requires_grad(a, b, bias, c)) or transformed():
        return record(a, b, bias, c, alpha, beta, activation, out_dtype)
    return _forward(a, b, bias, c, alpha, beta, activation, out_dtype)


def record(*args):
    """`Gemm.apply`, at a third of its cost outside of torch.func transforms.

    Function.apply binds the arguments to forward's signature through `inspect` on every call, for
    the sake of defaults, which Gemm does not have.
    """
    if torch._C._are_functorch_transforms_active():
        return Gemm.apply(*args)
    return super(torch.autograd.Function, Gemm).apply(*unwrap_dead_wrappers(args))


def _forward(a, b, bias, c, alpha, beta, activation, out_dtype):
    return _ops._gemm(a, b, bias, c, alpha, beta, activation, out_dtype, -1)


def _requires_grad(*tensors) -> bool:
    return any(t is not None and t.requires_grad for t in tensors)


def check_out_tangents(name: str, *tensors) -> None:
    """Refuse out= where forward mode would lose a tangent, by torch's own exception."""
    if forward_ad._current_level < 0:
        return
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(
            f"{name}: functions with out=... arguments don't support forward-mode AD, but one of "
            "the arguments has a tangent; call it without out, or pass "
            "torch.autograd.forward_ad.unpack_dual(...).primal"
        )


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums and activation derivatives are computed."""
    return dtype if dtype == torch.float64 else torch.float32


class _Operand:
    """What the gradient of an operand must look like; cheaper to keep than the operand."""

    def __init__(self, t: torch.Tensor, vector_dim: int):
        self.shape, self.dtype, self.was_vector = t.shape, t.dtype, t.dim() == 1
        if self.was_vector:
            t = t.unsqueeze(vector_dim)
        self.batch, self.matrix = tuple(t.shape[:-2]), tuple(t.shape[-2:])
        # Where both strides are 1 one of the sizes is, and the other dimension decides: the weight
        # of nn.Linear(1, N) arrives as a row of stride 1, and its gradient must be a column again.
        row = is_size(t.shape[-2], 1) and not is_size(t.shape[-1], 1)
        self.column_major = is_size(t.stride(-2), 1) and (not is_size(t.stride(-1), 1) or row)

    def broadcast_dims(self, batch) -> list[int]:
        """Indices into the result's batch dimensions along which this operand was broadcast."""
        missing = len(batch) - len(self.batch)
        return [
            i
            for i, size in enumerate(batch)
            if i < missing or (is_size(self.batch[i - missing], 1) and not is_size(size, 1))
        ]

    def restore(self, grad: torch.Tensor) -> torch.Tensor:
        """Give a gradient in matrix form the operand's shape; mostly it has it already."""
        return grad if grad.dim() == len(self.shape) else grad.reshape(self.shape)


def _grad_a(dz, b, operand: _Operand, alpha):
    """alpha * dz @ b^T in a's shape and orientation; dz (..., M, N), b (..., K, N)."""
    summed = operand.broadcast_dims(dz.shape[:-2])
    # A sum over batches follows in float32: rounding each batch first would lose bits.
    dtype = _wide(operand.dtype) if summed else operand.dtype
    if operand.column_major:
        da = apply(b, dz.mT, alpha=alpha, out_dtype=dtype).mT
    else:
        da = apply(dz, b.mT, alpha=alpha, out_dtype=dtype)
    if summed:
        da = da.sum_to_size(operand.batch + operand.matrix).to(operand.dtype)
    return operand.restore(da)


def _grad_b(dz, a, operand: _Operand, alpha):
    """alpha * a^T @ dz in b's shape and orientation; dz (..., M, N), a (..., M, K).

    Where b was broadcast (a shared weight above all) the batch is folded into the contracted
    dimension, so that it is one GEMM instead of a batch of them and a sum.  The fold is a view of
    contiguous tensors and a copy of others.
    """
    batch = dz.shape[:-2]
    summed = operand.broadcast_dims(batch)
    if summed:
        kept = [i for i in range(len(batch)) if i not in summed]
        rows = dz.shape[-2]
        for i in summed:
            rows = rows * batch[i]

        def fold(t):
            t = t.expand(batch + t.shape[-2:])
            t = t.permute(kept + summed + [len(batch), len(batch) + 1])
            return t.reshape([batch[i] for i in kept] + [rows, t.shape[-1]])

        a, dz = fold(a), fold(dz)
    if operand.column_major:
        db = apply(dz.mT, a, alpha=alpha, out_dtype=operand.dtype).mT
    else:
        db = apply(a.mT, dz, alpha=alpha, out_dtype=operand.dtype)
    return operand.restore(db)


def _grad_bias(ctx, dz):
    """Sum of dz (..., M, N) over all but the columns, or over everything for a bias of size 1."""
    shape, dtype = ctx.bias
    last = dz.dim() if is_size(shape[0], 1) else dz.dim() - 1
    # Without a dtype torch accumulates in float32 and rounds once; with one it converts first.
    accumulate = None if dz.dtype == dtype else _wide(dz.dtype)
    return dz.sum(tuple(range(last)), dtype=accumulate).reshape(shape).to(dtype)


def _grad_c(ctx, dz):
    shape, dtype = ctx.c
    if ctx.beta != 1:
        if shape != dz.shape:
            dz = dz.to(_wide(dz.dtype))  # a sum follows: round once, at its end
        dz = dz * ctx.beta
    return dz.sum_to_size(shape).to(dtype)


def _dense(dz):
    """Materialise an expanded gradient (`y.sum().backward()`): no fast load reads stride 0."""
    for dim in (-1, -2):
        if is_size(dz.stride(dim), 0) and not is_size(dz.shape[dim], 1):
            return dz.contiguous()
    return dz


class Gemm(torch.autograd.Function):
    """act(alpha * (a @ b) + beta * c + bias); arguments as in `apply`, all positional."""

    @staticmethod
    def forward(a, b, bias, c, alpha, beta, activation, out_dtype):
        return _forward(a, b, bias, c, alpha, beta, activation, out_dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, bias, c, ctx.alpha, ctx.beta, ctx.activation, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.a, ctx.b = _Operand(a, 0), _Operand(b, 1)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.c = None if c is None else (c.shape, c.dtype)
        ctx.out_shape, ctx.out_dtype = output.shape, output.dtype
        recompute = ctx.activation not in (Activation.NONE, Activation.RELU)
        mixed = transformed()
        needs_a, needs_b = ctx.needs_input_grad[:2]
        saved = (
            a if needs_b or recompute or mixed else None,
            b if needs_a or recompute or mixed else None,
            bias if recompute else None,
            c if recompute and ctx.beta else None,
            output if ctx.activation == Activation.RELU else None,
        )
        ctx.save_for_backward(*saved)  # never as attributes: in-place edits must be noticed
        if mixed:
            ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx, dy):
        if dy is None:
            return (None,) * 8
        a, b, bias, c, y = ctx.saved_tensors
        needs_a, needs_b, needs_bias, needs_c = ctx.needs_input_grad[:4]
        dz = _through_activation(ctx, dy, a, b, bias, c, y)
        da = db = dbias = dc = None
        if needs_c:
            dc = _grad_c(ctx, dz)
        if ctx.b.was_vector:
            dz = dz.unsqueeze(-1)
        if ctx.a.was_vector:
            dz = dz.unsqueeze(-2)
        if needs_bias:
            dbias = _grad_bias(ctx, dz)
        if needs_a or needs_b:
            dz = _dense(dz).to(ctx.a.dtype)
        if needs_a:
            da = _grad_a(dz, b.unsqueeze(1) if ctx.b.was_vector else b, ctx.a, ctx.alpha)
        if needs_b:
            db = _grad_b(dz, a.unsqueeze(0) if ctx.a.was_vector else a, ctx.b, ctx.alpha)
        return da, db, dbias, dc, None, None, None, None

    @staticmethod
    def jvp(ctx, a_t, b_t, bias_t, c_t, *_):
        tensors = (*ctx.saved_tensors, a_t, b_t, bias_t, c_t)
        if not torch._C._are_functorch_transforms_active():
            return _tangent(ctx, *tensors)
        # TRAP: torch runs a jvp staticmethod with forward AD switched off, so an enclosing jvp
        # (jacfwd of jacfwd) would see constants here and return zeros without a word. Run the
        # formula one level down, with forward AD on, as torch's own ops do.
        interpreter = retrieve_current_functorch_interpreter()
        level = interpreter.level()
        tensors = [t if t is None else _functorch._unwrap_for_grad(t, level) for t in tensors]
        with forward_ad._set_fwd_grad_enabled(True), interpreter.lower():
            tangent = _tangent(ctx, *tensors)
        return _functorch._wrap_for_grad(tangent, level)

    @staticmethod
    def vmap(info, in_dims, a, b, bias, c, alpha, beta, activation, out_dtype):
        call = gemm_batched(info.batch_size, in_dims[:4], a, b, bias, c, beta)
        a, b, bias, c, beta, finish = call
        return finish(apply(a, b, bias, c, alpha, beta, activation, out_dtype)), 0


def _tangent(ctx, a, b, bias, c, y, a_t, b_t, bias_t, c_t):
    """Tangent of the result; the tangents of inputs that have none are None."""
    wide = _wide(ctx.a.dtype)
    z_t = None
    if a_t is not None:
        z_t = apply(a_t, b, alpha=ctx.alpha, out_dtype=wide)
    if b_t is not None:
        beta = 0.0 if z_t is None else 1.0
        z_t = apply(a, b_t, c=z_t, alpha=ctx.alpha, beta=beta, out_dtype=wide)
    if c_t is not None:
        c_t = c_t.to(wide) * ctx.beta
        z_t = c_t.expand(ctx.out_shape) if z_t is None else z_t + c_t
    if bias_t is not None:
        if z_t is None:
            z_t = bias_t.new_zeros((), dtype=wide).expand(ctx.out_shape)
        z_t = z_t + (bias_t.squeeze(0) if ctx.b.was_vector else bias_t).to(wide)
    return _through_activation(ctx, z_t, a, b, bias, c, y).to(ctx.out_dtype)


def _through_activation(ctx, dy, a, b, bias, c, y):
    """dy * act'(z), in dy's dtype or wider."""
    if ctx.activation == Activation.NONE:
        return dy
    if ctx.activation == Activation.RELU:
        return activation_grad(dy, y.to(dy.dtype), ctx.activation)
    # A pre-activation below -65504 is finite in float32 and -inf in float16, where it gives NaN.
    dtype = torch.float32 if dy.dtype == torch.float16 else dy.dtype
    z = apply(a, b, bias, c, ctx.alpha, ctx.beta, Activation.NONE, dtype)
    return activation_grad(dy.to(dtype), z, ctx.activation)
