"""The vmap rule of the GEMM ops: the mapped dimension becomes a batch dimension, never a loop."""

from __future__ import annotations

import torch


def _front(t, dim):
    return t if t is None or dim is None else t.movedim(dim, 0)


def _align(t, rank: int, mapped: bool):
    """Insert size-1 dimensions behind the mapped one until t has `rank` logical dimensions."""
    if t is None:
        return None
    missing = rank - (t.dim() - mapped)
    at = 1 if mapped else 0
    return t.reshape(t.shape[:at] + (1,) * missing + t.shape[at:]) if missing > 0 else t


def gemm_batched(batch_size, in_dims, a, b, bias, c, beta):
    """Rewrite one vmapped call as one batched call.

    Parameters
    ----------
    batch_size : int
    in_dims : tuple of 4 optional ints
        Mapped dimension of a, b, bias and c.
    a, b, bias, c, beta
        As in `autograd.apply`, with the mapped dimensions in place.

    Returns
    -------
    (a, b, bias, c, beta, finish)
        Arguments of the batched call, and a function that turns its result into the vmapped
        result, the mapped dimension first.

    Notes
    -----
    With one b for all examples the mapped dimension folds into M (no batch at all) where a's
    strides allow it.  A mapped bias cannot be a vector of the kernel and travels as c.
    """
    mapped = [d is not None for d in in_dims]
    a, b, bias, c = (_front(t, d) for t, d in zip((a, b, bias, c), in_dims))
    a_vector, b_vector = a.dim() - mapped[0] == 1, b.dim() - mapped[1] == 1
    if a_vector:
        a = a.unsqueeze(-2)
    if b_vector:
        b = b.unsqueeze(-1)
    rank = max(a.dim() - mapped[0], b.dim() - mapped[1])

    if not any(mapped[1:]) and b.dim() == 2 and (c is None or not beta):
        # (B, ..., M, K) @ (K, N): one matrix of B * ... * M rows.
        rows = a.shape[:-1]
        if a.is_contiguous():
            a = a.flatten(0, -2)

        def finish(y):
            return _drop(y.reshape(rows + y.shape[-1:]), a_vector, b_vector)

        return a, b, bias, None, 0.0, finish

    if c is not None and beta:
        # c is shaped like the result, which lacks the dimension of a vector operand.
        if b_vector:
            c = c.unsqueeze(-1)
        if a_vector:
            c = c.unsqueeze(-2) if c.dim() - mapped[3] > b_vector else c
    else:
        c, beta = None, 0.0
    a, b, c = (_align(t, rank, m) for t, m in zip((a, b, c), (mapped[0], mapped[1], mapped[3])))
    if bias is not None and mapped[2]:
        bias = _align(bias, rank, True)
        if c is None:
            c, beta = bias, 1.0
        else:
            wide = torch.float64 if a.dtype == torch.float64 else torch.float32
            c, beta = (c.to(wide) * beta + bias.to(wide)), 1.0
            c = c if c.dtype in (a.dtype, torch.float32) else c.to(a.dtype)
        bias = None
    if not (mapped[0] or mapped[1]):
        a = a.expand(
            (batch_size,) + a.shape
        )  # only the addends are mapped: compute once per example

    def finish(y):
        return _drop(y, a_vector, b_vector)

    return a, b, bias, c, beta, finish


def _drop(y, a_vector: bool, b_vector: bool):
    if b_vector:
        y = y.squeeze(-1)
    return y.squeeze(-2 if not b_vector else -1) if a_vector else y
