"""Compares recorded outputs with emulated ones, field by field."""

from __future__ import annotations

import numpy as np


def floats(raw, dtype):
    """float64 values of a field's bytes."""
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view(dtype).astype(np.float64)


def _bits(raw, dtype):
    width = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return raw.view(f"u{width}")


def differing(rule, recorded, emulated, dtype):
    """Boolean array: which elements break the rule."""
    a, b = _bits(recorded, dtype), _bits(emulated, dtype)
    if rule.kind == "exact":
        return a != b
    x, y = floats(recorded, dtype), floats(emulated, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(x - y) <= rule.absolute + rule.relative * np.abs(y)
    # an overflow may round either way at the border of the range
    return ~(near | (np.isnan(x) & np.isnan(y)) | (x == y))


def compare(case, recorded, emulated, limit=4):
    """Lines that describe what differs; empty when everything agrees.

    Parameters
    ----------
    recorded, emulated : dict
        Bytes of each recorded buffer.
    """
    lines = []
    for f in case.fields:
        width = 2 if f.dtype == "bfloat16" else np.dtype(f.dtype).itemsize
        cut = slice(f.offset, f.offset + f.count * width)
        a, b = recorded[f.output][cut], emulated[f.output][cut]
        bad = np.flatnonzero(differing(f.rule, a, b, f.dtype))
        if not len(bad):
            continue
        lines.append(f"{f.label}: {len(bad)} of {f.count} elements differ")
        x, y = _bits(a, f.dtype), _bits(b, f.dtype)
        for i in bad[:limit]:
            inputs = ", ".join(
                f"{n}={case.buffers[n].reshape(-1)[i]:#x}"
                for n in "abc"
                if case.uniform and n in case.buffers
            )
            lines.append(f"    [{i}] {inputs} chip {x[i]:#x}, emulator {y[i]:#x}")
    return lines
