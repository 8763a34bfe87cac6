"""Planted bugs around asynchronous copies, tensor cores, proxies and clusters."""

from __future__ import annotations

import numpy as np

SHARED = ".shared .align 1024 .b8 buf[4096];\n.shared .align 8 .b64 bar;\n"
LOAD = ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
MAP = ".param .u64 a, .param .align 64 .b8 m[128]"


def tile(**changes):
    """Arguments: a 16 x 32 float32 tensor and a map of it with boxes of 8 x 8."""
    rec = {"of": 0, "dtype": "float32", "dims": (32, 16), "strides": (128,), "box": (8, 8)}
    data = np.arange(512, dtype=np.float32).reshape(16, 32)
    return [data, {**rec, **changes}]


INIT = """
mov.u32 %r1, bar;
mov.u32 %r2, buf;
mov.u32 %r3, %tid.x;
setp.eq.u32 %p1, %r3, 0;
ld.param.u64 %d1, [a];
mov.b64 %d2, m;
cvta.param.u64 %d2, %d2;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
mov.u32 %r10, 0;
mov.u32 %r11, 0;
"""
WAIT = """
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra wait;
"""
FETCH = f"""
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
@%p1 cp.async.bulk.tensor.2d{LOAD} [%r2], [%d2, {{%r10, %r11}}], [%r1]; //here
"""
STORE = """
@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {%r10, %r11}], [%r2]; //here
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;
"""
FILL = """
shl.b32 %r4, %r3, 3;
add.u32 %r4, %r2, %r4;
st.shared.v2.u32 [%r4], {%r3, %r3};
fence.proxy.async.shared::cta; //fence
bar.sync 0;
"""
BUILD = {"params": MAP, "outside": SHARED, "args": tile}

CASES = [
    (
        "copy onto an mbarrier whose initialisation was not published",
        "missing-proxy-fence",
        INIT.replace("release.cluster;", "release.cluster; //clean") + FETCH + WAIT,
        BUILD,
    ),
    (
        "inner coordinate off the 16-byte grid",
        "fault",
        INIT + "mov.u32 %r10, 2; //bug\nmov.u32 %r10, 4; //clean\n" + FETCH + WAIT,
        BUILD,
    ),
    (
        "no tensor map at the address",
        "tensor-map",
        INIT + "add.u64 %d2, %d2, 64; //bug\n" + FETCH + WAIT,
        BUILD,
    ),
    (
        "tile copy through an im2col map",
        "fault",
        INIT + FETCH + WAIT,
        {
            **BUILD,
            "bad_args": lambda: tile(
                dims=(8, 8, 4),
                strides=(32, 256),
                mode="im2col",
                lower=(0,),
                upper=(0,),
                channels=8,
                pixels=8,
            ),
        },
    ),
    (
        "negative coordinate in a store",
        "fault",
        INIT + FILL + "mov.u32 %r11, -1; //bug\n" + STORE,
        BUILD,
    ),
    (
        "store clipped at 16 bytes spills into the padding",
        "tma-spill",
        INIT + FILL + "mov.u32 %r10, 24; //bug\n" + STORE,
        {**BUILD, "args": lambda: tile(dims=(30, 16))},
    ),
    (
        "the tensor map reaches past its allocation",
        "oob-global",
        INIT + "mov.u32 %r11, 24; //bug\n" + FETCH + WAIT,
        {**BUILD, "args": lambda: tile(dims=(32, 32))},
    ),
    (
        "destination of a tensor copy is not aligned",
        "misaligned",
        INIT + "add.u32 %r2, %r2, 64; //bug\n" + FETCH + WAIT,
        BUILD,
    ),
    (
        "box leaves shared memory",
        "oob-shared",
        INIT + "add.u32 %r2, %r2, 8192; //bug\n" + FETCH + WAIT,
        BUILD,
    ),
    (
        "fewer bytes expected than arrive",
        "tx-count",
        INIT
        + f"""
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256; //clean
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128; //bug
@%p1 cp.async.bulk.tensor.2d{LOAD} [%r2], [%d2, {{%r10, %r11}}], [%r1]; //here
"""
        + WAIT,
        BUILD,
    ),
    (
        "more bytes expected than arrive",
        "deadlock",
        INIT
        + f"""
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256; //clean
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512; //bug
@%p1 cp.async.bulk.tensor.2d{LOAD} [%r2], [%d2, {{%r10, %r11}}], [%r1];
"""
        + WAIT.replace("%p2, [%r1], 0;", "%p2, [%r1], 0; //here"),
        BUILD,
    ),
    (
        "stage read before its copy is complete",
        "race-raw",
        INIT
        + FETCH.replace("//here", "")
        + WAIT.replace("try_wait", "try_wait")
        .replace("\n@!", " //clean\n@!")
        .replace("bra wait;", "bra wait; //clean")
        + "ld.shared.u32 %r5, [%r2]; //here\n"
        + WAIT.replace("wait:", "late:").replace("bra wait", "bra late").replace(";", "; //bug"),
        {**BUILD},
    ),
    (
        "no proxy fence before a tensor store",
        "missing-proxy-fence",
        INIT + FILL.replace("//fence", "//clean") + STORE,
        BUILD,
    ),
    (
        "source overwritten before the store has read it",
        "race-war",
        INIT
        + FILL
        + """
@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {%r10, %r11}], [%r2];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group.read 0; //clean
st.shared.u32 [%r4], 5; //here
@%p1 cp.async.bulk.wait_group 0;
""",
        BUILD,
    ),
    (
        "bulk store that is never committed",
        "bulk-uncommitted",
        INIT
        + FILL
        + """
@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {%r10, %r11}], [%r2]; //here
@%p1 cp.async.bulk.commit_group; //clean
@%p1 cp.async.bulk.wait_group 0;
""",
        BUILD,
    ),
    (
        "exit before the store has read its source",
        "exit-pending-store",
        INIT + FILL + STORE.replace("wait_group 0;", "wait_group 0; //clean"),
        BUILD,
    ),
    (
        "global data read before the bulk store is complete",
        "race-global",
        INIT
        + FILL
        + """
@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d2, {%r10, %r11}], [%r2];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group.read 0; //bug
@%p1 cp.async.bulk.wait_group 0; //clean
@%p1 ld.global.u32 %r5, [%d1]; //here
""",
        BUILD,
    ),
    (
        "tensor load of global data written through the generic proxy",
        "missing-proxy-fence",
        INIT + "@%p1 st.global.u32 [%d1], 7;\nfence.proxy.async; //clean\n" + FETCH + WAIT,
        BUILD,
    ),
    (
        "exit while a copy into shared memory is in flight",
        "exit-pending-copy",
        INIT + FETCH + WAIT.replace(";", "; //clean"),
        {**BUILD, "schedule": "random"},
    ),
    (
        "cp.async result read before its wait",
        "race-raw",
        """
ld.param.u64 %d1, [a];
mov.u32 %r2, buf;
mov.u32 %r3, %tid.x;
shl.b32 %r4, %r3, 4;
add.u32 %r4, %r2, %r4;
mul.wide.u32 %d2, %r3, 16;
add.u64 %d2, %d1, %d2;
cp.async.cg.shared.global [%r4], [%d2], 16;
cp.async.commit_group;
cp.async.wait_group 0; //clean
ld.shared.u32 %r5, [%r4]; //here
""",
        {"params": ".param .u64 a", "outside": SHARED, "args": lambda: [np.arange(128.0)]},
    ),
]
