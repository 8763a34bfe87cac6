"""Tensor loads: swizzles, fills, coordinates, element strides, im2col."""

from __future__ import annotations

import numpy as np

from . import pieces
from .case import Case, Map, add, entry, whole

LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"


def load_text(rank, size, at, expect, offsets=0):
    """One box per CTA at the coordinates of its row of ``where``, then a dump of the buffer."""
    n = rank + offsets
    body = f"""
mov.b64 %d2, m;
cvta.param.u64 %d2, %d2;
ld.param.u64 %d1, [out];
ld.param.u64 %d3, [where];
mov.u32 %r49, %ctaid.x;
mul.wide.u32 %d4, %r49, {4 * n};
add.u64 %d3, %d3, %d4;
"""
    body += pieces.start(size)
    body += "".join(f"ld.global.u32 %r{30 + k}, [%d3 + {4 * k}];\n" for k in range(n))
    body += "".join(f"cvt.u16.u32 %h{k}, %r{30 + rank + k};\n" for k in range(offsets))
    coords = ", ".join(f"%r{30 + k}" for k in range(rank))
    offs = ", {" + ", ".join(f"%h{k}" for k in range(offsets)) + "}" if offsets else ""
    op = LOAD.format(rank=rank, mode="im2col" if offsets else "tile")
    body += f"add.u32 %r3, %r2, {at};\n"
    body += f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {expect};\n"
    body += f"@%p1 {op} [%r3], [%d2, {{{coords}}}], [%r1]{offs};\n"
    body += pieces.wait() + pieces.dump(size)
    params = [".align 64 .b8 m[128]", ".u64 out", ".u64 where"]
    return entry(body, params, pieces.SHARED.format(size=size))


ES = {"uint8": 1, "uint16": 2, "bfloat16": 2, "float16": 2}
ES |= {"float64": 8, "uint64": 8, "int64": 8}
ES |= dict.fromkeys(("uint32", "int32", "float32", "float32_ftz", "tfloat32", "tfloat32_ftz"), 4)


def pattern(nbytes):
    """Bytes that differ from their neighbours, finite in every floating type of 16 and 32 bits."""
    x = np.arange(nbytes // 2, dtype=np.uint32)
    return ((x * 7 + x // 64 * 3) % 0x3F00 + 0x2000).astype(np.uint16).view(np.uint8)


def load(name, dtype, dims, box, where, *, strides=None, at=0, loaded=None, data=None, more=None,
         fault=False, hazards=(), base=0, differs=None):  # fmt: skip
    """A tile or im2col load at each row of ``where`` (coordinates, then offsets).

    ``strides`` in bytes; packed when left out. ``loaded`` is the number of bytes the box brings,
    the whole box when left out.
    """
    es, more = ES[dtype], more or {}
    rank = len(dims)
    if strides is None:
        strides = [es * int(np.prod(dims[: k + 1])) for k in range(rank - 1)]
    total = strides[-1] * dims[-1] if strides else es * dims[0]
    if data is None:
        data = pattern(-(-(total + base) // 16) * 16)
    if more.get("mode") == "im2col":
        nbytes = more["channels"] * more["pixels"] * es
    else:
        nbytes = int(np.prod(box)) * es
    size = -(-(nbytes + at) // 512) * 512
    nbytes = loaded or nbytes
    where = np.array(where, np.int32)
    record = {"dtype": dtype, "dims": tuple(dims), "strides": tuple(strides), **more}
    if box:
        record["box"] = tuple(box)
    out = np.zeros(len(where) * (size + 16), np.uint8)
    offsets = where.shape[1] - rank
    add(
        Case(
            name,
            load_text(rank, size, at, nbytes, offsets),
            {"t": data, "out": out, "where": where},
            [Map("t", record, base), "out", "where"],
            [whole("out", out)],
            grid=len(where),
            fault=fault,
            hazards=frozenset(hazards),
            differs=differs,
        )
    )


# ---------------------------------------------------------------------------- swizzles
for _s in (0, 32, 64, 128):
    _w = (_s or 128) // 2
    load(f"tile swizzle {_s}", "bfloat16", (96, 24), (_w, 16), [(0, 0), (8, 3), (64, 12)],
         more={"swizzle": _s})  # fmt: skip
    load(f"tile swizzle {_s} half a row", "bfloat16", (96, 24), (max(8, _w // 2), 16), [(8, 1)],
         more={"swizzle": _s})  # fmt: skip
    for _at in (128, 256, 512):  # the pattern follows the absolute address
        load(f"tile swizzle {_s} at {_at}", "bfloat16", (96, 24), (_w, 12), [(0, 2)], at=_at,
             more={"swizzle": _s})  # fmt: skip
    load(f"tile swizzle {_s} bytes", "uint8", (160, 20), (_s or 48, 10), [(16, 5), (144, 15)],
         more={"swizzle": _s})  # fmt: skip
    load(f"tile swizzle {_s} f64", "float64", (16, 8, 3), ((_s or 64) // 8, 4, 2),
         [(2, 3, 1), (12, 6, 2)], more={"swizzle": _s})  # fmt: skip
for _rank in range(1, 6):
    _dims, _box = (24, 6, 5, 3, 4)[:_rank], (16, 3, 2, 2, 2)[:_rank]
    load(f"tile rank {_rank}", "uint16", _dims, _box,
         [(0,) * _rank, (8, 1, 1, 1, 1)[:_rank], (16, 4, 4, 2, 3)[:_rank],
          (-8, -1, -1, -1, -1)[:_rank]])  # fmt: skip

# ---------------------------------------------------------------------------- out of bounds
_PLACES = [(-8, -2), (16, 10), (0, 30), (40, 0), (-16, 4), (-24, 0), (8, -9), (0, -8), (16, 11),
           (24, 5), (0, 2147483647), (0, -2147483648), (2147483640, 0),
           (-2147483648, 0)]  # fmt: skip
for _fill in ("zero", "nan"):
    for _ty in ("bfloat16", "float16", "float32", "float32_ftz", "tfloat32", "float64"):
        if _fill == "zero" and _ty not in ("bfloat16", "float32"):
            continue
        _k = {2: 1, 4: 2, 8: 4}[ES[_ty]]
        _at = [(c0 // _k // (16 // ES[_ty]) * (16 // ES[_ty]), c1) for c0, c1 in _PLACES]
        load(f"fill {_fill} {_ty}", _ty, (21 // _k, 12), (16 // _k, 8), _at,
             strides=[48], more={"fill": _fill})  # fmt: skip
for _ty in ("uint8", "uint16", "int32", "uint64"):
    load(f"fill zero {_ty}", _ty, (40 // ES[_ty] + 1, 9), (32 // ES[_ty], 4),
         [(0, 7), (32 // ES[_ty], -1), (-16 // ES[_ty], 2)], strides=[48])  # fmt: skip
load("fill nan swizzle 128", "bfloat16", (57, 9), (64, 8), [(0, 4), (8, -3), (-32, 0)],
     strides=[128], more={"fill": "nan", "swizzle": 128})  # fmt: skip
load("overlapping rows", "bfloat16", (32, 9), (16, 8), [(0, 0), (8, 3)], strides=[16],
     data=pattern(16 * 9 + 64))  # fmt: skip
load("stride zero", "bfloat16", (32, 9), (16, 8), [(0, 0), (8, 3)], strides=[0],
     data=pattern(64))  # fmt: skip
load("base at 16 bytes", "bfloat16", (24, 8), (16, 4), [(0, 1), (8, 6)], base=16)

# denormals and NaN payloads through the floating types: only the ftz and tf32 ones may change bits
_ODD = np.tile(
    np.array([0, 0x80000000, 1, 0x80400000, 0x7FFFFF, 0x7FC00001, 0x7F800001, 0xFF812345]
             + [0x3F800001, 0x3F801FFF, 0x3F801000, 0x3F803000, 0x7F7FFFFF, 0x7F800000, 0xFF800000]
             + [0x00801FFF], np.uint32), 8).view(np.uint8)  # fmt: skip
for _ty in ("float32", "float32_ftz", "tfloat32", "tfloat32_ftz"):
    load(f"odd values {_ty}", _ty, (16, 8), (16, 4), [(0, 2)], data=_ODD)

# ---------------------------------------------------------------------------- element strides
# a box of b elements with stride s brings ceil(b / s) of them
STRIDES = "the emulator takes the box for the number of elements that arrive"
for _steps, _box in (((1, 3), (16, 12)), ((1, 2), (16, 7)), ((1, 8), (16, 16)), ((1, 1), (16, 4))):
    _n = -(-_box[1] // _steps[1])
    load(f"element strides {_steps} box {_box}", "uint16", (32, 24), _box,
         [(0, 2), (16, 1), (0, 20), (8, -3)], loaded=16 * 2 * _n,
         more={"elem_strides": _steps}, differs=STRIDES if _n != _box[1] else None)  # fmt: skip
load("element strides rank 3", "uint16", (16, 9, 8), (16, 6, 4), [(0, 0, 0), (0, 1, 1), (0, 7, 5)],
     loaded=16 * 2 * 3 * 2, more={"elem_strides": (1, 2, 2)}, differs=STRIDES)  # fmt: skip


# ---------------------------------------------------------------------------- im2col
def conv(name, n, h, w, c, r, s, pad, stride, dilation, pixels=16, channels=8, fill="zero",
         starts=None, c0=0, swizzle=0, upper=None, **more):  # fmt: skip
    """Boxes of an NHWC convolution: first pixels by index, every tap at some of them."""
    (ph, pw), (sh, sw), (dh, dw) = pad, stride, dilation
    p = (h + 2 * ph - (r - 1) * dh - 1) // sh + 1
    q = (w + 2 * pw - (s - 1) * dw - 1) // sw + 1
    where = []
    for k, (a, b) in enumerate((a, b) for a in range(r) for b in range(s)):
        for first in starts or (0, (5 + 3 * k) % (p * q), p * q * n - 3):
            img, rest = divmod(first, p * q)
            where.append((c0, rest % q * sw - pw, rest // q * sh - ph, img, b * dw, a * dh))
    step = max(1, len(where) // 14)
    load(
        name, "bfloat16", (c, w, h, n), None, where[::step],
        strides=[2 * c, 2 * w * c, 2 * h * w * c],
        more={
            "mode": "im2col", "lower": (-pw, -ph), "channels": channels, "pixels": pixels,
            "upper": upper or (pw - (s - 1) * dw, ph - (r - 1) * dh), "fill": fill,
            "elem_strides": (1, sw, sh, 1), "swizzle": swizzle,
        }, **more,
    )  # fmt: skip


conv("im2col 3x3 pad 1", 2, 9, 7, 8, 3, 3, (1, 1), (1, 1), (1, 1))
conv("im2col 3x3 pad 1 nan", 2, 9, 7, 8, 3, 3, (1, 1), (1, 1), (1, 1), fill="nan")
conv("im2col 3x3 pad 1 stride 2", 2, 9, 13, 8, 3, 3, (1, 1), (2, 2), (1, 1))
conv("im2col 3x3 pad 1 stride 2 even", 2, 10, 14, 8, 3, 3, (1, 1), (2, 2), (1, 1))
conv("im2col 3x3 dilation 2", 2, 9, 8, 8, 3, 3, (2, 2), (1, 1), (2, 2))
conv("im2col 3x3 dilation 2 stride 2", 2, 11, 12, 8, 3, 3, (2, 2), (2, 2), (2, 2))
conv("im2col 3x5 pad 1 2 stride 2 1", 2, 9, 11, 8, 3, 5, (1, 2), (2, 1), (1, 1))
conv("im2col 7x7 stem", 1, 20, 22, 8, 7, 7, (3, 3), (2, 2), (1, 1), pixels=32)
conv("im2col 1x1", 2, 5, 6, 16, 1, 1, (0, 0), (1, 1), (1, 1), starts=(0, 7, 29, 45))
conv("im2col 1x1 stride 2", 2, 9, 14, 16, 1, 1, (0, 0), (2, 2), (1, 1), starts=(0, 7, 29, 45))
conv("im2col 1x1 image", 3, 1, 1, 8, 3, 3, (1, 1), (1, 1), (1, 1), pixels=8)
conv("im2col stride 3", 1, 10, 11, 8, 3, 3, (1, 1), (3, 3), (1, 1))
conv("im2col stride 8", 2, 17, 18, 8, 1, 1, (0, 0), (8, 8), (1, 1), starts=(0, 4, 9))
conv("im2col past the last image", 2, 5, 5, 8, 3, 3, (1, 1), (1, 1), (1, 1), starts=(49, 50, 80))
conv("im2col image -1", 2, 5, 5, 8, 3, 3, (1, 1), (1, 1), (1, 1), starts=(-3, -25, -26))
conv("im2col few channels swizzle 128", 2, 5, 6, 8, 3, 3, (1, 1), (1, 1), (1, 1), channels=64,
     swizzle=128, starts=(0, 20))  # fmt: skip
conv("im2col second channel chunk", 1, 5, 6, 72, 3, 3, (1, 1), (1, 1), (1, 1), channels=64,
     swizzle=128, c0=64, starts=(3,), fill="nan")  # fmt: skip
conv("im2col swizzle 64 and 2 chunks in", 1, 6, 5, 40, 3, 3, (1, 1), (1, 1), (1, 1), channels=32,
     swizzle=64, c0=16, starts=(3,))  # fmt: skip
# gradients: lower is pad - (r - 1) d, the offsets count from the other side
conv("im2col gradient 3x3", 2, 7, 6, 8, 3, 3, (1, 1), (1, 1), (1, 1), upper=(-1, -1),
     starts=(0, 11, 40))  # fmt: skip
# offsets: only the low 8 bits of each count
_BIG = {"mode": "im2col", "lower": (0, 0), "upper": (0, 0), "channels": 8, "pixels": 8,
        "elem_strides": (1, 1, 1, 1)}  # fmt: skip
load("im2col offsets of 8 bits", "bfloat16", (8, 6, 5, 2), None,
     [(0, 0, 0, 0, o, 0) for o in (0, 1, 255, 256, 257, 40000)]
     + [(0, 0, 0, 0, 0, o) for o in (2, 254, 258, 65535)],
     strides=[16, 96, 480], more=_BIG)  # fmt: skip
# a start off the stride grid does not fault: the unit divides and floors
load("im2col start off the grid", "bfloat16", (8, 9, 9, 2), None,
     [(0, w, h, 0, 0, 0) for w, h in ((0, 0), (1, 0), (0, 1), (3, 2), (-1, 1))],
     strides=[16, 144, 1296],
     more={**_BIG, "lower": (-1, -1), "upper": (-1, -1), "elem_strides": (1, 2, 2, 1)})  # fmt: skip
# rank 3 (one spatial dimension) and rank 5 (three)
load("im2col rank 3", "bfloat16", (8, 11, 3), None,
     [(0, w, n, o) for w, n, o in ((-1, 0, 0), (4, 0, 2), (9, 1, 1), (0, 2, 2), (5, 3, 0))],
     strides=[16, 176],
     more={"mode": "im2col", "lower": (-1,), "upper": (-1,), "channels": 8, "pixels": 16,
           "elem_strides": (1, 1, 1)})  # fmt: skip
load("im2col rank 5", "bfloat16", (8, 5, 4, 3, 2), None,
     [(0, w, h, d, n, *o) for w, h, d, n, o in
      ((-1, -1, -1, 0, (0, 0, 0)), (2, 1, 0, 0, (2, 1, 0)), (3, 2, 1, 1, (1, 2, 2)))],
     strides=[16, 80, 320, 960],
     more={"mode": "im2col", "lower": (-1, -1, -1), "upper": (-1, -1, -1), "channels": 8,
           "pixels": 32, "elem_strides": (1, 1, 1, 1, 1)})  # fmt: skip

# ---------------------------------------------------------------------------- what faults
load("fault: innermost coordinate off 16 bytes", "bfloat16", (64, 8), (16, 4), [(4, 0)], fault=True)
load("fault: im2col start left of the corner box", "bfloat16", (8, 6, 5, 2), None,
     [(0, -1, 0, 0, 0, 0)], strides=[16, 96, 480], more=_BIG, fault=True)  # fmt: skip
load("fault: im2col start past the corner box", "bfloat16", (8, 6, 5, 2), None,
     [(0, 6, 0, 0, 0, 0)], strides=[16, 96, 480], more=_BIG, fault=True)  # fmt: skip

# ---------------------------------------------------------------------------- bad tensor maps
_IM = {**_BIG, "lower": (-1, -1), "upper": (-1, -1)}
_AT = [(0, 0, 0, 0, 0, 0)]
for _name, _more in {
    "1025 pixels": {"pixels": 1025},
    "128 channels in 128 bytes": {"channels": 128, "swizzle": 128},
    "stride 9": {"elem_strides": (1, 9, 1, 1)},
    "a corner of -129": {"lower": (-129, 0)},
    "an empty corner box": {"lower": (0, 0), "upper": (-6, 0)},
}.items():
    load(f"encode: im2col with {_name}", "bfloat16", (8, 6, 5, 2), None, _AT,
         strides=[16, 96, 480], more={**_IM, **_more})  # fmt: skip
for _ty in ("uint8", "uint16", "int32"):
    load(f"encode: nan fill of {_ty}", _ty, (32, 8), (16, 4), [(0, 0)], more={"fill": "nan"})
load("encode: box of 257", "uint8", (512, 4), (257, 1), [(0, 0)])
load("encode: 8 bytes wide", "bfloat16", (32, 8), (4, 4), [(0, 0)])
load("encode: wider than the swizzle", "bfloat16", (128, 8), (64, 4), [(0, 0)],
     more={"swizzle": 64})  # fmt: skip
load("encode: stride of 8 bytes", "bfloat16", (32, 8), (16, 4), [(0, 0)], strides=[72])
load("encode: base at 8 bytes", "bfloat16", (32, 8), (16, 4), [(0, 0)], base=8)
