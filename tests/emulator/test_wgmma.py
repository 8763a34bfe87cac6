"""wgmma: types, operand layouts, transpose flags, register operands, input scales."""

from __future__ import annotations

import numpy as np
import pytest
from fragments import BYTES, ENCODE, a_place, pack
from ptx_case import kernel, pointers, run

PTR3, LOAD3 = pointers("a", "b", "c")


def image_k_major(x, es, swizzle):
    """Shared-memory image of a K-major operand tile: rows of ``swizzle`` bytes, 8-row atoms."""
    rows, k = x.shape
    assert k * es == swizzle
    out = np.zeros(rows * swizzle, np.uint8)
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(rows, -1)
    mask = swizzle // 16 - 1
    for r in range(rows):
        shift = {128: r % 8, 64: r % 8 >> 1, 32: r % 8 >> 2}[swizzle] & mask
        for c in range(swizzle):
            out[r * swizzle + (c ^ shift * 16)] = raw[r, c]
    return out


def image_mn_major(x, swizzle=128):
    """Image of a 16-bit operand whose M/N is contiguous: 64-wide atoms of 8 K rows."""
    mn, k = x.shape
    raw = np.ascontiguousarray(x.T).view(np.uint8).reshape(k, mn * 2)
    out = np.zeros(mn * k * 2, np.uint8)
    for kk in range(k):
        for c in range(mn * 2):
            atom, col = divmod(c, swizzle)
            out[atom * k * swizzle + kk * swizzle + (col ^ (kk % 8) * 16)] = raw[kk, c]
    return out


def wgmma_text(name, n, dt, ty, tail, a_from_registers=False, scale_d="%p1"):
    """Copy a shared-memory image in bulk, one wgmma with k = 32 bytes, store the accumulators."""
    k = 32 // BYTES[ty]
    regs = n // 2 // (2 if dt == "f16" else 1)
    cls = "%acc"
    kind = ".f32" if dt == "f32" else ".b32"
    acc = "{" + ", ".join(f"{cls}{i}" for i in range(regs)) + "}"
    poison = "mov.b32 {}, 0x7fffffff;"
    a = "%d10"
    lines = [
        f".reg {kind} %acc<{regs}>;",
        LOAD3,
        """
ld.param.u64 %d8, [da];
ld.param.u64 %d9, [db];
ld.param.u32 %r40, [bytes];
ld.param.u32 %r41, [offset];
mov.u32 %r50, %tid.x;
mov.u32 %r1, buf;
mov.u32 %r2, bar;
setp.eq.u32 %p2, %r50, 0;
@%p2 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p2 fence.mbarrier_init.release.cluster;
bar.sync 0;
@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r40;
@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r40, [%r2];
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
@!%p3 bra wait;
shr.u32 %r3, %r1, 4;
cvt.u64.u32 %d11, %r3;
add.u64 %d10, %d8, %d11;
add.u32 %r4, %r1, %r41;
shr.u32 %r4, %r4, 4;
cvt.u64.u32 %d11, %r4;
add.u64 %d11, %d9, %d11;
setp.ne.u32 %p1, %r50, %r50;
""",
    ]
    lines += [poison.format(f"{cls}{i}") for i in range(regs)]
    if a_from_registers:
        lines += [
            "mul.wide.u32 %d20, %r50, 16;",
            "add.u64 %d20, %d2, %d20;",
            "ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%d20];",
        ]
        a = "{%r10, %r11, %r12, %r13}"
    lines += [
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{dt}.{ty}.{ty} {acc}, {a}, %d11, {scale_d}"
        f"{tail};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        f"mul.wide.u32 %d20, %r50, {regs * 4};",
        "add.u64 %d20, %d3, %d20;",
    ]
    lines += [f"st.global.b32 [%d20 + {4 * i}], {cls}{i};" for i in range(regs)]
    params = PTR3 + ", .param .u64 da, .param .u64 db, .param .u32 bytes, .param .u32 offset"
    outside = ".shared .align 1024 .b8 buf[40960];\n.shared .align 8 .b64 bar;\n"
    return kernel(name, "\n".join(lines), params, outside=outside)


def descriptor(lbo, sbo, mode):
    """Matrix descriptor without its start address."""
    return (lbo >> 4) << 16 | (sbo >> 4) << 32 | mode << 62


def accumulators(raw, n, dt):
    """[128 threads, registers] -> (64, n), by the layout of the PTX ISA."""
    x = raw.view({"f32": np.float32, "f16": np.float16, "s32": np.int32}[dt]).reshape(128, n // 2)
    t, i = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    out = np.empty((64, n))
    out[16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2] = x
    return out


def check_wgmma(text, a, b, dt, ty, image_a, image_b, da, db, frag=None, sign=1):
    data = np.concatenate([image_a, image_b]) if frag is None else image_b
    frag = np.zeros(4, np.uint32) if frag is None else frag
    n = b.shape[0]
    out = np.zeros((128, n // 2 // (2 if dt == "f16" else 1)), np.uint32)
    offset = 0 if len(data) == len(image_b) else len(image_a)
    res = run(text, [data, frag, out, da, db, len(data), offset], block=128)
    assert res.ok, res.report()
    got = accumulators(res.arrays[2], n, dt)
    assert np.array_equal(got, sign * (a @ b.T))


WG = [
    (8, "f32", "bf16"),
    (64, "f32", "f16"),
    (256, "f32", "bf16"),
    (96, "f16", "f16"),
    (32, "f32", "tf32"),
    (64, "s32", "s8"),
    (16, "s32", "u8"),
    (64, "f32", "e4m3"),
    (128, "f32", "e5m2"),
]
TAIL = {"bf16": ", 1, 1, 0, 0", "f16": ", 1, 1, 0, 0", "s8": "", "u8": ""}
WG_TEXTS = {x: wgmma_text(f"wgmma {x}", *x, TAIL.get(x[2], ", 1, 1")) for x in WG}


@pytest.mark.parametrize("case", WG, ids=str)
def test_wgmma_types(case):
    """K-major operands in 32-byte swizzle; scale-d false ignores the poisoned accumulators."""
    n, dt, ty = case
    rng = np.random.default_rng(n)
    low = 0 if ty == "u8" else -3
    k = 32 // BYTES[ty]
    a, b = rng.integers(low, 4, (64, k)), rng.integers(low, 4, (n, k))
    images = [image_k_major(ENCODE[ty](x), BYTES[ty], 32) for x in (a, b)]
    d = descriptor(0, 256, 3)
    check_wgmma(WG_TEXTS[case], a, b, dt, ty, *images, d, d)


T14 = [
    (form, n, ta, tb)
    for form in ("SS", "RS")
    for n in (8, 64, 256)
    for ta in (0, 1)
    for tb in (0, 1)
    if not (form == "RS" and ta)
]


def t14_text(form, n, ta, tb):
    flags = f", 1, 1, {tb}" if form == "RS" else f", 1, 1, {ta}, {tb}"
    return wgmma_text(f"T14 {form} n{n} {ta}{tb}", n, "f32", "bf16", flags, form == "RS")


T14_TEXTS = {x: t14_text(*x) for x in T14}


@pytest.mark.parametrize("case", T14, ids=str)
def test_t14_transpose_flags(case):
    """Asymmetric data, so that a wrong flag or operand order cannot hide."""
    form, n, ta, tb = case
    a = np.arange(64)[:, None] % 7 + 10 * (np.arange(16)[None, :] % 5)
    b = np.arange(n)[:, None] % 5 - 3 * (np.arange(16)[None, :] % 3)
    wide = max(n, 64) if tb else n  # an MN-major atom is 64 wide
    bits = ENCODE["bf16"]
    padded = np.zeros((wide, 16), int)
    padded[:n] = b
    image_a = image_mn_major(bits(a)) if ta else image_k_major(bits(a), 2, 32)
    image_b = image_mn_major(bits(padded)) if tb else image_k_major(bits(b), 2, 32)
    mn, kk = descriptor(16 * 128, 1024, 1), descriptor(0, 256, 3)
    frag = None
    if form == "RS":
        row, col = a_place("bf16", 16, 16)
        frag = np.concatenate([pack(bits(a[16 * w : 16 * w + 16])[row, col], 2) for w in range(4)])
    if n == 64:
        assert not np.array_equal(a @ b.T, (a @ b.T).T)
    check_wgmma(
        T14_TEXTS[case],
        a,
        b,
        "f32",
        "bf16",
        image_a,
        image_b,
        mn if ta else kk,
        mn if tb else kk,
        frag,
    )


def test_input_scales_negate():
    text = wgmma_text("wgmma negated", 8, "f32", "bf16", ", -1, 1, 0, 0")
    a, b = np.arange(1024).reshape(64, 16) % 5, np.arange(128).reshape(8, 16) % 3
    images = [image_k_major(ENCODE["bf16"](x), 2, 32) for x in (a, b)]
    d = descriptor(0, 256, 3)
    check_wgmma(text, a, b, "f32", "bf16", *images, d, d, sign=-1)
