"""Exact test data: small integers, and the product they must give."""

from __future__ import annotations

import torch


def integers(*shape, device, dtype, modulus=5):
    """A tensor of -2..2, repeating with a period that no tile size divides."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=device) * 7 % 11 % modulus - 2).view(shape).to(dtype)


def want(a, b):
    return (a.double() @ b.double()).to(a.dtype)
