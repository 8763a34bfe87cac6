"""The linter: every rule fires on its asset and not on the clean twin; commands and their envelope.

An asset is a PTX text: lines that end in ``//-`` exist in the faulty text only, lines that start
with ``//+`` in the clean twin only, ``!`` marks the lines a finding must name.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from deepasm_torch import analysis, cli
from deepasm_torch.codegen import Assembler, find_ptxas
from deepasm_torch.kernels import ALL
from deepasm_torch.lint import HINT, RULES, Tools, lint_kernel, lint_text

ASSETS = Path(__file__).parent / "lint"
FOREIGN = Path(__file__).parent / "emulator" / "ptx"


@pytest.fixture(scope="module")
def tools():
    try:
        return Tools(Assembler(find_ptxas()), analysis.find_nvdisasm())
    except FileNotFoundError as error:
        pytest.skip(str(error))


def clean(text: str) -> str:
    kept = [line for line in text.split("\n") if not re.search(r"//-", line)]
    return "\n".join(re.sub(r"^(\s*)//\+ ?", r"\1", line) for line in kept)


def options(text: str) -> dict:
    found = re.search(r"^// lint: (\w+)=(\d+)", text, re.MULTILINE)
    return {found[1]: int(found[2])} if found else {}


def test_every_rule_has_an_asset_and_a_description():
    assert {p.stem for p in ASSETS.glob("*.ptx")} == set(RULES)
    manual = Path(cli.__file__).parents[1] / "docs" / "lint.md"
    if not manual.is_file():
        pytest.skip("docs/ is not beside the package: this is an installed copy")
    described = set(re.findall(r"^### `([a-z0-9-]+)`", manual.read_text(), re.MULTILINE))
    assert described == set(RULES)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_rule(rule, tools):
    text = (ASSETS / f"{rule}.ptx").read_text()
    expected = {n for n, line in enumerate(text.split("\n"), 1) if re.search(r"//-? ?!", line)}
    assert expected
    # the disassembler takes most of the time: only where the rule looks at machine code
    fast = tools if RULES[rule].scope == "sass" else Tools(tools.assembler)
    bad = lint_text(text, fast, name="asset.ptx", **options(text))
    found = [f for f in bad.findings if f.rule == rule]
    assert {f.line for f in found} == expected, [str(f) for f in bad.findings]
    for f in found:
        assert f.severity == RULES[rule].severity and f.where == f"asset.ptx:{f.line}"
        assert f.message and f.advice and str(f).startswith(f"{f.where}: {f.severity} [{rule}]")
    good = lint_text(clean(text), tools, name="asset.ptx", **options(text))
    assert [str(f) for f in good.findings] == [] and good.notes == []
    off = lint_text(text, fast, disabled=frozenset([rule]), **options(text))
    assert rule not in {f.rule for f in off.findings}


# One kernel of each structure; the whole table is what `deepasm lint` without a file checks.
STRUCTURES = {(k.template, k.schedule, k.d_major, k.bn > 64): k for k in reversed(ALL)}


@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in STRUCTURES.values()])
def test_shipped_kernels_are_clean(kernel, tools):
    report = lint_kernel(kernel, tools)
    assert [str(f) for f in report.findings] == []
    assert report.notes == []


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem) for p in sorted(FOREIGN.glob("*.ptx"))]
)
def test_compiled_kernels_get_no_false_alarm(path, tools):
    report = lint_text(path.read_text(), tools, name=path.name)
    assert [str(f) for f in report.findings if f.severity != HINT] == []
    assert report.entries >= 1 and report.notes == []


HEADER = (
    ".version {} .target {} .address_size 64\n"
    ".visible .entry k() {{ .reg .b32 %r<8>; .reg .b64 %d;\n"
)


@pytest.mark.parametrize(
    ("version", "target", "body", "words"),
    [
        ("8.7", "sm_120", "wgmma.fence.sync.aligned;", "needs .target sm_90a, the"),
        ("8.0", "sm_90", "wgmma.fence.sync.aligned;", "the text says sm_90"),
        ("7.4", "sm_75", "cp.async.wait_all;", "cp.async.wait_all needs .target sm_80 or later"),
        ("7.4", "sm_75",
         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r0,%r1,%r2,%r3},"
         " {%r4,%r5,%r6,%r7}, {%r0,%r1}, {%r0,%r1,%r2,%r3};", "needs .target sm_80 or later"),
        ("7.0", "sm_80", "cp.async.bulk.commit_group;", "needs .target sm_90 or later"),
        ("7.8", "sm_90", "cp.async.bulk.commit_group;", "needs .version 8.0 or later"),
        ("7.0", "sm_80", "createpolicy.fractional.L2::evict_last.b64 %d, 1.0;",
         "needs .version 7.4"),
        ("8.7", "sm_120", "tensormap.replace.tile.rank.global.b1024.b32 [%d], 1;", "sm_90a"),
        ("8.6", "sm_90a", "tcgen05.wait::ld.sync.aligned;", "needs .target sm_100a"),
    ],
)  # fmt: skip
def test_unavailable_instructions_are_named_before_ptxas(tools, version, target, body, words):
    text = HEADER.format(version, target) + body + "\nret; }\n"
    report = lint_text(text, tools)
    found = [f for f in report.findings if f.rule == "target"]
    assert len(found) == 1 and found[0].line == 3 and words in found[0].message


def test_arch_is_checked_against_the_text(tools):
    tools = Tools(tools.assembler)
    text = HEADER.format("8.0", "sm_90a") + "wgmma.fence.sync.aligned; ret; }\n"
    found = [f for f in lint_text(text, tools, targets=("sm_120",)).findings if f.rule == "target"]
    assert "sm_90a cannot be assembled for sm_120" in found[0].message
    plain = HEADER.format("7.0", "sm_80") + "ret; }\n"
    many = lint_text(plain, tools, targets=("sm_80", "sm_90", "sm_120"))
    assert {f.rule for f in many.findings} <= {"unread-register"}


def test_findings_name_the_template_line(tools):
    text = HEADER.format("7.0", "sm_80") + "add.u32 %r0, %r1, 1; //@ sm80/mine.ptx.j2:77\nret; }\n"
    found = {f.rule: f for f in lint_text(text, tools).findings}
    assert found["unwritten-register"].where == "sm80/mine.ptx.j2:77"
    lines = '.file 1 "mine.cu"\n.loc 1 9 1\nadd.u32 %r0, %r1, 1;\nret; }\n'
    text = HEADER.format("7.0", "sm_80") + lines
    assert {f.where for f in lint_text(text, tools).findings if f.rule == "unwritten-register"} == {
        "mine.cu:9"
    }


def test_planted_faults_in_a_shipped_kernel(tools):
    from deepasm_torch.codegen import render

    kernel = next(k for k in ALL if k.d_major == "m")
    inc = "setmaxnreg.inc.sync.aligned.u32 "
    text = render(kernel, markers=True)

    def rules(old, new, count=1):
        assert old in text, old
        report = lint_text(
            text.replace(old, new, count), Tools(tools.assembler), max_regs=kernel.max_regs
        )
        return {f.rule for f in report.findings if f.severity != HINT}

    assert "setmaxnreg-entry" in rules(".minnctapersm 1", "")
    assert "setmaxnreg-pool" in rules("setmaxnreg.inc.sync.aligned.u32 232", inc + "240")
    assert "mbarrier-fence" in rules("fence.mbarrier_init.release.cluster;", "")
    assert "wgmma-wait" in rules("wgmma.commit_group.sync.aligned;", "", -1)
    assert "wgmma-fence" in rules("wgmma.fence.sync.aligned;", "", -1)
    by_thread = "setp.eq.u32 %elected, %thread, 0;"
    assert "tma-elect" in rules("elect.sync _|%elected, 0xffffffff;", by_thread)
    assert "bulk-wait" in rules("cp.async.bulk.wait_group.read", "mov.u32 %t0, %t0; //", -1)
    assert rules("bar.sync 0;", "") >= {"mbarrier-fence"}


# ---------------------------------------------------------------------------------- the command


def call(capsys, *argv):
    code = cli.main(["lint", *map(str, argv), "--json"])
    message = json.loads(capsys.readouterr().out)
    assert message["exit_code"] == code and message["command"] == "lint"
    return message


def test_command_on_files(capsys, tools):
    bad = ASSETS / "unwritten-register.ptx"
    message = call(capsys, bad, FOREIGN / "triton_matmul_sm80.ptx")
    assert message["exit_code"] == 1 and len(message["errors"]) == 1
    assert f"{bad}:11: error [unwritten-register]" in message["errors"][0]
    assert message["data"]["texts"] == 2 and message["data"]["nvdisasm"]
    message = call(capsys, bad, "--disable", "unwritten-register,unread-register")
    assert message["exit_code"] == 0 and message["data"]["findings"] == []


def test_command_on_shipped_kernels(capsys, tools):
    started = time.monotonic()
    message = call(capsys, "-k", "gemm_sm90_bf16_nt_64x8x64")
    assert message["exit_code"] == 0 and message["errors"] == []
    assert message["data"]["texts"] == 1 and message["data"]["rules"] == len(RULES)
    assert message["data"]["seconds"] <= time.monotonic() - started
    message = call(capsys, "-k", "gemm_sm80_bf16_any", "--arch", "sm_86")
    assert message["exit_code"] == 0 and message["data"]["texts"] == 1


def test_command_lists_rules(capsys, monkeypatch):
    monkeypatch.setenv("DEEPASM_PTXAS", "/nowhere/ptxas")  # needs none
    message = call(capsys, "--list-rules")
    assert message["exit_code"] == 0
    assert {r["id"]: r["severity"] for r in message["data"]["rules"]} == {
        r.id: r.severity for r in RULES.values()
    }


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/nowhere/kernel.ptx"], "No such file"),
        ([Path(__file__)], "is not PTX text"),
        (["--disable", "nonsense"], "no such rule; the rules are"),
        (["--arch", "sm_1"], "does not know this target"),
        (["-k", "nonsense"], "matches none of the"),
        (["--max-regs", "8"], "is for files"),
        (["-k", "sm90", "--arch", "sm_80"], "can be assembled for sm_80"),
    ],
)
def test_command_that_cannot_run(capsys, tools, argv, words):
    message = call(capsys, *argv)
    assert message["exit_code"] == 2 and words in message["errors"][0]


def test_without_ptxas(capsys, monkeypatch):
    monkeypatch.setenv("DEEPASM_PTXAS", "/nowhere/ptxas")
    message = call(capsys, ASSETS / "version.ptx")
    assert message["exit_code"] == 2 and "the linter needs ptxas" in message["errors"][0]


def test_without_nvdisasm_the_skip_is_said(capsys, monkeypatch, tools):
    def missing():
        raise FileNotFoundError("no nvdisasm found: install the wheel nvidia-cuda-nvdisasm")

    monkeypatch.setattr(analysis, "find_nvdisasm", missing)
    message = call(capsys, ASSETS / "cache-hint.ptx")
    assert message["exit_code"] == 0 and message["data"]["nvdisasm"] is None
    assert any("rules on machine code were skipped" in n for n in message["data"]["notes"])
    assert cli.main(["lint", str(ASSETS / "cache-hint.ptx")]) == 0
    assert "note: rules on machine code were skipped" in capsys.readouterr().out


def test_text_that_the_parser_does_not_know_is_a_note(tools):
    text = (
        ".version 7.0 .target sm_80 .address_size 64\n.visible .entry k(.param .u64 f) {\n"
        ".reg .b64 %f; ld.param.u64 %f, [f];\n"
        "p: .callprototype _ () ;\ncall %f, (), p;\nret; }\n"
    )
    report = lint_text(text, tools)
    assert report.findings == [] or {f.severity for f in report.findings} <= {HINT}
    assert len(report.notes) == 1 and "rules did not see it" in report.notes[0]


@pytest.mark.parametrize("text", ["", "int main() {}", ".version 8.0\n.target sm_90\n{{{", "\x00"])
def test_garbage_is_a_finding_not_a_crash(tools, text):
    lint_text(text, tools)


# ------------------------------------------------------------------------------------- analysis


def test_report_of_several_entries():
    said = """\
ptxas info    : 0 bytes gmem
ptxas info    : (C7519) warpgroup.arrive is injected in around line 11 by compiler in function 'b'
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 34 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Used 168 registers
"""
    log = analysis.assembly.parse_log(said, "sm_90a")
    a = log.resources["a"]
    assert (a.registers, a.stack_bytes, a.spill_bytes, a.barriers, a.static_smem) == (
        34, 8, 28, 1, 128,
    )  # fmt: skip
    assert log.resources["b"].registers == 168
    assert [(n.code, n.function, n.line) for n in log.notes] == [("C7519", "b", 11)]


def test_disassembly(tools):
    text = clean((ASSETS / "cache-hint.ptx").read_text())
    made = analysis.assemble(text, "sm_80", tools.assembler)
    assert made.ok and made.resources["k"].registers > 0
    code = analysis.disassemble(made.cubin, tools.nvdisasm)["k"]
    load = next(i for i in code if i.name == "LDG")
    assert "NA" in load.opcode.split(".") and load.offset % 16 == 0 and load.operands
    assert any(i.name == "EXIT" for i in code)
    with pytest.raises(RuntimeError, match="cannot disassemble"):
        analysis.disassemble(b"not a cubin", tools.nvdisasm)
