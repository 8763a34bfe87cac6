"""atom and red: every operation and type, old values, locks."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_case import kernel, pointers, run

PTR1, LOAD1 = pointers("a")
PTR2, LOAD2 = pointers("a", "b")
LANE = np.arange(32, dtype=np.uint32)
ADDRESS = """
mov.u32 %r50, %tid.x;
mul.wide.u32 %d20, %r50, 4;
add.u64 %d21, %d1, %d20;
"""
WIDTH = {"r": 32, "d": 64, "h": 16, "f": 32, "g": 64}


ATOMICS = [
    # operation, type, register, initial bits, operand of lane k, result
    ("add", "u32", "r", 5, lambda k: k, lambda x, v: x + sum(v)),
    ("min", "s32", "r", 100, lambda k: 3 - k, lambda x, v: min(x, *v)),
    ("max", "u32", "r", 7, lambda k: 2 * k, lambda x, v: max(x, *v)),
    ("and", "b32", "r", 0xFFFF, lambda k: ~(1 << (k % 8)), lambda x, v: 0xFF00),
    ("or", "b32", "r", 0, lambda k: 1 << k, lambda x, v: 0xFFFFFFFF),
    ("xor", "b32", "r", 1, lambda k: 1 << k, lambda x, v: 0xFFFFFFFE),
    ("inc", "u32", "r", 0, lambda k: 9, lambda x, v: 32 % 10),
    ("dec", "u32", "r", 3, lambda k: 9, lambda x, v: 1),
    ("add", "u64", "d", 1 << 40, lambda k: k << 30, lambda x, v: x + sum(v)),
    ("max", "s64", "d", 0, lambda k: k - 40, lambda x, v: 0),
    ("add", "f32", "f", 0x3F800000, lambda k: 0x3F800000, lambda x, v: 0x42040000),
    ("add", "f64", "g", 0, lambda k: 0x3FF0000000000000, lambda x, v: 0x4040000000000000),
    ("add.noftz", "f16x2", "r", 0, lambda k: 0x3C004000, lambda x, v: 0x50005400),
    ("add.noftz", "bf16x2", "r", 0, lambda k: 0x3F804000, lambda x, v: 0x42004280),
]


# packed additions exist in global memory only
SPACED = [("global", *x) for x in ATOMICS] + [
    ("shared", *x) for x in ATOMICS if "noftz" not in x[0]
]


@pytest.mark.parametrize(
    "space, op, ty, cls, start, lane, want", SPACED, ids=[".".join(x[:3]) for x in SPACED]
)
def test_reductions_of_32_lanes(space, op, ty, cls, start, lane, want):
    w = WIDTH[cls]
    body = f"""
{LOAD2}
mov.u32 %r50, %tid.x;
mul.wide.u32 %d20, %r50, 8;
add.u64 %d21, %d2, %d20;
ld.global.b{w} %{cls}2, [%d21];
"""
    if space == "global":
        body += f"red.global.{op}.{ty} [%d1], %{cls}2;"
    else:
        body += f"""
mov.u32 %r51, buf;
setp.eq.u32 %p1, %r50, 0;
ld.global.b{w} %{cls}3, [%d1];
@%p1 st.shared.b{w} [%r51], %{cls}3;
bar.sync 0;
red.shared.{op}.{ty} [%r51], %{cls}2;
bar.sync 0;
ld.shared.b{w} %{cls}3, [%r51];
st.global.b{w} [%d1], %{cls}3;
"""
    text = kernel(f"red {space} {op} {ty}", body, PTR2, outside=".shared .align 8 .b8 buf[8];")
    values = [lane(k) & ((1 << w) - 1) for k in range(32)]
    signed = [v - (1 << w) if ty[0] == "s" and v >> (w - 1) else v for v in values]
    res = run(text, [np.array([start], np.uint64), np.array(values, np.uint64)])
    assert res.ok, res.report()
    assert int(res.arrays[0][0]) == want(start, signed) & ((1 << w) - 1)


def test_atom_returns_old_values_in_lane_order():
    body = "setp.lt.u32 %p1, %r50, 32;\natom.global.add.u32 %r1, [%d2], 2;"
    text = kernel("atom old", f"{LOAD2}\n{ADDRESS}\n{body}\nst.global.u32 [%d21], %r1;", PTR2)
    res = run(text, [np.zeros(32, np.uint32), np.array([7], np.uint32)])
    assert res.ok, res.report()
    assert res.arrays[0].tolist() == [7 + 2 * k for k in range(32)]
    assert int(res.arrays[1][0]) == 71


def test_compare_and_swap_builds_a_lock():
    body = f"""
{LOAD2}
mov.u32 %r50, %tid.x;
setp.ne.u32 %p2, %r50, 0;
@%p2 bra done;
lock:
atom.acquire.gpu.global.cas.b32 %r1, [%d2], 0, 1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra lock;
ld.global.u32 %r2, [%d1];
add.u32 %r2, %r2, 1;
st.global.u32 [%d1], %r2;
atom.release.gpu.global.exch.b32 %r3, [%d2], 0;
done:
"""
    text = kernel("lock", body, PTR2)
    for schedule in ("round_robin", "random", "adversarial"):
        res = run(text, [np.zeros(1, np.uint32)] * 2, grid=5, schedule=schedule)
        assert res.ok, res.report()
        assert int(res.arrays[0][0]) == 5


def test_vector_reductions():
    body = f"""
{LOAD1}
mov.f32 %f1, 0f3F800000;
mov.f32 %f2, 0f40000000;
red.global.add.v4.f32 [%d1], {{%f1, %f2, %f1, %f2}};
mov.u32 %r1, 0x3F803F80;
red.global.add.noftz.v2.bf16x2 [%d1 + 16], {{%r1, %r1}};
"""
    text = kernel("red v4", body, PTR1)
    res = run(text, [np.zeros(6, np.float32)])
    assert res.ok, res.report()
    assert res.arrays[0][:4].tolist() == [32, 64, 32, 64]
    assert res.arrays[0].view(np.uint16)[8:].tolist() == [0x4200] * 4
