"""Input values: the corners of every type, and random bits between them."""

from __future__ import annotations

import numpy as np

from .case import rng

F32 = np.array(
    [0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001]
    # NaN with a sign and payload, smallest and largest denormals, smallest and largest normals
    + [0xFFC12345, 1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF]
    + [0xFF7FFFFF, 0x3F800001, 0x3F7FFFFF, 0x00400000, 0x33800000, 0xB3800000, 0x34000000]
    # halves, and the borders of integer and of short floating types
    + [0x3F000000, 0xBF000000, 0x3FC00000, 0xC0200000, 0x40200000, 0x3EFFFFFF, 0x40400000]
    + [0x4B000000, 0x4B800000, 0x4EFFFFFF, 0x4F000000, 0xCF000000, 0xCF000001, 0x4F7FFFFF]
    + [0x4F800000, 0x5EFFFFFF, 0x5F000000, 0xDF000000, 0x5F7FFFFF, 0x5F800000, 0x42FE0000]
    + [0x43000000, 0xC3000000, 0xC3008000, 0x437F0000, 0x437F8000, 0x43800000, 0x46FFFE00]
    + [0x46FFFF00, 0xC7000000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFF00, 0x43E00000]
    + [0x43E80000, 0x43F00000, 0x47600000, 0x47700000, 0x33000000, 0x33000001, 0x33C00000]
    + [0x38800000, 0x387FC000, 0x387FE000, 0x387FF000, 0x3C800000, 0x3B000000, 0x3A800000]
    + [0x3A800001, 0x38000000, 0x37800000, 0x37000000, 0x37000001, 0x3F808000, 0x3F818000]
    + [0x3F80FFFF, 0x7F7F8000, 0x7F7F7FFF, 0x3F801000, 0x3F803000, 0x3F800FFF, 0x7F7FF000],
    np.uint32,
)
F64 = np.array(
    [0, 1 << 63, 0x3FF << 52, 0xBFF << 52, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48]
    + [0x7FF0000000000001, 0xFFF8000000012345, 1, (1 << 63) + 1, (1 << 52) - 1, 1 << 52]
    + [0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x3FF0000000000001, 0x3FEFFFFFFFFFFFFF]
    + [0x3FE0000000000000, 0x3FF8000000000000, 0xC004000000000000, 0x4004000000000000]
    + [0x41DFFFFFFFC00000, 0x41E0000000000000, 0xC1E0000000000000, 0xC1E0000000200000]
    + [0x41EFFFFFFFE00000, 0x41F0000000000000, 0x43DFFFFFFFFFFFFF, 0x43E0000000000000]
    + [0xC3E0000000000000, 0x43EFFFFFFFFFFFFF, 0x43F0000000000000, 0x3FF0000010000000]
    + [0x3FF0000010000001, 0x3FF0000030000000, 0x36A0000000000000, 0x3690000000000000]
    + [0x3690000000000001, 0x380FFFFFE0000000, 0x380FFFFFF0000000, 0x3810000000000000]
    + [0x47EFFFFFE0000000, 0x47EFFFFFEFFFFFFF, 0x47EFFFFFF0000000, 0x40EFFC0000000000]
    + [0x40EFFDFFFFFFFFFF, 0x40EFFE0000000000, 0x3E70000000000000, 0x3E60000000000001],
    np.uint64,
)
F16 = np.array(
    [0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE12, 1, 0x8001, 0x03FF]
    + [0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3C01, 0x3BFF, 0x3800, 0xB800, 0x3E00, 0xC100]
    + [0x4100, 0x37FF, 0x57F0, 0x5BF8, 0x5C00, 0xD800, 0x5F00, 0x7800, 0x1000],
    np.uint16,
)
BF16 = np.array(
    [0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFC1, 1, 0x8001, 0x007F]
    + [0x807F, 0x0080, 0x8080, 0x7F7F, 0xFF7F, 0x3F81, 0x3F7F, 0x3F00, 0xBF00, 0x3FC0, 0xC020]
    + [0x4020, 0x3EFF, 0x4F00, 0xCF00, 0x4F80, 0x437F, 0x4300, 0x5F00, 0x3B80],
    np.uint16,
)
SPECIAL = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16}
BITS = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16}


def random_bits(r, width, n):
    """Uniform bits as uint64."""
    return (
        r.integers(0, 1 << width, n, np.uint64, endpoint=False)
        if width < 64
        else (r.integers(0, 1 << 63, n, np.uint64) * 2 + r.integers(0, 2, n, np.uint64))
    )


def moderate(r, ty, n):
    """Bits of values of ordinary size, both signs."""
    x = r.standard_normal(n) * np.exp2(r.integers(-6, 7, n).astype(float))
    if ty == "f64":
        return x.view(np.uint64)
    if ty == "f32":
        return x.astype(np.float32).view(np.uint32)
    if ty == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def floats(seed, ty, n, shuffle=False):
    """Corners, then half random bits and half moderate values."""
    r = rng(f"floats {seed} {ty}")
    special = SPECIAL[ty].astype(np.uint64)
    if shuffle:
        special = r.choice(special, n // 2)
    rest = n - len(special)
    if rest <= 0:
        return special[:n]
    wild = random_bits(r, BITS[ty], rest // 2)
    tame = moderate(r, ty, rest - rest // 2).astype(np.uint64)
    return np.concatenate([special, wild, tame])


def pairs(seed, ty, n, corners=16):
    """Two operands: every pair of the first corners, pairs of near values, random ones."""
    r = rng(f"pairs {seed} {ty}")
    s = SPECIAL[ty][:corners].astype(np.uint64)
    a, b = np.repeat(s, corners), np.tile(s, corners)
    rest = n - len(a)
    x, y = floats(seed + " a", ty, rest, True), floats(seed + " b", ty, rest, True)
    near = np.arange(rest) % 4 == 0  # the same value a few last places away, with either sign
    flip = r.integers(0, 2, rest).astype(np.uint64) << np.uint64(BITS[ty] - 1)
    y = np.where(near, (x + r.integers(0, 3, rest).astype(np.uint64)) ^ flip, y)
    y &= np.uint64((1 << BITS[ty]) - 1)
    return np.concatenate([a, x]), np.concatenate([b, y])


def triples(seed, ty, n):
    """Three operands; a third of the sums nearly cancel the product."""
    r = rng(f"triples {seed} {ty}")
    a, b, c = (floats(f"{seed} {k}", ty, n, True) for k in "abc")
    pick = r.permutation(n)
    b, c = b[pick], c[r.permutation(n)]
    if ty in ("f32", "f64"):
        t, u = (np.float32, np.uint32) if ty == "f32" else (np.float64, np.uint64)
        with np.errstate(all="ignore"):
            p = -(a.astype(u).view(t) * b.astype(u).view(t))
        cancel = np.arange(n) % 3 == 0
        c = np.where(cancel, p.view(u).astype(np.uint64), c)
    return a, b, c


def integers(seed, width, n):
    """Corners of an integer type, small values, random bits."""
    r = rng(f"integers {seed} {width}")
    top = (1 << width) - 1
    corner = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 127, 128, 255, 256]
    corner += [top - k for k in (0, 1, 2, 31, 127, 128)]
    corner += [(1 << (width - 1)) + k for k in (-1, 0, 1)]
    for w in (8, 16, 24, 25, 32, 53, 54):
        corner += [v & top for v in ((1 << w) - 1, 1 << w, (1 << w) + 1, -(1 << w), ~(1 << w))]
    corner = np.array(corner, np.uint64)[: n // 2]
    small = r.integers(0, 1 << (width // 2), (n - len(corner)) // 3, np.uint64)
    wild = random_bits(r, width, n - len(corner) - len(small))
    return np.concatenate([corner, small, wild])


def shuffled(seed, x):
    """The same values in another order: a second operand."""
    return rng(f"shuffled {seed}").permutation(x)
