"""Clusters: multicast, distributed shared memory, tensor maps that a kernel changes."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_case import kernel, run
from test_tma import DUMP, MBAR, OUTSIDE, WAIT

CLUSTER = """
mov.u32 %r30, %cluster_ctarank;
mov.u32 %r31, 0;
ld.param.u64 %d4, [out];
"""
SYNC = """
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
def test_multicast_lands_in_every_cta_of_the_mask(schedule):
    body = (
        """
mov.b64 %d2, m;
cvta.param.u64 %d2, %d2;
ld.param.u64 %d3, [out];
"""
        + MBAR
        + CLUSTER
        + SYNC
        + """
mov.u32 %r20, 512;
mov.u16 %h1, 3;
setp.eq.and.u32 %p4, %r30, 0, %p1;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
MULTICAST
    [%r2], [%d2, {%r31}], [%r1], %h1;
"""
        + WAIT
        + """
mul.wide.u32 %d6, %r30, 512;
add.u64 %d3, %d3, %d6;
and.b32 %r2, %r2, 0xffffff;
mov.u32 %r2, buf;
"""
        + DUMP
        + SYNC
    )
    load = "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    body = body.replace("MULTICAST", f"@%p4 {load}.multicast::cluster")
    text = kernel(
        "multicast",
        body,
        ".param .u64 a, .param .align 64 .b8 m[128], .param .u64 out",
        outside=OUTSIDE,
    )
    data = np.arange(128, dtype=np.float32)
    rec = {"of": 0, "dtype": "float32", "dims": (128,), "strides": (), "box": (128,)}
    res = run(text, [data, rec, (1024,)], grid=2, cluster=2, schedule=schedule)
    assert res.ok, res.report()
    assert np.array_equal(res.arrays[2].view(np.float32).reshape(2, 128), [data, data])


@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
@pytest.mark.parametrize("how", ["st", "st.async", "red.async", "bulk", "atom"])
def test_distributed_shared_memory(how, schedule):
    """Each CTA sends its rank + 1 to the peer's buffer and reads what arrived."""
    send = {
        "st": "st.shared::cluster.u32 [%r8], %r9;" + SYNC,
        "atom": "red.shared::cluster.add.u32 [%r8], %r9;" + SYNC,
        "st.async": "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r8], %r9, [%r7];"
        + WAIT,
        "red.async": "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
        ".add.u32 [%r8], %r9, [%r7];" + WAIT,
        "bulk": "mov.u32 %r12, other;\nadd.u32 %r13, %r12, %r5;\nst.shared.u32 [%r13], %r9;\n"
        "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
        "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], [%r12],"
        " 128, [%r7];" + WAIT,
    }[how]
    body = (
        MBAR
        + CLUSTER
        + f"""
shl.b32 %r5, %r3, 2;
add.u32 %r6, %r2, %r5;
mov.u32 %r10, 100;
st.shared.u32 [%r6], %r10;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
fence.proxy.async.shared::cta;
{SYNC}
xor.b32 %r11, %r30, 1;
mapa.shared::cluster.u32 %r7, %r1, %r11;
mapa.shared::cluster.u32 %r8, %r6, %r11;
add.u32 %r9, %r30, 1;
{send}
ld.shared.u32 %r14, [%r6];
mul.wide.u32 %d5, %r30, 128;
add.u64 %d4, %d4, %d5;
cvt.u64.u32 %d5, %r5;
add.u64 %d4, %d4, %d5;
st.global.u32 [%d4], %r14;
{SYNC}
"""
    )
    text = kernel(
        f"dsmem {how}",
        body,
        ".param .u64 out",
        outside=OUTSIDE + ".shared .align 16 .b8 other[128];\n",
    )
    res = run(text, [(256,)], grid=2, cluster=2, schedule=schedule)
    assert res.ok, res.report()
    base = 100 if how in ("atom", "red.async") else 0
    got = res.arrays[0].view(np.uint32).reshape(2, 32)
    assert np.array_equal(got, np.repeat([[base + 2], [base + 1]], 32, axis=1))


def test_tensormap_replace_changes_the_map():
    body = (
        """
ld.param.u64 %d3, [out];
ld.param.u64 %d2, [map];
ld.param.u64 %d1, [a];
mov.u32 %r20, 512;
"""
        + MBAR
        + """
add.u64 %d1, %d1, 512;
mov.u32 %r30, 0;
mov.u32 %r7, 16;
@%p1 tensormap.replace.tile.global_address.global.b1024.b64 [%d2], %d1;
@%p1 tensormap.replace.tile.global_dim.global.b1024.b32 [%d2], 0, %r7;
@%p1 tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%d2], 0;
@%p1 fence.proxy.tensormap::generic.release.gpu;
@%p1 fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
@%p1 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r2], [%d2, {%r30}], [%r1];
"""
        + WAIT
        + DUMP
    )
    text = kernel(
        "tensormap.replace",
        body,
        ".param .u64 a, .param .u64 map, .param .u64 out",
        outside=OUTSIDE,
    )
    data = np.arange(256, dtype=np.float32)
    rec = {
        "of": 0,
        "place": "global",
        "dtype": "float32",
        "dims": (256,),
        "strides": (),
        "box": (128,),
    }
    res = run(text, [data, rec, (512,)])
    assert res.ok, res.report()
    got = res.arrays[2].view(np.float32)
    assert np.array_equal(got[:16], data[128:144]) and not got[16:].any()
