"""Parsing: every problem in one run with its place, noise that compilers emit, targets."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_case import kernel, pointers, run

from deepasm_torch import emulator
from deepasm_torch.emulator import PtxError
from deepasm_torch.emulator.program import Program, load

PTR1, LOAD1 = pointers("a")


def problems(text, name="ptx"):
    with pytest.raises(PtxError) as err:
        Program(text, name)
    return err.value


def test_t01_every_unknown_instruction_is_reported_in_one_run():
    text = (
        ".version 8.3\n.target sm_90a\n.address_size 64\n"
        ".visible .entry k() { .reg .b32 %r<3>; frob.b32 %r1, 1;\n"
        "mov.u32 %r2, %tid.x; blah.x %r2;\n ret; }\n"
    )
    err = problems(text, "t01.ptx")
    assert [p[:2] for p in err.problems] == [(4, 40), (5, 22)]
    assert "frob.b32 is not emulated" in str(err) and "t01.ptx:5:22" in str(err)


def test_problems_of_every_kind_are_collected():
    text = kernel(
        "bad",
        "add.u32 %r1, %nope, 1;\nmov.u32 %r2, 08x;\n@%p1 frob;\nadd.u32 %h1, %r1, 1;\n"
        "bra nowhere;\nld.global.u32 %r1, %d1;\nst.global.v2.u32 [%d1], {%r1};",
    )
    lines = [p[0] for p in problems(text).problems]
    first = text.split("\n").index("add.u32 %r1, %nope, 1;") + 1
    assert lines == [first + k for k in range(7)]


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "module level|entry"),
        (".version 8.3 .target sm_90a\n.entry k() { ret;", "missing"),
        (".version 8.3\nhello", "unexpected text"),
        (".version 8.3\n.target sm_90\n.frob 1;", "frob"),
    ],
)
def test_broken_texts_never_crash(text, why):
    try:
        program = Program(text)
    except PtxError as err:
        assert why.split("|")[0] in str(err)
    else:
        with pytest.raises(emulator.EmulatorError):
            program.entry()


T03 = """.version 8.3
.target sm_90a, debug
.address_size 64
.file 1 "a b.cu"
.extern .shared .align 16 .b8 pool[];
.visible .global .align 4 .b8 table[8] = {1, 2, 0xff, 4};
.visible .entry k(.param .u64 .ptr .global .align 16 out)
.maxntid 32, 1, 1
{
.reg .b32 %r<4>; .reg .b64 %rd<3>;
$L__i0:
.loc 1 3 5, function_name $L__i0, inlined_at 1 2 3
.pragma "nounroll";
mov.b32 %r1, 40; { .reg .b32 %r1; mov.b32 %r1, 7; mov.b32 %r3, %r1; }
.loc 1 9 1
ld.param.u64 %rd1, [out]; mov.u64 %rd2, table;
ld.global.u8 %r2, [%rd2+2]; // a comment; with a semicolon
/* and { another } */ add.s32 %r1, %r1, %r2;
add.s32 %r1, %r1, %r3;
st.global.u32 [ %rd1 + 0 ], %r1;
ret;
}
.section .debug_str
{
$L__i1:
.b8 107, 0 // } {
}
.section .debug_loc { .b8 0 }
"""


def test_t03_compiler_noise_is_ignored_and_scopes_shadow():
    res = run(T03, [np.zeros(4, np.uint32)])
    assert res.ok, res.report()
    assert int(res.arrays[0][0]) == 40 + 255 + 7
    ins = next(i for i in load(T03).entry().ins if i.op.startswith("st."))
    assert ins.where == "a b.cu:9"


def test_template_markers_name_the_source_line():
    text = kernel("marker", f"{LOAD1}\nadd.u32 %r1, %r2, 1; //@ sm90/x.ptx.j2:77", PTR1)
    (h,) = run(text, [np.zeros(1, np.uint32)]).hazards
    assert h.where == "sm90/x.ptx.j2:77" and h.kind == "uninit-register" and "%r2" in h.message


def test_numbers_and_constant_expressions():
    body = f"""
{LOAD1}
mov.u32 %r1, 0x10;
mov.u32 %r2, 017;
mov.u32 %r3, 0b101;
mov.u32 %r4, (64*8)+16;
mov.u64 %d5, 4611686293305294848;
mov.u32 %r6, -1;
st.global.v4.u32 [%d1], {{%r1, %r2, %r3, %r4}};
st.global.u64 [%d1 + 16], %d5;
st.global.u32 [%d1 + (3*8)], %r6;
"""
    res = run(kernel("numbers", body, PTR1), [np.zeros(7, np.uint32)])
    assert res.arrays[0].tolist() == [16, 15, 5, 528, 0, 0x40000040, 0xFFFFFFFF]


WGMMA = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %d1, %d2, 1, 1, 1,"
    " 0, 0;"
)
BF16 = (
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3,"
    " %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};"
)


@pytest.mark.parametrize(
    "target, version, code, needs",
    [
        ("sm_120", "8.7", WGMMA, "sm_90a"),
        ("sm_90", "8.0", WGMMA, "sm_90a"),
        ("sm_120", "8.7", "tensormap.replace.tile.rank.global.b1024.b32 [%d1], 1;", "sm_90a"),
        ("sm_75", "8.0", BF16, "sm_80"),
        ("sm_75", "8.0", "cp.async.cg.shared.global [%r1], [%d1], 16;", "sm_80"),
        ("sm_80", "8.0", "cp.async.bulk.commit_group;", "sm_90"),
        ("sm_80", "8.0", "elect.sync _|%p1, 0xffffffff;", "sm_90"),
        ("sm_90a", "7.8", WGMMA, "8.0"),
        ("sm_90a", "7.0", "griddepcontrol.wait;", "7.8"),
    ],
)
def test_t15_instructions_the_target_does_not_have(target, version, code, needs):
    text = (
        f".version {version}\n.target {target}\n.address_size 64\n.visible .entry k() {{\n"
        ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>;\n"
        + code
        + "\nret;\n}"
    )
    (p,) = problems(text).problems
    assert p[0] == 6 and needs in p[2] and code.split(" ")[0].rstrip(";") in p[2]


@pytest.mark.parametrize(
    "code, why",
    [
        ("call (%r1), vprintf, (%d1);", "no body"),
        ("wmma.load.b.sync.aligned.row.m8n32k16.f16 {%r1}, [%d1];", "m8n32k16"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d1, {%f5, %f6}];", "not emulated"),
        ("bar.warp.frob 1;", "not emulated|expected"),
        ("cvt.rn.f32.frob %f1, %r1;", "frob"),
        ("atom.global.frob.u32 %r1, [%d1], 2;", "frob"),
        ("mov.u32 %r1, %made_up;", "made_up"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(code, why):
    text = kernel(f"refused {code[:20]}", code)
    message = str(problems(text))
    assert any(w in message for w in why.split("|")), message


def test_programs_are_compiled_once():
    text = kernel("cached", "mov.u32 %r1, 1;")
    assert load(text) is load(text)


def test_launch_errors_say_what_to_change():
    program = load(kernel("one parameter", "", PTR1))
    for kwargs, words in (
        ({"params": []}, "takes 1 parameters, 0 given"),
        ({"params": [0], "grid": 3, "cluster": 2}, "multiple of the cluster"),
        ({"params": [0], "block": 2048}, "1024"),
        ({"params": [0], "schedule": "frob"}, "round_robin"),
        ({"params": [0], "entry": "x"}, "no entry 'x'"),
        ({"params": [0], "outputs": {"x": None}}, "'x'"),
    ):
        args = {"entry": None, "grid": 1, "block": 32, **kwargs}
        with pytest.raises(emulator.EmulatorError, match=words):
            emulator.launch(
                program,
                args.pop("entry"),
                args.pop("grid"),
                args.pop("block"),
                args.pop("params"),
                **args,
            )


def test_a_kernel_may_end_without_ret():
    memory = emulator.Memory()
    d = memory.alloc("d", np.zeros(32, np.uint32))
    text = (
        ".version 8.0 .target sm_90 .address_size 64\n"
        ".visible .entry k(.param .u64 d) { .reg .b32 %t; .reg .b64 %d;\n"
        "ld.param.u64 %d, [d]; mov.u32 %t, %tid.x; mad.wide.u32 %d, %t, 4, %d;\n"
        "st.global.u32 [%d], %t; }\n"
    )
    result = emulator.launch(Program(text), "k", 1, 32, params=[d], memory=memory)
    assert result.ok, result.report()
    assert (memory["d"] == np.arange(32)).all()
