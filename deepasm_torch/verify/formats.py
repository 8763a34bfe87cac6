"""bfloat16 and the other element types as NumPy arrays."""

from __future__ import annotations

import numpy as np


def to_bits(x, kind):
    """float array -> what a tensor of this type holds, rounded to nearest even."""
    if kind == "f32":
        return np.ascontiguousarray(x, np.float32)
    if kind == "f16":
        return np.ascontiguousarray(x, np.float32).astype(np.float16)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(x, kind):
    if kind == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)
