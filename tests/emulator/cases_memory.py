"""Planted bugs in plain loads, stores and atomics.

A case is (name, report, PTX body with buggy and clean lines, launch options).
The line marked ``//here`` is the one the report must name.
"""

from __future__ import annotations

import numpy as np
from ptx_case import pointers

PTR1, LOAD1 = pointers("a")
PTR2, LOAD2 = pointers("a", "b")
SHARED = ".shared .align 128 .b8 buf[2048];\n.shared .align 8 .b64 bar;\n"
U32 = np.arange(256, dtype=np.uint32)

CASES = [
    (
        "a register that nothing wrote",
        "uninit-register",
        f"""
{LOAD1}
mov.u32 %r1, 1; //clean
add.u32 %r2, %r1, 1; //here
st.global.u32 [%d1], %r2;
""",
        {"params": PTR1, "args": [U32]},
    ),
    (
        "shared memory that nothing wrote",
        "uninit-shared",
        f"""
{LOAD1}
mov.u32 %r1, buf;
st.shared.u32 [%r1], 7; //clean
ld.shared.u32 %r2, [%r1]; //here
st.global.u32 [%d1], %r2;
""",
        {"params": PTR1, "args": [U32], "outside": SHARED},
    ),
    (
        "global load past the end",
        "oob-global",
        f"""
{LOAD1}
mov.u32 %r1, %tid.x;
mul.wide.u32 %d2, %r1, 32; //clean
mul.wide.u32 %d2, %r1, 36; //bug
add.u64 %d3, %d1, %d2;
ld.global.u32 %r2, [%d3]; //here
""",
        {"params": PTR1, "args": [U32]},
    ),
    (
        "global store before the start",
        "oob-global",
        f"""
{LOAD1}
st.global.u32 [%d1], 5; //clean
st.global.u32 [%d1 + -4], 5; //bug //here
""",
        {"params": PTR1, "args": [U32]},
    ),
    (
        "misaligned vector store",
        "misaligned",
        f"""
{LOAD1}
st.global.v4.u32 [%d1 + 16], {{1, 2, 3, 4}}; //clean
st.global.v4.u32 [%d1 + 8], {{1, 2, 3, 4}}; //bug //here
""",
        {"params": PTR1, "args": [U32]},
    ),
    (
        "shared store past the end",
        "oob-shared",
        """
mov.u32 %r1, %tid.x;
shl.b32 %r1, %r1, 2;
mov.u32 %r2, buf;
add.u32 %r2, %r2, %r1;
st.shared.u32 [%r2 + 1920], %r1; //clean
st.shared.u32 [%r2 + 2048], %r1; //bug //here
""",
        {"outside": ".shared .align 128 .b8 buf[2048];"},
    ),
    (
        "misaligned shared load",
        "misaligned",
        """
mov.u32 %r1, buf;
st.shared.v2.u32 [%r1], {1, 2};
ld.shared.u32 %r2, [%r1]; //clean
ld.shared.u32 %r2, [%r1 + 2]; //bug //here
""",
        {"outside": SHARED},
    ),
    (
        "two warps write the same word",
        "race-waw",
        """
mov.u32 %r1, %tid.x;
mov.u32 %r2, buf;
setp.ge.u32 %p1, %r1, 32;
@!%p1 st.shared.u32 [%r2], 1;
bar.sync 0; //clean
@%p1 st.shared.u32 [%r2], 2; //here
""",
        {"outside": SHARED, "block": 64},
    ),
    (
        "read before the barrier",
        "race-raw",
        """
mov.u32 %r1, %tid.x;
mov.u32 %r2, buf;
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r2, %r3;
st.shared.u32 [%r4], %r1;
bar.sync 0; //clean
xor.b32 %r3, %r3, 128;
add.u32 %r4, %r2, %r3;
ld.shared.u32 %r5, [%r4]; //here
""",
        {"outside": SHARED, "block": 64, "schedule": "random"},
    ),
    (
        "overwritten while others still read",
        "race-war",
        """
mov.u32 %r1, %tid.x;
mov.u32 %r2, buf;
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r2, %r3;
st.shared.u32 [%r4], %r1;
bar.sync 0;
xor.b32 %r3, %r3, 128;
add.u32 %r5, %r2, %r3;
ld.shared.u32 %r6, [%r5];
bar.sync 0; //clean
st.shared.u32 [%r4], %r6; //here
""",
        {"outside": SHARED, "block": 64},
    ),
    (
        "shared byte neighbours are not a race, the same byte is",
        "race-waw",
        """
mov.u32 %r1, %tid.x;
mov.u32 %r2, buf;
shr.u32 %r3, %r1, 5; //clean
mov.u32 %r3, 0; //bug
add.u32 %r2, %r2, %r3;
and.b32 %r4, %r1, 31;
setp.eq.u32 %p1, %r4, 0;
@%p1 st.shared.u8 [%r2], %r1; //here
""",
        {"outside": SHARED, "block": 64},
    ),
    (
        "two CTAs write the same global word",
        "race-global",
        f"""
{LOAD1}
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %d2, %r1, 4; //clean
mul.wide.u32 %d2, %r1, 0; //bug
add.u64 %d3, %d1, %d2;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 st.global.u32 [%d3], %r1; //here
""",
        {"params": PTR1, "args": [U32], "grid": 2},
    ),
    (
        "flag without a fence",
        "race-global",
        f"""
{LOAD2}
mov.u32 %r1, %ctaid.x;
setp.eq.u32 %p1, %r1, 0;
@!%p1 bra wait;
mov.u32 %r2, %tid.x;
mul.wide.u32 %d3, %r2, 4;
add.u64 %d3, %d1, %d3;
st.global.u32 [%d3], %r2;
fence.acq_rel.gpu; //clean
setp.eq.u32 %p2, %r2, 0;
@%p2 st.relaxed.gpu.global.u32 [%d2], 1;
bra done;
wait:
ld.acquire.gpu.global.u32 %r3, [%d2];
setp.eq.u32 %p3, %r3, 0;
@%p3 bra wait;
ld.global.u32 %r4, [%d1]; //here
done:
""",
        {"params": PTR2, "args": [(1024,), np.zeros(1, np.uint32)], "grid": 2},
    ),
    (
        "global memory that nothing wrote",
        "uninit-global",
        f"""
{LOAD1}
st.global.u32 [%d1 + 64], 3; //clean
ld.global.u32 %r1, [%d1 + 64]; //here
""",
        {"params": PTR1, "args": [(256,)]},
    ),
    (
        "grid dependency not waited for",
        "missing-grid-wait",
        f"""
{LOAD1}
griddepcontrol.wait; //clean
ld.global.u32 %r1, [%d1]; //here
griddepcontrol.wait; //bug
griddepcontrol.launch_dependents;
""",
        {"params": PTR1, "args": [U32], "programmatic": True},
    ),
    (
        "output written twice",
        "output-twice",
        f"""
{LOAD1}
mov.u32 %r1, %tid.x;
mul.wide.u32 %d2, %r1, 4;
add.u64 %d2, %d1, %d2;
st.global.u32 [%d2], 0; //bug
st.global.u32 [%d2], %r1; //here
""",
        {"params": PTR1, "args": [(128,)], "outputs": {"a0": None}},
    ),
    (
        "atomic and plain store to one word",
        "race-global",
        f"""
{LOAD1}
mov.u32 %r1, %ctaid.x;
setp.eq.u32 %p1, %r1, 0;
mov.u32 %r2, %tid.x;
setp.eq.and.u32 %p2, %r2, 0, %p1;
red.global.add.u32 [%d1], 1; //clean
@!%p2 red.global.add.u32 [%d1], 1; //bug //here
@%p2 st.global.u32 [%d1], 1; //bug
""",
        {"params": PTR1, "args": [U32], "grid": 2},
    ),
]

CASES += [
    (
        "output element that nobody writes",
        "output-missing",
        f"""
{LOAD1}
mov.u32 %r1, %tid.x;
mul.wide.u32 %d2, %r1, 4;
add.u64 %d2, %d1, %d2;
setp.ne.u32 %p1, %r1, 31; //bug
@%p1 st.global.u32 [%d2], %r1; //bug
st.global.u32 [%d2], %r1; //clean
""",
        {"params": PTR1, "args": [(128,)], "outputs": {"a0": None}},
    ),
    (
        "local store past the end of the stack",
        "oob-local",
        """
.local .align 8 .b8 stack[64];
mov.u64 %d1, stack;
mov.u32 %r1, 1;
st.local.u32 [%d1 + 60], %r1; //clean
st.local.u32 [%d1 + 64], %r1; //bug //here
""",
        {},
    ),
    (
        "cp.async source larger than its destination",
        "cp-async-size",
        f"""
{LOAD1}
mov.u32 %r1, buf;
mov.u32 %r2, 8; //clean
mov.u32 %r2, 12; //bug
cp.async.ca.shared.global [%r1], [%d1], 8, %r2; //here
cp.async.wait_all;
""",
        {"params": PTR1, "args": [U32], "outside": SHARED},
    ),
    (
        "shuffle from a lane that does not take part",
        "shfl-inactive",
        """
mov.u32 %r1, %laneid;
setp.ge.u32 %p1, %r1, 16;
@%p1 bra done;
shfl.sync.idx.b32 %r2, %r1, 4, 31, 0xffff; //clean
shfl.sync.idx.b32 %r2, %r1, 20, 31, 0xffff; //bug //here
done:
""",
        {},
    ),
    (
        "trap",
        "fault",
        """
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 40; //clean
setp.eq.u32 %p1, %r1, 4; //bug
@%p1 trap; //here
""",
        {},
    ),
]
