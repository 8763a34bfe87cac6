"""mma.sync, wmma, ldmatrix and stmatrix against index arithmetic.

The expected layouts are written down here from the PTX ISA, independently of the emulator's.
"""

from __future__ import annotations

import numpy as np
import pytest
from fragments import BYTES, ENCODE, a_place, b_place, c_place, pack
from ptx_case import kernel, pointers, run

from deepasm_torch.emulator import PtxError
from deepasm_torch.emulator.program import Program

PTR2, LOAD2 = pointers("a", "b")
PTR3, LOAD3 = pointers("a", "b", "c")
MMA = [
    ("m16n8k16", "f32", "bf16"),
    ("m16n8k8", "f32", "bf16"),
    ("m16n8k16", "f32", "f16"),
    ("m16n8k8", "f32", "f16"),
    ("m16n8k16", "f16", "f16"),
    ("m16n8k8", "f32", "tf32"),
    ("m16n8k4", "f32", "tf32"),
    ("m16n8k32", "s32", "s8"),
    ("m16n8k16", "s32", "s8"),
    ("m8n8k16", "s32", "s8"),
    ("m16n8k32", "s32", "u8"),
    ("m16n8k32", "f32", "e4m3"),
    ("m16n8k32", "f32", "e5m2"),
    ("m8n8k4", "f64", "f64"),
    ("m16n8k4", "f64", "f64"),
    ("m16n8k8", "f64", "f64"),
    ("m16n8k16", "f64", "f64"),
]


def mma_text(shape, dt, ty):
    m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    es = BYTES[ty]
    wide = 8 if ty == "f64" else 4
    regs = "g" if ty == "f64" else "r"
    na, nb = m * k * es // 32 // wide, k * 8 * es // 32 // wide
    nc = m // 4 // (2 if dt == "f16" else 1)
    cls = "g" if ty == "f64" else "f" if dt == "f32" else "r"
    body = [LOAD3, "mov.u32 %r50, %tid.x;", ".reg .f64 %ga<16>;", ".reg .b32 %ra<16>;"]
    lists = []
    for which, n, base in (("1", na, 0), ("2", nb, na)):
        body += [f"mul.wide.u32 %d20, %r50, {n * wide};", f"add.u64 %d20, %d{which}, %d20;"]
        names = [f"%{regs}a{base + i}" for i in range(n)]
        body += [f"ld.global.b{8 * wide} {x}, [%d20 + {i * wide}];" for i, x in enumerate(names)]
        lists.append(names)
    out = [f"%{cls}{i + 1}" for i in range(nc)]
    init = {
        "f": "mov.f32 {}, 0f3F800000;",
        "r": "mov.b32 {}, 0x3C003C00;" if dt == "f16" else "mov.b32 {}, 1;",
        "g": "mov.f64 {}, 0d3FF0000000000000;",
    }[cls]
    body += [init.format(x) for x in out]
    d, a, b = ("{" + ", ".join(x) + "}" for x in (out, *lists))
    body.append(f"mma.sync.aligned.{shape}.row.col.{dt}.{ty}.{ty}.{dt} {d}, {a}, {b}, {d};")
    body += [f"mul.wide.u32 %d20, %r50, {nc * wide};", "add.u64 %d20, %d3, %d20;"]
    body += [f"st.global.b{8 * wide} [%d20 + {i * wide}], {x};" for i, x in enumerate(out)]
    return kernel(f"mma {shape} {dt} {ty}", "\n".join(body), PTR3)


MMA_TEXTS = {x: mma_text(*x) for x in MMA}


@pytest.mark.parametrize("case", MMA, ids="-".join)
def test_mma_sync(case):
    shape, dt, ty = case
    m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    rng = np.random.default_rng(k)
    low = 0 if ty == "u8" else -3
    a, b = rng.integers(low, 4, (m, k)), rng.integers(low, 4, (k, 8))
    fa = pack(ENCODE[ty](a)[a_place(ty, m, k)], BYTES[ty])
    fb = pack(ENCODE[ty](b)[b_place(ty, k)], BYTES[ty])
    out = np.zeros(
        (32, m // 4),
        np.float64
        if ty == "f64"
        else np.float16
        if dt == "f16"
        else np.int32
        if dt == "s32"
        else np.float32,
    )
    res = run(MMA_TEXTS[case], [fa, fb, out])
    assert res.ok, res.report()
    want = (a @ b + 1)[c_place(m)]
    assert np.array_equal(res.arrays[2].astype(np.float64), want)


def test_one_hot_operands_reach_one_result():
    """T16: the layout is right for every single element, not only on average."""
    text = MMA_TEXTS["m16n8k32", "s32", "s8"]
    for r, c, k in ((0, 0, 0), (15, 7, 31), (8, 3, 17), (7, 4, 4)):
        a, b = np.zeros((16, 32), int), np.zeros((32, 8), int)
        a[r, k], b[k, c] = 5, 7
        fa = pack(ENCODE["s8"](a)[a_place("s8", 16, 32)], 1)
        fb = pack(ENCODE["s8"](b)[b_place("s8", 32)], 1)
        res = run(text, [fa, fb, np.zeros((32, 4), np.int32)])
        got = np.zeros((16, 8), int)
        got[c_place(16)] = res.arrays[2]
        assert got[r, c] == 36 and (np.delete(got.ravel(), r * 8 + c) == 1).all()


@pytest.mark.parametrize(
    "op, why",
    [
        (
            "mma.sync.aligned.m8n8k4.col.row.f32.f16.f16.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7,"
            " %f8}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};",
            "m8n8k4",
        ),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2},"
            " {%r3, %r4}, {%f1, %f2, %f3, %f4}, %r5, 0x0;",
            "sparse",
        ),
        (
            "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7,"
            " %r8}, {%r9, %r10}, {%r1, %r2, %r3, %r4};",
            "s4",
        ),
    ],
    ids=["m8n8k4", "sparse", "s4"],
)
def test_t16_unsupported_tensor_shapes_are_named(op, why):
    with pytest.raises(PtxError, match=why):
        Program(kernel(f"unsupported {why}", op, target="sm_90a"))


WMMA = {}
for _a, _b, _ty, _acc in (
    ("row", "col", "f16", "f32"),
    ("col", "row", "f16", "f16"),
    ("row", "row", "bf16", "f32"),
):
    _n, _k = (8 if _ty == "f16" else 4), (8 if _acc == "f32" else 4)
    _fa, _fb = ("{" + ", ".join(f"%{x}{i}" for i in range(_n)) + "}" for x in ("wa", "wb"))
    _fc = "{" + ", ".join(f"%wc{i}" for i in range(_k)) + "}"
    _types = f"{_acc}.{_acc}" if _ty == "f16" else f"{_acc}.bf16.bf16.{_acc}"
    _c = "b32" if _acc == "f16" else "f32"
    WMMA[_a, _b, _ty, _acc] = kernel(
        f"wmma {_a} {_b} {_ty} {_acc}",
        f"""
{LOAD3}
.reg .b32 %wa<8>;
.reg .b32 %wb<8>;
.reg .{_c} %wc<8>;
mov.u32 %r1, 24;
mov.u32 %r2, 16;
wmma.load.a.sync.aligned.{_a}.m16n16k16.global.{_ty} {_fa}, [%d1], %r1;
wmma.load.b.sync.aligned.{_b}.m16n16k16.global.{_ty} {_fb}, [%d2], %r2;
wmma.load.c.sync.aligned.row.m16n16k16.global.{_acc} {_fc}, [%d3], %r2;
wmma.mma.sync.aligned.{_a}.{_b}.m16n16k16.{_types} {_fc}, {_fa}, {_fb}, {_fc};
wmma.store.d.sync.aligned.col.m16n16k16.global.{_acc} [%d3], {_fc}, %r2;
""",
        PTR3,
    )


@pytest.mark.parametrize("case", WMMA, ids="-".join)
def test_wmma(case):
    layout_a, layout_b, ty, acc = case
    rng = np.random.default_rng(3)
    a, b, c = rng.integers(-3, 4, (3, 16, 16))
    wide = np.zeros((16, 24), int)
    wide[:, :16] = a if layout_a == "row" else a.T
    in_memory = c.astype(np.float32 if acc == "f32" else np.float16)
    res = run(
        WMMA[case],
        [ENCODE[ty](wide), ENCODE[ty](b if layout_b == "row" else b.T.copy()), in_memory],
    )
    assert res.ok, res.report()
    assert np.array_equal(res.arrays[2].T, a @ b + c)


# ---------------------------------------------------------------------------- matrix moves
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix_stmatrix(num, trans):
    regs = "{" + ", ".join(f"%r{10 + k}" for k in range(num)) + "}"
    body = f"""
{LOAD2}
mov.u32 %r50, %tid.x;
mov.u32 %r51, buf;
mul.wide.u32 %d20, %r50, 16;
add.u64 %d21, %d1, %d20;
ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d21];
shl.b32 %r5, %r50, 4;
add.u32 %r5, %r51, %r5;
st.shared.v4.u32 [%r5], {{%r1, %r2, %r3, %r4}};
bar.sync 0;
ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 {regs}, [%r5];
st.shared.v4.u32 [%r5 + 512], {{0, 0, 0, 0}};
bar.sync 0;
stmatrix.sync.aligned.m8n8.x{num}.shared.b16 [%r5 + 512], {regs};
bar.sync 0;
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r5 + 512];
add.u64 %d21, %d2, %d20;
st.global.v4.u32 [%d21], {{%r1, %r2, %r3, %r4}};
"""
    text = kernel(
        f"ldmatrix x{num}{trans}",
        body.replace("{0, 0, 0, 0}", "{%r52, %r52, %r52, %r52}").replace(
            "mov.u32 %r51, buf;", "mov.u32 %r51, buf;\nmov.u32 %r52, 0;"
        ),
        PTR2,
        outside=".shared .align 16 .b8 buf[1024];",
    )
    data = np.arange(256, dtype=np.uint16)
    res = run(text, [data, np.zeros(256, np.uint16)])
    assert res.ok, res.report()
    want = data.reshape(4, 8, 8).copy()
    if trans:
        want = want.transpose(0, 2, 1).copy()
    want[num:] = 0
    assert np.array_equal(res.arrays[1].reshape(4, 8, 8), want)
