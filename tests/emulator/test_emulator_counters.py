"""Counters have closed forms for small kernels, and repeat exactly."""

from __future__ import annotations

import gemm_launch
import numpy as np
import pytest
from ptx_case import kernel, pointers, run

from deepasm_torch.kernels.gemm import KERNELS

PTR1, LOAD1 = pointers("a")
PTR2, LOAD2 = pointers("a", "b")


def transpose_text(pitch):
    """32 x 32 floats through shared memory with rows of ``pitch`` words; 1024 threads."""
    body = f"""
{LOAD2}
mov.u32 %r1, %tid.x;
mov.u32 %r2, %tid.y;
shl.b32 %r3, %r2, 5;
add.u32 %r3, %r3, %r1;
mul.wide.u32 %d3, %r3, 4;
add.u64 %d4, %d1, %d3;
ld.global.f32 %f1, [%d4];
mov.u32 %r4, buf;
mad.lo.u32 %r5, %r2, {4 * pitch}, %r4;
shl.b32 %r6, %r1, 2;
add.u32 %r5, %r5, %r6;
st.shared.f32 [%r5], %f1;
bar.sync 0;
mad.lo.u32 %r5, %r1, {4 * pitch}, %r4;
shl.b32 %r6, %r2, 2;
add.u32 %r5, %r5, %r6;
ld.shared.f32 %f2, [%r5];
add.u64 %d4, %d2, %d3;
st.global.f32 [%d4], %f2;
"""
    return kernel(f"transpose {pitch}", body, PTR2, outside=".shared .align 16 .b8 buf[4352];")


TRANSPOSE = {p: transpose_text(p) for p in (32, 33, 34)}


# columns of a 32-word pitch lie in one bank, of 34 words in 16 banks, of 33 words in 32
@pytest.mark.parametrize("pitch, per_column", [(32, 32), (33, 1), (34, 2)])
def test_bank_conflicts_of_a_transpose(pitch, per_column):
    x = np.arange(1024, dtype=np.float32).reshape(32, 32)
    res = run(TRANSPOSE[pitch], [x, np.zeros((32, 32), np.float32)], block=(32, 32))
    assert res.ok, res.report()
    assert np.array_equal(res.arrays[1], x.T)
    c = res.counters.as_dict()
    assert c["shared"] == {"requests": 64, "wavefronts": 32 + 32 * per_column, "ideal": 64}
    assert c["global"] == {"requests": 64, "sectors": 64 * 4, "ideal": 64 * 4}
    assert c["bytes"] == {
        "global_load": 4096,
        "global_store": 4096,
        "shared_load": 4096,
        "shared_store": 4096,
    }
    assert c["instructions"]["ld.shared"] == c["instructions"]["st.shared"] == 32
    assert c["warp_efficiency"] == 1.0


@pytest.mark.parametrize(
    "stride, vector, offset, sectors, ideal",
    [
        (4, 1, 0, 4, 4),
        (32, 1, 0, 32, 4),
        (8, 1, 0, 8, 4),
        (4, 1, 16, 5, 4),
        (0, 1, 0, 1, 1),
        (16, 4, 0, 16, 16),
        (64, 4, 0, 32, 16),
        (8, 2, 0, 8, 8),
    ],
)
def test_sectors_of_strided_loads(stride, vector, offset, sectors, ideal):
    regs = {1: "%r1", 2: "{%r1, %r2}", 4: "{%r1, %r2, %r3, %r4}"}[vector]
    vec = f".v{vector}" if vector > 1 else ""
    body = f"""
{LOAD1}
mov.u32 %r50, %tid.x;
mul.wide.u32 %d2, %r50, {stride};
add.u64 %d3, %d1, %d2;
ld.global{vec}.u32 {regs}, [%d3 + {offset}];
"""
    res = run(
        kernel(f"stride {stride} v{vector} +{offset}", body, PTR1), [np.zeros(600, np.uint32)]
    )
    assert res.counters.as_dict()["global"] == {"requests": 1, "sectors": sectors, "ideal": ideal}


@pytest.mark.parametrize(
    "bytes_, stride, wavefronts",
    [(16, 16, 4), (8, 8, 2), (4, 4, 1), (4, 8, 2), (4, 0, 1), (16, 64, 16), (4, 128, 32)],
)
def test_shared_wavefronts_by_width(bytes_, stride, wavefronts):
    vec = {4: "", 8: ".v2", 16: ".v4"}[bytes_]
    regs = {4: "%r9", 8: "{%r9, %r9}", 16: "{%r9, %r9, %r9, %r9}"}[bytes_]
    body = f"""
mov.u32 %r1, %tid.x;
mov.u32 %r2, buf;
mov.u32 %r9, 1;
mad.lo.u32 %r3, %r1, {stride}, %r2;
st.shared{vec}.u32 [%r3], {regs};
"""
    text = kernel(f"shared {bytes_} {stride}", body, outside=".shared .align 16 .b8 buf[4224];")
    assert run(text).counters.shared_wavefronts == wavefronts


def test_divergence_lowers_warp_efficiency():
    body = """
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 8;
@%p1 bra done;
add.u32 %r2, %r1, 1;
add.u32 %r2, %r2, 1;
add.u32 %r2, %r2, 1;
done:
"""
    c = run(kernel("efficiency", body)).counters
    # mov, setp, bra and ret with 32 lanes, three additions with 8
    assert c.total == 7 and c.lanes == 4 * 32 + 3 * 8
    assert c.warp_efficiency == (4 * 32 + 3 * 8) / (7 * 32)


COOP = next(k for k in KERNELS if k.name == "gemm_sm90_bf16_nt_128x256x64_coop")


def test_bytes_of_a_gemm_by_path():
    m, n, k = 256, 512, 256
    res, _, _ = gemm_launch.run(COOP, m, n, k, ctas=4)
    c = res.counters.as_dict()
    tiles, blocks = (m // 128) * (n // 256), k // 64
    assert c["bytes"]["tma_load"] == tiles * blocks * (128 + 256) * 64 * 2
    assert c["bytes"]["tma_store"] == m * n * 2
    # two warpgroups per tile, four m64n256k16 per k-block: A 64 x 32 bytes and B 256 x 32 each
    assert c["bytes"]["mma_shared"] == tiles * blocks * 2 * 4 * (64 + 256) * 32
    # stmatrix.x4 writes 512 bytes in 4 wavefronts: no bank conflicts
    assert c["bytes"]["shared_store"] == m * n * 2
    assert c["shared"]["wavefronts"] == c["shared"]["ideal"] == m * n * 2 // 128
    assert c["instructions"]["mma"] == tiles * blocks * 8 * 4
    assert set(c["by_role"]) == {"load", "mma", "other"}


def test_counters_repeat_and_do_not_depend_on_the_hazard_checks():
    runs = [
        gemm_launch.run(COOP, 128, 256, 128, schedule=s, hazards=h)[0].counters.as_dict()
        for s, h in (
            ("round_robin", True),
            ("round_robin", False),
            ("round_robin", True),
            ("random", True),
            ("random", True),
        )
    ]
    assert runs[0] == runs[1] == runs[2]
    assert runs[3] == runs[4]
    for key in ("bytes", "shared", "global"):
        assert runs[0][key] == runs[3][key]
