"""Instruction families against hand-computed values and independent NumPy expectations."""

from __future__ import annotations

import alu_values
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


# ---------------------------------------------------------------------------- ALU
def value_kernel(name, rows):
    """A kernel that runs every row twice: uniform operands, and operands loaded per lane."""
    body = [LOAD2, "mov.u32 %r50, %tid.x;", "mul.wide.u32 %d20, %r50, 8;"]
    body += ["add.u64 %d21, %d1, %d20;", "add.u64 %d22, %d2, %d20;"]
    for k, (code, classes, inputs, _) in enumerate(rows):
        regs = {"d": f"%{classes[0]}1"}
        for n, cls in enumerate(classes[1:]):
            regs["abc"[n]] = f"%{cls}{n + 2}"
        for variant in range(2):
            for n, (cls, value) in enumerate(zip(classes[1:], inputs)):
                reg, w = regs["abc"[n]], WIDTH[cls]
                if variant:
                    body.append(f"ld.global.b{w} {reg}, [%d21 + {(3 * k + n) * 256}];")
                else:
                    body.append(f"mov.b{w} {reg}, {value:#x};")
            body.append(code.format(**regs))
            out = f"[%d22 + {(2 * k + variant) * 256}]"
            if classes[0] == "p":
                body += ["selp.u32 %r1, 1, 0, %p1;", f"st.global.b32 {out}, %r1;"]
            else:
                body.append(f"st.global.b{WIDTH[classes[0]]} {out}, {regs['d']};")
    return kernel(name, "\n".join(body), PTR2)


VALUE_TEXTS = {name: value_kernel(name, rows) for name, rows in alu_values.GROUPS.items()}


@pytest.mark.parametrize("name", VALUE_TEXTS)
def test_values(name):
    rows = alu_values.GROUPS[name]
    data = np.zeros((len(rows), 3, 32), np.uint64)
    for k, row in enumerate(rows):
        for n, x in enumerate(row[2]):
            data[k, n] = x
    res = run(VALUE_TEXTS[name], [data, np.zeros((len(rows), 2, 32), np.uint64)])
    assert res.ok, res.report()
    wrong = []
    for k, (code, _, inputs, want) in enumerate(rows):
        for variant, what in enumerate(("uniform", "per lane")):
            got = res.arrays[1][k, variant]
            if (got != want).any():
                args = ", ".join(f"{x:#x}" for x in inputs)
                wrong.append(f"{code} ({args}) {what}: {int(got[0]):#x}, expected {want:#x}")
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------------------- small programs
def out32(name, body, expect, args=(), n=32, **options):
    """Run a body that leaves its result in %r1 of each lane; compare with ``expect``."""
    build = {k: options.pop(k) for k in ("outside", "directives", "target") if k in options}
    text = kernel(name, f"{LOAD1}\n{ADDRESS}\n{body}\nst.global.u32 [%d21], %r1;", PTR1, **build)
    block = options.pop("block", n)
    res = run(text, [np.zeros(n, np.uint32), *args], block=block, **options)
    assert res.ok, res.report()
    assert np.array_equal(res.arrays[0], np.asarray(expect, np.uint32)), res.arrays[0]
    return res


def test_t10_immediates_and_mixed_operands_in_packs():
    text = kernel(
        "T10",
        f"""
{LOAD1}
mov.u32 %r5, 9;
mov.b64 %d5, {{1, 2}};
mov.b64 {{%r1, %r2}}, %d5;
mov.b16 %h1, 0xBEEF;
mov.b32 %r3, {{%h1, 0x7}};
mov.b64 {{_, %r4}}, %d5;
st.global.u64 [%d1], %d5;
st.global.v4.u32 [%d1 + 16], {{%r1, %r2, %r3, %r4}};
mov.f32 %f1, 0f40000000;
st.global.v4.f32 [%d1 + 32], {{0f00000000, %f1, %f1, 0f3F800000}};
""",
        PTR1,
    )
    res = run(text, [np.zeros(12, np.uint32)])
    assert res.ok, res.report()
    want = [1, 2, 0, 0, 1, 2, 0x0007BEEF, 2, 0, 0x40000000, 0x40000000, 0x3F800000]
    assert res.arrays[0].tolist() == want


def test_t10_a_misaligned_vector_store_is_reported_and_not_performed():
    body = f"{LOAD1}\nmov.f32 %f1, 0f40000000;\nst.global.v4.f32 [%d1 + 4], {{%f1, %f1, %f1, %f1}};"
    text = kernel("T10 misaligned", body, PTR1)
    res = run(text, [np.zeros(12, np.uint32)])
    assert [h.kind for h in res.hazards] == ["misaligned"]
    assert not res.arrays[0].any()


def test_t11_ldu_behaves_as_ld_global():
    out32("T11", "ldu.global.u32 %r1, [%d21];\nadd.u32 %r1, %r1, 3;", np.full(32, 3))


def test_carry_chains():
    body = """
mov.u32 %r2, 0xffffffff;
mov.u32 %r3, 0xffffffff;
add.cc.u32 %r4, %r2, 1;
addc.cc.u32 %r5, %r3, %r50;
addc.u32 %r6, 0, 0;
sub.cc.u32 %r7, 0, 1;
subc.u32 %r8, 5, 0;
mad.lo.cc.u32 %r9, %r2, 2, 4;
madc.hi.u32 %r10, %r2, 2, 0;
shl.b32 %r5, %r5, 8;
shl.b32 %r6, %r6, 4;
add.u32 %r1, %r4, %r5;
add.u32 %r1, %r1, %r6;
add.u32 %r1, %r1, %r8;
shl.b32 %r10, %r10, 20;
add.u32 %r1, %r1, %r10;
shl.b32 %r9, %r9, 24;
add.u32 %r1, %r1, %r9;
"""
    # low word 0 carries; 0xffffffff + lane + 1 = lane with carry 1; 5 - 0 - borrow = 4;
    # 0xffffffff * 2 + 4 = 2 with carry, high part 1 + 1 = 2
    out32("carry", body, 256 * LANE + 16 + 4 + (2 << 20) + (2 << 24))


def test_local_memory_and_generic_addresses():
    body = """
.local .align 8 .b8 stack[64];
mov.u64 %d3, stack;
cvta.local.u64 %d4, %d3;
shl.b32 %r2, %r50, 1;
st.local.u32 [%d3 + 8], %r2;
and.b32 %r3, %r50, 7;
mul.wide.u32 %d5, %r3, 4;
add.u64 %d6, %d4, %d5;
st.u32 [%d4 + 8], %r50;
ld.local.u32 %r1, [%d3 + 8];
mov.u32 %r4, buf;
cvt.u64.u32 %d7, %r4;
cvta.shared.u64 %d7, %d7;
isspacep.shared %p1, %d7;
add.u64 %d7, %d7, %d20;
st.u32 [%d7], %r1;
ld.u32 %r5, [%d7];
selp.u32 %r1, %r5, 0, %p1;
"""
    out32("local", body, LANE, outside=".shared .align 8 .b8 buf[128];")


def test_functions_are_expanded_at_their_calls():
    outside = """
.func (.param .b32 back) twice(.param .b32 x)
{
.reg .b32 %r<4>;
.reg .pred %p<2>;
ld.param.b32 %r1, [x];
setp.gt.u32 %p1, %r1, 15;
add.u32 %r2, %r1, %r1;
@%p1 bra big;
st.param.b32 [back], %r2;
ret;
big:
st.param.b32 [back], 1000;
ret;
}
"""
    body = """
{
.param .b32 p0;
st.param.b32 [p0], %r50;
.param .b32 q0;
call.uni (q0), twice, (p0);
ld.param.b32 %r1, [q0];
}
{
.param .b32 p0;
st.param.b32 [p0], %r1;
.param .b32 q0;
call.uni (q0), twice, (p0);
ld.param.b32 %r1, [q0];
}
"""
    once = np.where(LANE > 15, 1000, 2 * LANE)
    out32("call", body, np.where(once > 15, 1000, 2 * once), outside=outside)


def test_branch_tables():
    body = """
and.b32 %r2, %r50, 3;
bra go;
ts: .branchtargets one, two, three, one;
go:
brx.idx %r2, ts;
one:
mov.u32 %r1, 10;
bra end;
two:
mov.u32 %r1, 20;
bra end;
three:
mov.u32 %r1, 30;
end:
"""
    out32("brx", body, np.array([10, 20, 30, 10])[LANE & 3])


def test_divergent_loops_meet_again():
    body = """
mov.u32 %r1, 0;
mov.u32 %r2, %r50;
loop:
setp.eq.u32 %p1, %r2, 0;
@%p1 bra done;
add.u32 %r1, %r1, %r2;
sub.u32 %r2, %r2, 1;
bra loop;
done:
shfl.sync.idx.b32 %r1, %r1, %r50, 31, 0xffffffff;
"""
    out32("loop", body, LANE * (LANE + 1) // 2)


@pytest.mark.parametrize("op, factor", [("mad.lo.u32", 64), ("mad.lo.s32", -64)])
def test_a_uniform_product_wraps_before_a_lane_is_added(op, factor):
    """The product of two uniform values is a Python integer, the sum an array of 32 bits."""
    body = f"mov.u32 %r3, %laneid;\nmov.u32 %r2, 0xfffffff0;\n{op} %r1, %r2, {factor}, %r3;"
    want = (0xFFFFFFF0 * factor + LANE.astype(object)) % (1 << 32)
    out32(f"{op} of a uniform product", body, want.astype(np.uint32))
