"""Operand layouts of the tensor cores, written down from the PTX ISA for the tests."""

from __future__ import annotations

import numpy as np

G, T = np.arange(32) // 4, np.arange(32) % 4
ENCODE = {  # small integers to the bits of a type
    "f16": lambda x: x.astype(np.float16).view(np.uint16),
    "bf16": lambda x: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
    "tf32": lambda x: x.astype(np.float32).view(np.uint32),
    "f32": lambda x: x.astype(np.float32).view(np.uint32),
    "f64": lambda x: x.astype(np.float64).view(np.uint64),
    "s8": lambda x: x.astype(np.int8).view(np.uint8),
    "u8": lambda x: x.astype(np.uint8),
    "s32": lambda x: x.astype(np.int32).view(np.uint32),
    # exact for -3..3: sign, then the code of 0, 1, 2, 3
    "e4m3": lambda x: (np.array([0, 0x38, 0x40, 0x44])[abs(x)] | (x < 0) * 0x80).astype(np.uint8),
    "e5m2": lambda x: (np.array([0, 0x3C, 0x40, 0x42])[abs(x)] | (x < 0) * 0x80).astype(np.uint8),
}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f64": 8, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}


def a_place(ty, m, k):
    """Row and column of element i of each lane's A fragment (PTX ISA, mma fragments)."""
    es = BYTES[ty]
    per = max(1, 4 // es)  # elements per register
    n = m * k // 32
    i = np.arange(n)[None, :]
    reg, sub = i // per, i % per
    halves = m // 8
    row = G[:, None] + 8 * (reg % halves)
    col = T[:, None] * per + sub + 4 * per * (reg // halves)
    return row, col


def b_place(ty, k):
    es = BYTES[ty]
    per = max(1, 4 // es)
    i = np.arange(k * 8 // 32)[None, :]
    return T[:, None] * per + i % per + 4 * per * (i // per), np.broadcast_to(
        G[:, None], (32, i.size)
    )


def c_place(m):
    i = np.arange(m // 4)[None, :]
    return G[:, None] + 8 * (i // 2), T[:, None] * 2 + i % 2


def pack(elements, es):
    """[32 lanes, elements] of raw bits -> [32, registers] of 32 (or 64) bits."""
    raw = np.ascontiguousarray(elements)
    return raw if es == 8 else raw.view(np.uint32)
