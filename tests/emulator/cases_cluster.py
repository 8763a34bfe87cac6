"""Planted bugs around tensor cores, clusters and changed tensor maps."""

from __future__ import annotations

from cases_async import SHARED, tile

DESC = """
mov.u32 %r2, buf;
shr.u32 %r3, %r2, 4;
and.b32 %r3, %r3, 0x3fff;
mov.b64 %d1, {%r3, 0x40000040};
mov.u32 %r5, %tid.x;
shl.b32 %r6, %r5, 5;
add.u32 %r6, %r2, %r6;
mov.u32 %r7, 0;
st.shared.v4.u32 [%r6], {%r7, %r7, %r7, %r7};
st.shared.v4.u32 [%r6 + 16], {%r7, %r7, %r7, %r7};
st.shared.v4.u32 [%r6 + 4096], {%r7, %r7, %r7, %r7};
st.shared.v4.u32 [%r6 + 4112], {%r7, %r7, %r7, %r7};
fence.proxy.async.shared::cta; //proxy
bar.sync 0;
mov.f32 %f0, 0f00000000;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.f32 %f3, 0f00000000;
"""
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, "
TILE = ".shared .align 1024 .b8 buf[8192];"
WGMMA = {"outside": TILE, "block": 128}

CASES = [
    (
        "no wgmma.fence after writing the accumulators",
        "missing-wgmma-fence",
        DESC + "wgmma.fence.sync.aligned; //clean\n" + MMA + "%d1, %d1, 1, 1, 1, 0, 0; //here\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        WGMMA,
    ),
    (
        "accumulator read before its wait",
        "accumulator-touched",
        DESC + "wgmma.fence.sync.aligned;\n" + MMA + "%d1, %d1, 1, 1, 1, 0, 0;\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; //clean\n"
        "add.f32 %f4, %f0, %f1; //here\nwgmma.wait_group.sync.aligned 0; //bug",
        WGMMA,
    ),
    (
        "wgmma operands written through the generic proxy without a fence",
        "missing-proxy-fence",
        DESC.replace("//proxy", "//clean")
        + "wgmma.fence.sync.aligned;\n"
        + MMA
        + "%d1, %d1, 1, 1, 1, 0, 0; //here\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        WGMMA,
    ),
    (
        "warps of a warpgroup issue different descriptors",
        "wgmma-mismatch",
        DESC + "shr.u32 %r8, %r5, 5; //bug\nmov.b64 %d3, {%r8, 0}; //bug\n"
        "add.u64 %d1, %d1, %d3; //bug\n"
        "wgmma.fence.sync.aligned;\n" + MMA + "%d1, %d1, 1, 1, 1, 0, 0; //here\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        WGMMA,
    ),
    (
        "exit with a wgmma that nobody waited for",
        "mma-pending",
        DESC + "wgmma.fence.sync.aligned;\n" + MMA + "%d1, %d1, 1, 1, 1, 0, 0; //here\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; //clean",
        WGMMA,
    ),
    (
        "a stage overwritten before the tensor core has read it",
        "race-war",
        DESC + "wgmma.fence.sync.aligned;\n" + MMA + "%d1, %d1, 1, 1, 1, 0, 0;\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; //clean\n"
        "bar.sync 0; //clean\nst.shared.u32 [%r6], 1; //here\n"
        "wgmma.wait_group.sync.aligned 0; //bug",
        WGMMA,
    ),
    (
        "a peer's shared memory after the peer left",
        "peer-exited",
        """
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, buf;
mapa.shared::cluster.u32 %r3, %r2, 1;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
setp.eq.u32 %p1, %r1, 1;
@%p1 bra last;
bar.sync 0;
bar.sync 0;
st.shared::cluster.u32 [%r3], 3; //here
last:
barrier.cluster.arrive.aligned; //clean
barrier.cluster.wait.aligned; //clean
""",
        {"outside": SHARED, "grid": 2, "cluster": 2},
    ),
    (
        "remote write and local read without a cluster barrier",
        "race-raw",
        """
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, buf;
xor.b32 %r4, %r1, 1;
mapa.shared::cluster.u32 %r3, %r2, %r4;
mov.u32 %r5, %tid.x;
shl.b32 %r5, %r5, 2;
add.u32 %r2, %r2, %r5;
add.u32 %r3, %r3, %r5;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
st.shared::cluster.u32 [%r3], %r1;
barrier.cluster.arrive.aligned; //clean
barrier.cluster.wait.aligned; //clean
ld.shared.u32 %r6, [%r2]; //here
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
""",
        {"outside": SHARED, "grid": 2, "cluster": 2, "schedule": "random"},
    ),
    (
        "a cluster rank that does not exist",
        "oob-shared",
        """
mov.u32 %r2, buf;
mov.u32 %r4, 1; //clean
mov.u32 %r4, 5; //bug
mapa.shared::cluster.u32 %r3, %r2, %r4;
mov.u32 %r1, %cluster_ctarank;
setp.eq.u32 %p1, %r1, 0;
@%p1 st.shared::cluster.u32 [%r3], 1; //here
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
""",
        {"outside": SHARED, "grid": 2, "cluster": 2},
    ),
    (
        "cluster barrier waited for without arriving",
        "cluster-barrier",
        """
barrier.cluster.arrive.aligned; //clean
barrier.cluster.wait.aligned; //here
""",
        {"grid": 2, "cluster": 2},
    ),
    (
        "changed tensor map used without its acquire fence",
        "missing-tensormap-fence",
        """
ld.param.u64 %d3, [map];
mov.u32 %r1, bar;
mov.u32 %r2, buf;
mov.u32 %r3, %tid.x;
setp.eq.u32 %p1, %r3, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
@%p1 tensormap.replace.tile.box_dim.global.b1024.b32 [%d3], 0, 4;
@%p1 fence.proxy.tensormap::generic.release.gpu;
@%p1 fence.proxy.tensormap::generic.acquire.gpu [%d3], 128; //clean
mov.u32 %r10, 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes //here
    [%r2], [%d3, {%r10, %r10}], [%r1];
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra wait;
""",
        {
            "params": ".param .u64 a, .param .u64 map",
            "outside": SHARED,
            "args": lambda: [*tile()[:1], {**tile()[1], "place": "global"}],
        },
    ),
]
