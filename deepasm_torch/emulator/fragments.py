"""Layouts of tensor-core operands: register fragments <-> matrices, descriptors -> addresses."""

import numpy as np

from .isa.fp8 import FP8
from .tma import swizzle
from .values import bf16_to_f32

# wgmma / mma element types: bytes, decoder from raw unsigned integers
_DEC = {
    "f16": (2, lambda u: u.view(np.float16).astype(np.float32)),
    "bf16": (2, bf16_to_f32),
    "tf32": (4, lambda u: (u & np.uint32(0xFFFFE000)).view(np.float32)),
    "f32": (4, lambda u: u.view(np.float32)),
    "f64": (8, lambda u: u.view(np.float64)),
    "e4m3": (1, lambda u: FP8["e4m3"][u]),
    "e5m2": (1, lambda u: FP8["e5m2"][u]),
    "s8": (1, lambda u: u.view(np.int8).astype(np.float64)),
    "u8": (1, lambda u: u.astype(np.float64)),
}


RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def element_bytes(ty):
    """Bytes per element of a tensor-core type."""
    return _DEC[ty][0]


def decode_elements(u, ty):
    """Raw unsigned integers -> float array (float64 for integers, exact)."""
    return _DEC[ty][1](u)


def a_matrix(regs, ty, rows=16):
    """A fragment (..., n, 32) of raw registers -> (..., rows, K) floats.

    Register i holds row ``g + 8*(i % (rows/8))`` and the K group ``i // (rows/8)``, where
    ``g = lane / 4``; lane % 4 picks 4 bytes (8 for f64) inside a group.
    """
    es = element_bytes(ty)
    e = 1 if ty == "f64" else 4 // es
    lead = regs.shape[:-2]
    rh = rows // 8
    kh = regs.shape[-2] // rh
    u = np.ascontiguousarray(regs).view(RAW[es]).reshape(*lead, kh, rh, 8, 4, e)
    n = len(lead)
    u = u.transpose(*range(n), n + 1, n + 2, n, n + 3, n + 4)
    return decode_elements(np.ascontiguousarray(u).reshape(*lead, rows, kh * 4 * e), ty)


def b_matrix(regs, ty):
    """B fragment (..., n, 32) -> (..., K, 8) floats: column lane / 4, K along registers."""
    es = element_bytes(ty)
    e = 1 if ty == "f64" else 4 // es
    lead = regs.shape[:-2]
    kh = regs.shape[-2]
    u = np.ascontiguousarray(regs).view(RAW[es]).reshape(*lead, kh, 8, 4, e)
    n = len(lead)
    u = u.transpose(*range(n), n, n + 2, n + 3, n + 1)
    return decode_elements(np.ascontiguousarray(u).reshape(*lead, kh * 4 * e, 8), ty)


def c_matrix(regs, rows=16):
    """Accumulator fragment (..., n, 32) of 4- or 8-byte elements -> (..., rows, cols).

    Register i: row ``g + 8*((i >> 1) % (rows/8))``, column ``8*(i >> 2) + 2*(lane % 4) + (i & 1)``.
    """
    lead = regs.shape[:-2]
    rh = rows // 8
    nb = regs.shape[-2] // (2 * rh)
    n = len(lead)
    u = regs.reshape(*lead, nb, rh, 2, 8, 4)
    u = u.transpose(*range(n), n + 1, n + 3, n, n + 4, n + 2)
    return np.ascontiguousarray(u).reshape(*lead, rows, nb * 8)


def c_registers(mat):
    """Inverse of ``c_matrix``: (..., rows, cols) -> (..., n, 32)."""
    lead = mat.shape[:-2]
    rows, cols = mat.shape[-2:]
    n = len(lead)
    u = mat.reshape(*lead, rows // 8, 8, cols // 8, 4, 2)
    u = u.transpose(*range(n), n + 2, n, n + 4, n + 1, n + 3)
    return np.ascontiguousarray(u).reshape(*lead, rows * cols // 32, 32)


SWIZZLE = {0: 0, 1: 128, 2: 64, 3: 32}


_CHUNKS = {}


class Descriptor:
    """Decoded shared-memory matrix descriptor of wgmma."""

    __slots__ = ("base_offset", "lbo", "sbo", "start", "swizzle")

    def __init__(self, d):
        self.start = (d & 0x3FFF) << 4
        self.lbo = (d >> 16 & 0x3FFF) << 4
        self.sbo = (d >> 32 & 0x3FFF) << 4
        self.base_offset = d >> 49 & 7
        self.swizzle = SWIZZLE[d >> 62]


def operand_chunks(desc, mn, mn_major):
    """16-byte chunk indices of a wgmma operand (K is always 32 bytes).

    Parameters
    ----------
    desc : int
        64-bit descriptor.
    mn : int
        Rows (64 for A, N for B).
    mn_major : bool
        M/N contiguous (16-bit types only).

    Returns
    -------
    int array: (mn, 2) chunks along K for K-major, (16, ceil(mn/8)) for MN-major.
    """
    key = (desc, mn, mn_major)
    idx = _CHUNKS.get(key)
    if idx is not None:
        return idx
    d = Descriptor(desc)
    if not mn_major:
        r = np.arange(mn)[:, None]
        c = np.arange(2)[None, :] * 16
        if d.swizzle:
            lin = d.start + r // 8 * d.sbo + r % 8 * d.swizzle + c
        else:
            lin = d.start + r // 8 * d.sbo + r % 8 * 16 + c // 16 * d.lbo
    else:
        k = np.arange(16)[:, None]
        j = np.arange(-(-mn // 8))[None, :]  # groups of eight 16-bit elements along M/N
        if d.swizzle:
            per = d.swizzle // 16
            lin = d.start + j // per * d.lbo + k // 8 * d.sbo + k % 8 * d.swizzle + j % per * 16
        else:
            lin = d.start + j * d.sbo + k // 8 * d.lbo + k % 8 * 16
    idx = swizzle(lin, d.swizzle) >> 4
    if len(_CHUNKS) > 4096:
        _CHUNKS.clear()
    _CHUNKS[key] = idx
    return idx


def load_operand(view16, idx, ty, mn, mn_major):
    """Matrix (mn, K) of a wgmma operand as floats."""
    es = element_bytes(ty)
    u = view16[idx].view(RAW[es])
    if not mn_major:
        return decode_elements(u, ty)
    return decode_elements(u[:, :mn], ty).T
