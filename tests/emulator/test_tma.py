"""The copy engine: boxes, swizzles, fills, element strides, im2col."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ptx_case import kernel

from deepasm_torch import emulator
from deepasm_torch.emulator.tensormap import encode_map

MBAR = """
mov.u32 %r1, bar;
mov.u32 %r2, buf;
mov.u32 %r3, %tid.x;
setp.eq.u32 %p1, %r3, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
WAIT = """
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra wait;
"""
DUMP = """
mov.u32 %r4, 0;
dump:
shl.b32 %r5, %r3, 4;
add.u32 %r5, %r5, %r4;
add.u32 %r6, %r5, %r2;
ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r6];
cvt.u64.u32 %d5, %r5;
add.u64 %d5, %d5, %d3;
st.global.v4.u32 [%d5], {%r10, %r11, %r12, %r13};
add.u32 %r4, %r4, 512;
setp.lt.u32 %p3, %r4, %r20;
@%p3 bra dump;
"""
OUTSIDE = ".shared .align 1024 .b8 buf[20480];\n.shared .align 8 .b64 bar;\n"
HEAD = """
mov.b64 %d2, m;
cvta.param.u64 %d2, %d2;
ld.param.u64 %d3, [out];
ld.param.u32 %r20, [bytes];
"""


def load_text(rank, im2col=False):
    """Fetch one box at the coordinates in the parameters and dump shared memory."""
    n_off = rank - 2 if im2col else 0
    params = ".param .align 64 .b8 m[128], .param .u64 out, .param .u32 bytes"
    params += "".join(f", .param .s32 c{k}" for k in range(rank))
    params += "".join(f", .param .u32 o{k}" for k in range(n_off))
    body = HEAD + "".join(f"ld.param.s32 %r{30 + k}, [c{k}];\n" for k in range(rank))
    body += "".join(
        f"ld.param.u32 %r{40 + k}, [o{k}];\ncvt.u16.u32 %h{k}, %r{40 + k};\n" for k in range(n_off)
    )
    coords = ", ".join(f"%r{30 + k}" for k in range(rank))
    offs = ", {" + ", ".join(f"%h{k}" for k in range(n_off)) + "}" if im2col else ""
    mode = "im2col" if im2col else "tile"
    body += (
        MBAR
        + f"""
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r20;
@%p1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes
    [%r2], [%d2, {{{coords}}}], [%r1]{offs};
"""
    )
    return kernel(f"load {rank}d {mode}", body + WAIT + DUMP, params, outside=OUTSIDE)


LOADS = {rank: load_text(rank) for rank in range(1, 6)}
IM2COL = load_text(4, im2col=True)


def fetch(text, tensor, rec, coords, offs=(), schedule="round_robin"):
    """Bytes of a box as they lie in shared memory."""
    n = rec.pop("bytes")
    mem = emulator.Memory()
    base = mem.alloc("t", tensor)
    out = mem.alloc("out", -(-n // 512) * 512)
    args = [encode_map({**rec, "base": base}), out, n, *coords, *offs]
    res = emulator.launch(emulator.Program(text), None, 1, 32, args, memory=mem, schedule=schedule)
    # the dump may read past the box: those bytes are uninitialised, nothing else may be wrong
    assert {h.kind for h in res.hazards} <= {"uninit-shared"}, res.report()
    return mem["out"][:n]


def box_record(shape, es, box, swizzle=0, **more):
    """Record of a contiguous tensor; shape and box are innermost first."""
    strides = [es * int(np.prod(shape[: k + 1])) for k in range(len(shape) - 1)]
    dtype = {1: "uint8", 2: "bfloat16", 4: "float32"}[es]
    return {
        "dtype": dtype,
        "dims": shape,
        "strides": strides,
        "box": box,
        "swizzle": swizzle,
        "bytes": int(np.prod(box)) * es,
        **more,
    }


def expected_box(tensor, box, coords, fill, swizzle, steps=None):
    """Box by index arithmetic; ``tensor`` is outermost first, the rest innermost first."""
    es = tensor.dtype.itemsize
    out = np.zeros(int(np.prod(box)) * es, np.uint8)
    steps = steps or (1,) * len(box)
    row_bytes = box[0] * es
    for n, at in enumerate(itertools.product(*(range(b) for b in reversed(box)))):
        idx = [c + i * s for c, i, s in zip(reversed(coords), at, reversed(steps))]
        inside = all(0 <= i < d for i, d in zip(idx, tensor.shape))
        value = tensor[tuple(idx)] if inside else np.array(fill, tensor.dtype)
        lin = n * es
        row = lin // row_bytes
        if swizzle:
            xor = {128: row % 8, 64: row // 2 % 4, 32: row // 4 % 2}[swizzle] * 16
            lin = row * row_bytes + (lin % row_bytes ^ xor)
        out[lin : lin + es] = np.frombuffer(value.tobytes(), np.uint8)
    return out


BOXES = [
    (1, (64,), (16,), (8,), 0),
    (2, (40, 20), (32, 8), (8, 3), 64),
    (2, (64, 16), (64, 16), (0, 0), 128),
    (2, (64, 16), (16, 16), (16, 2), 32),
    (3, (16, 5, 4), (16, 3, 2), (0, 1, 1), 0),
    (4, (32, 4, 3, 2), (32, 2, 2, 2), (0, 1, 0, 0), 64),
    (5, (8, 2, 2, 2, 2), (8, 2, 2, 2, 2), (0,) * 5, 0),
]


@pytest.mark.parametrize("rank, shape, box, coords, swizzle", BOXES, ids=str)
def test_tile_loads(rank, shape, box, coords, swizzle):
    tensor = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape[::-1])
    got = fetch(LOADS[rank], tensor, box_record(shape, 2, box, swizzle), coords)
    assert np.array_equal(got, expected_box(tensor, box, coords, 0, swizzle))


@pytest.mark.parametrize("fill, value", [("zero", 0), ("nan", 0x7FF7)])
@pytest.mark.parametrize("coords", [(-8, -2), (16, 10), (0, 30), (40, 0)])
def test_out_of_range_elements_are_filled(coords, fill, value):
    tensor = np.arange(21 * 12, dtype=np.uint16).reshape(12, 21)
    padded = np.zeros((12, 24), np.uint16)
    padded[:, :21] = tensor
    rec = {**box_record((24, 12), 2, (16, 8)), "dims": (21, 12), "fill": fill}
    got = fetch(LOADS[2], padded, rec, coords)
    assert np.array_equal(got, expected_box(tensor, (16, 8), coords, value, 0))


def test_element_strides_skip_rows():
    tensor = np.arange(32 * 16, dtype=np.uint16).reshape(16, 32)
    rec = box_record((32, 16), 2, (32, 4), elem_strides=(1, 3))
    got = fetch(LOADS[2], tensor, rec, (0, 2))
    assert np.array_equal(got, expected_box(tensor, (32, 4), (0, 2), 0, 0, (1, 3)))


@pytest.mark.parametrize(
    "stride, dilation, pad, r, s", [(1, 1, 1, 0, 2), (2, 1, 1, 2, 1), (1, 2, 2, 1, 0)]
)
def test_im2col_gathers_the_pixels_of_a_tap(stride, dilation, pad, r, s):
    """fprop of a 3x3 filter on NHWC: every output pixel's input at one tap, zero in the padding."""
    n, h, w, c = 2, 9, 7, 8
    x = np.arange(n * h * w * c, dtype=np.uint16).reshape(n, h, w, c) + 1
    p = (h + 2 * pad - 2 * dilation - 1) // stride + 1
    q = (w + 2 * pad - 2 * dilation - 1) // stride + 1
    pixels = 16
    upper = pad - 2 * dilation
    rec = {
        "dtype": "bfloat16",
        "dims": (c, w, h, n),
        "strides": (c * 2, w * c * 2, h * w * c * 2),
        "mode": "im2col",
        "lower": (-pad, -pad),
        "upper": (upper, upper),
        "channels": 8,
        "pixels": pixels,
        "elem_strides": (1, stride, stride, 1),
        "bytes": pixels * 16,
    }
    for first in (0, 5, q + 1, p * q - 3):
        img, rest = divmod(first, p * q)
        start = (0, rest % q * stride - pad, rest // q * stride - pad, img)
        got = fetch(IM2COL, x, dict(rec), start, (s * dilation, r * dilation))
        want = np.zeros((pixels, c), np.uint16)
        for k in range(pixels):
            img, rest = divmod(first + k, p * q)
            y = rest // q * stride - pad + r * dilation
            z = rest % q * stride - pad + s * dilation
            if img < n and 0 <= y < h and 0 <= z < w:
                want[k] = x[img, y, z]
        assert np.array_equal(got.view(np.uint16).reshape(pixels, c), want)
