"""mbarrier phases and cp.async, with the answers that an H200 gave."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_case import kernel, pointers, run

PTR2, LOAD2 = pointers("a", "b")
OUTSIDE = ".shared .align 16 .b8 buf[1024];\n.shared .align 8 .b64 bar;\n"
START = """
mov.u32 %r1, bar;
mov.u32 %r50, %tid.x;
setp.ne.u32 %p8, %r50, 0;
ld.param.u64 %d1, [a];
@%p8 bra done;
"""


def ask(parity, slot):
    """Store the answer of a test_wait to a slot of the output."""
    return f"""
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], {parity};
selp.u32 %r2, 1, 0, %p1;
st.global.u32 [%d1 + {4 * slot}], %r2;
"""


def answers(name, steps, n):
    text = kernel(name, START + steps + "\ndone:", ".param .u64 a", outside=OUTSIDE)
    res = run(text, [np.full(n, 9, np.uint32)])
    assert res.ok, res.report()
    return res.arrays[0].tolist()


def test_phases_of_a_fresh_barrier():
    steps = "mbarrier.init.shared::cta.b64 [%r1], 1;" + ask(1, 0) + ask(0, 1)
    steps += "mbarrier.arrive.shared::cta.b64 _, [%r1];" + ask(0, 2) + ask(1, 3)
    steps += "mbarrier.arrive.shared::cta.b64 _, [%r1];" + ask(0, 4) + ask(1, 5)
    assert answers("phases", steps, 6) == [1, 0, 1, 0, 0, 1]


def test_expected_bytes_keep_the_phase_open():
    steps = "mbarrier.init.shared::cta.b64 [%r1], 2;\n"
    steps += "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;\n"
    steps += "mbarrier.arrive.shared::cta.b64 _, [%r1];" + ask(0, 0)
    steps += "mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 48;" + ask(0, 1)
    steps += "mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 16;" + ask(0, 2)
    assert answers("tx", steps, 3) == [0, 0, 1]


def test_state_tokens_dropped_arrivals_and_pending_counts():
    steps = """
mbarrier.init.shared::cta.b64 [%r1], 3;
mbarrier.arrive.shared::cta.b64 %d5, [%r1];
mbarrier.pending_count.b64 %r3, %d5;
st.global.u32 [%d1], %r3;
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d5;
selp.u32 %r2, 1, 0, %p1;
st.global.u32 [%d1 + 4], %r2;
mbarrier.arrive_drop.shared::cta.b64 %d6, [%r1];
mbarrier.arrive.shared::cta.b64 %d6, [%r1];
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d5;
selp.u32 %r2, 1, 0, %p1;
st.global.u32 [%d1 + 8], %r2;
mbarrier.arrive.shared::cta.b64 %d6, [%r1], 2;
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d6;
selp.u32 %r2, 1, 0, %p1;
st.global.u32 [%d1 + 12], %r2;
"""
    # one of three pending arrivals was dropped: the next phase needs two
    assert answers("tokens", steps, 4) == [3, 0, 1, 1]


@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
@pytest.mark.parametrize("size, read", [(16, 16), (16, 10), (8, 8), (4, 4), (16, 0)])
def test_cp_async_fills_with_zeros(size, read, schedule):
    vec, regs = {
        16: (".v4", "{%r10, %r11, %r12, %r13}"),
        8: (".v2", "{%r10, %r11}"),
        4: ("", "%r10"),
    }[size]
    cache = "cg" if size == 16 else "ca"
    body = f"""
{LOAD2}
mov.u32 %r50, %tid.x;
mul.wide.u32 %d3, %r50, {size};
add.u64 %d4, %d1, %d3;
mov.u32 %r2, buf;
mad.lo.u32 %r2, %r50, {size}, %r2;
mov.u32 %r3, {read};
cp.async.{cache}.shared.global [%r2], [%d4], {size}, %r3;
cp.async.commit_group;
cp.async.wait_group 0;
ld.shared{vec}.u32 {regs}, [%r2];
add.u64 %d4, %d2, %d3;
st.global{vec}.u32 [%d4], {regs};
"""
    text = kernel(f"cp.async {size} {read}", body, PTR2, outside=OUTSIDE)
    data = np.arange(1, 32 * size + 1, dtype=np.uint32).astype(np.uint8)
    res = run(text, [data, np.full(32 * size, 7, np.uint8)], schedule=schedule)
    assert res.ok, res.report()
    want = data.reshape(32, size).copy()
    want[:, read:] = 0
    assert np.array_equal(res.arrays[1].reshape(32, size), want)


@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
def test_cp_async_arrives_on_an_mbarrier(schedule):
    body = f"""
{LOAD2}
mov.u32 %r50, %tid.x;
mov.u32 %r1, bar;
mov.u32 %r2, buf;
setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 64;
bar.sync 0;
shl.b32 %r3, %r50, 4;
cvt.u64.u32 %d3, %r3;
add.u64 %d4, %d1, %d3;
add.u32 %r4, %r2, %r3;
cp.async.cg.shared.global [%r4], [%d4], 16;
cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra wait;
xor.b32 %r3, %r3, 512;
add.u32 %r4, %r2, %r3;
ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r4];
add.u64 %d4, %d2, %d3;
st.global.v4.u32 [%d4], {{%r10, %r11, %r12, %r13}};
"""
    text = kernel("cp.async mbarrier", body, PTR2, outside=OUTSIDE)
    data = np.arange(256, dtype=np.uint32)
    res = run(text, [data, (1024,)], block=64, schedule=schedule)
    assert res.ok, res.report()
    assert np.array_equal(res.arrays[1].view(np.uint32), np.roll(data, 128))
