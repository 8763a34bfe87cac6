"""The copy engine: stores, their clipping, reductions."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_case import kernel
from test_tma import box_record

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
OUTSIDE = ".shared .align 1024 .b8 buf[20480];\n.shared .align 8 .b64 bar;\n"
HEAD = """
mov.b64 %d2, m;
cvta.param.u64 %d2, %d2;
ld.param.u64 %d3, [out];
ld.param.u32 %r20, [bytes];
"""


STORE = kernel(
    "store 2d",
    HEAD
    + MBAR
    + """
ld.param.s32 %r30, [c0];
ld.param.s32 %r31, [c1];
ld.param.u64 %d4, [src];
shl.b32 %r5, %r3, 4;
add.u32 %r6, %r2, %r5;
cvt.u64.u32 %d5, %r5;
add.u64 %d5, %d5, %d4;
ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d5];
st.shared.v4.u32 [%r6], {%r10, %r11, %r12, %r13};
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {%r30, %r31}], [%r2];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;
""",
    ".param .align 64 .b8 m[128], .param .u64 out, .param .u32 bytes, .param .s32 c0,"
    " .param .s32 c1, .param .u64 src",
    outside=OUTSIDE,
)


def store(text, target, rec, coords, data, schedule="round_robin"):
    rec.pop("bytes")
    mem = emulator.Memory()
    base, src = mem.alloc("t", target), mem.alloc("src", data)
    args = [encode_map({**rec, "base": base}), 0, 0, *coords, src]
    res = emulator.launch(emulator.Program(text), None, 1, 32, args, memory=mem, schedule=schedule)
    return res, mem["t"]


@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
def test_store_clips_rows_exactly(schedule):
    data = np.arange(256, dtype=np.uint16).reshape(8, 32)
    res, got = store(
        STORE,
        np.full((8, 32), 9, np.uint16),
        box_record((32, 8), 2, (32, 8)),
        (0, 5),
        data,
        schedule,
    )
    assert res.ok, res.report()
    want = np.full((8, 32), 9)
    want[5:] = data[:3]
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "width, reaches", [(57, 64), (50, 56), (41, 48), (9, 16), (56, 56), (8, 8)]
)
def test_store_clips_columns_at_16_bytes(width, reaches):
    """Measured on the device: a store of bf16 width 57 writes columns 0 to 63."""
    rec = {**box_record((64, 4), 2, (64, 4)), "dims": (width, 4)}
    data = np.arange(1, 257, dtype=np.uint16).reshape(4, 64)
    res, got = store(STORE, np.zeros((4, 64), np.uint16), rec, (0, 0), data)
    want = data.copy()
    want[:, reaches:] = 0
    assert np.array_equal(got, want)
    assert [h.kind for h in res.hazards] == (["tma-spill"] if reaches > width else [])


REDUCE = {}
for _op in ("add", "min", "max"):
    REDUCE[_op] = kernel(
        f"reduce {_op}",
        STORE.split("{\n", 1)[1]
        .rsplit("ret;", 1)[0]
        .split(".reg .f64 %g<9>;\n", 1)[1]
        .replace(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
            f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{_op}.tile.bulk_group",
        ),
        STORE.split(" k(", 1)[1].split(")\n", 1)[0],
        outside=OUTSIDE,
    )


@pytest.mark.parametrize("op, fn", [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_reductions(op, fn, dtype):
    rng = np.random.default_rng(1)
    old, new = rng.integers(-9, 9, (2, 16, 8)).astype(dtype)
    rec = {**box_record((8, 16), 4, (8, 16)), "dtype": dtype}
    res, got = store(REDUCE[op], old, rec, (0, 0), new)
    assert res.ok, res.report()
    assert np.array_equal(got, fn(old, new))


def test_bf16_reduction_rounds_once():
    old = np.full((16, 16), 0x4380, np.uint16)  # 256
    new = np.full((16, 16), 0x3F80, np.uint16)  # 1: 257 is a tie, to even
    res, got = store(REDUCE["add"], old, box_record((16, 16), 2, (16, 16)), (0, 0), new)
    assert res.ok and (got == 0x4380).all()
