"""`deepasm verify`, `verify --planted` and `emulate`: verdicts, exit codes, envelopes.

The long runs are commands of their own; here two variants, a dozen planted bugs with known
verdicts, and one small kernel show that each command says yes and no where it should.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("jinja2")

from deepasm_torch import cli
from deepasm_torch.kernels.gemm import KERNELS
from deepasm_torch.verify import planted, problem, variants
from deepasm_torch.verify.equivalent import TABLE, argument
from deepasm_torch.verify.mutations import mutations
from deepasm_torch.verify.sites import Text, split

PING = "gemm_sm90_bf16_nt_64x64x64_pingpong"
NARROW = "gemm_sm90_bf16_nt_64x8x64_pingpong_t"
MMA = "gemm_sm80_bf16_nt_64x64x64"
EVERYWHERE = set(range(1 << 16))


def call(capsys, *argv):
    code = cli.main(list(argv))
    said = capsys.readouterr()
    return code, said.out, said.err


def enveloped(capsys, *argv):
    code, out, _ = call(capsys, *argv, "--json")
    message = json.loads(out)
    assert message["exit_code"] == code and message["ok"] is (code == 0)
    return message


def pick(kernel, family, change, statement=""):
    """The one mutation in mind; the first where the text repeats a statement."""
    for m in mutations(kernel, problem.source(kernel)):
        if m.family == family and m.change == change and statement in m.statement:
            return m
    raise AssertionError(f"no mutation {family}: {change} of {statement!r}")


# ---------------------------------------------------------------------- verify
def test_two_variants_are_verified(capsys):
    message = enveloped(capsys, "verify", "-k", "bf16_nt_64x8x64", "--jobs", "1")
    assert message["command"] == "verify" and message["exit_code"] == 0
    assert [v["variant"] for v in message["data"]["variants"]] == [NARROW]
    code, out, _ = call(capsys, "verify", "-k", MMA, "--jobs", "1")
    assert code == 0 and out.splitlines()[-1] == "verified 1 variants, failed 0"
    assert out.startswith(MMA) and " ok 9 runs" in out


def test_a_wrong_kernel_is_found(capsys, monkeypatch):
    """The first product of a tile adds to what the registers held."""
    broken = pick(NARROW, "wgmma", "always accumulates")
    text = Text(problem.source(NARROW)).edited(broken.edits)
    monkeypatch.setattr(problem, "source", lambda name: text)
    problem.program.cache_clear()
    try:
        message = enveloped(capsys, "verify", "-k", NARROW, "--jobs", "1")
    finally:
        problem.program.cache_clear()
    assert message["exit_code"] == 1
    failure = message["data"]["variants"][0]["failures"][0]
    assert failure["kinds"] and failure["report"]
    assert NARROW in message["errors"][0] and failure["schedule"] in message["errors"][0]


@pytest.mark.parametrize("argv", [["-k", "no_such_kernel"], ["--planted", "-k", "nothing like it"]])
def test_nothing_to_do_cannot_run(capsys, argv):
    message = enveloped(capsys, "verify", *argv)
    assert message["exit_code"] == 2 and argv[-1] in message["errors"][0]


def test_the_default_set_covers_every_class():
    chosen = variants.selected()
    for of in (variants.operand_class, variants.tile_class):
        assert {of(k) for k in chosen} == {of(k) for k in KERNELS}
    assert variants.selected() == chosen != variants.selected(seed=1)
    assert len(variants.selected(everything=True)) == len(KERNELS)


def test_runs_are_dealt_by_seed_and_cover_schedules_and_features():
    kernel = KERNELS[0]
    runs = variants.runs(kernel, 3)
    assert runs == variants.runs(kernel, 3) != variants.runs(kernel, 4)
    assert {schedule for _, schedule, _ in runs} == set(problem.SCHEDULES)
    for shape in variants.shapes(kernel):
        assert sum(case == shape for case, _, _ in runs) == 1  # plain, once
    assert len({str(case) for case, _, _ in runs}) == len(runs)


@pytest.mark.parametrize("activation", range(5))
def test_the_reference_is_torch_in_double_precision(activation):
    import torch

    x = np.linspace(-6, 6, 97)
    functions = (
        lambda t: t,
        torch.relu,
        lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        torch.nn.functional.gelu,
        torch.nn.functional.silu,
    )
    want = functions[activation](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(problem.activate(x, activation), want, rtol=1e-12, atol=1e-15)


# ---------------------------------------------------------------------- planted bugs
CAUGHT = [
    (PING, "proxy fence", "drop", ""),
    (PING, "mbarrier wait", "parity always 1", "%full_bar"),
    (PING, "expect_tx", "-16", ""),
    (PING, "wgmma commit", "drop", ""),
    (PING, "descriptor", "half the stride", "%desc_a0"),
    (PING, "barrier", "drop", "%order_mine"),
    (PING, "elect", "half of the warp", ""),
    (PING, "init fence", "drop", ""),
    (MMA, "cp.async wait", "+1", ""),
    (MMA, "warp barrier", "drop", ""),
    (MMA, "matrix move", "address +16", "ldmatrix"),
]
SURVIVE = [
    (PING, "grid launch", "drop", ""),
    (PING, "setmaxnreg", "drop", "setmaxnreg.inc"),
    (PING, "descriptor", "leading offset off by one", "%a_desc"),
]


@pytest.mark.parametrize("site", CAUGHT, ids=lambda s: ": ".join(s[1:3]))
def test_planted_bugs_are_caught(site):
    (outcome,) = planted.run_mutations(([pick(*site)], [EVERYWHERE], 0))
    assert outcome.verdict == "caught" and outcome.how and not outcome.refuted


@pytest.mark.parametrize("site", SURVIVE, ids=lambda s: ": ".join(s[1:3]))
def test_equivalent_mutations_survive_with_an_argument(site):
    (outcome,) = planted.run_mutations(([pick(*site)], [EVERYWHERE], 0))
    assert outcome.verdict == "equivalent" and len(outcome.how) > 40
    assert outcome.runs == len(problem.SCHEDULES)


def test_the_same_change_elsewhere_is_not_excused():
    """The table's row for the narrow case says nothing about operands whose rows run along m."""
    kernel = next(k for k in KERNELS if k.name == PING.replace("_nt_", "_tn_"))
    mutation = pick(kernel.name, "descriptor", "leading offset off by one", "%a_desc")
    assert argument(mutation, kernel) == ""


def test_a_line_that_no_case_runs_is_not_called_caught():
    (outcome,) = planted.run_mutations(([pick(PING, "grid launch", "drop")], [set()], 0))
    assert outcome.verdict == "unreached"


def test_the_study_from_end_to_end(capsys):
    """Its last line is exact, and a missed bug is a finding."""
    argv = [
        "verify",
        "--planted",
        "-k",
        f"{NARROW} include/tma",
        "--count",
        "3",
        "--jobs",
        "1",
    ]
    code, out, err = call(capsys, *argv)
    assert out.splitlines()[-1] == "planted 3 caught 3, clean kernels flagged 0"
    assert code == 0 and "[4/4]" in err


def test_missed_bugs_and_flagged_kernels_are_findings():
    from deepasm_torch.verify.command import _summary

    mutation = pick(PING, "grid launch", "drop")
    caught, missed = (planted.Outcome(mutation, v, "so") for v in ("caught", "missed"))
    assert _summary([caught] * 19 + [missed], [], 0, 1).exit_code == 0
    below = _summary([caught] * 18 + [missed], [], 0, 1)
    assert below.exit_code == 1 and "18 of 19" in below.errors[0]
    assert below.text.splitlines()[-1] == "planted 19 caught 18, clean kernels flagged 0"
    flagged = _summary([caught], ["a kernel"], 0, 1)
    assert flagged.exit_code == 1
    assert flagged.text.splitlines()[-1] == "planted 1 caught 1, clean kernels flagged 1"
    refuted = planted.Outcome(mutation, "caught", "so", 1, "an argument")
    assert "the table says" in _summary([refuted], [], 0, 1).errors[0]


def test_generated_bugs_are_many_and_of_every_kind():
    found = planted.sites()
    assert len(found) > 500
    families = {m.family for m in found}
    assert len(families) > 25 and {row.family for row in TABLE} <= families
    chosen = planted.sample(found, 100, 1)
    assert len(chosen) == 100 == len({str(m) for m in chosen})
    for m in chosen:  # every edit changes the text
        source = problem.source(m.kernel)
        assert Text(source).edited(m.edits) != source


def test_statements_are_split_outside_brackets():
    assert split(" [%dst], [%map, {%a, %b}], [%bar]") == ("[%dst]", "[%map, {%a, %b}]", "[%bar]")
    text = Text("@!%p bra $x; //@ t:1\n$x:\n  fence.proxy.async; //@ t:3\n add.u32 %a, %b, 1; // c")
    s = text.statements[0]
    assert (s.guard, s.op, s.args, s.where) == ("@!%p", "bra", ("$x",), "t:1")
    assert text.statements[2].op == "fence.proxy.async" and text.next(2).op == "add.u32"
    assert text.previous(2) is None  # a label starts a piece


# ---------------------------------------------------------------------- emulate
TWICE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 s) {
  .reg .b32 %i, %n, %t; .reg .b64 %x, %y; .reg .f32 %v, %s; .reg .pred %p;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u32 %n, [n]; ld.param.f32 %s, [s];
  mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t;
  mov.u32 %t, %tid.x; add.u32 %i, %i, %t;
  setp.ge.u32 %p, %i, %n; @%p ret;
  mad.wide.u32 %x, %i, 4, %x; mad.wide.u32 %y, %i, 4, %y;
  ld.global.f32 %v, [%x]; mul.f32 %v, %v, %s; st.global.f32 [%y], %v;
}
"""


@pytest.fixture
def twice(tmp_path):
    path = tmp_path / "twice.ptx"
    path.write_text(TWICE)
    np.save(tmp_path / "x.npy", np.arange(200, dtype=np.float32))
    return path


def launched(path, *more, y="empty:f32:200"):
    x = path.parent / "x.npy"
    args = [f"x=npy:{x}", f"y={y}", "n=u32:200", "s=f32:2"]
    return ["emulate", str(path), "--grid", "2", "--block", "128", *more] + [
        word for a in args for word in ("--arg", a)
    ]


@pytest.mark.parametrize("schedule", problem.SCHEDULES)
def test_emulate_runs_a_file(capsys, twice, schedule):
    out = twice.parent / "y.npy"
    argv = launched(twice, "--out", f"y={out}", "--schedule", schedule, "--entry", "twice")
    code, text, _ = call(capsys, *argv)
    assert code == 0 and text.startswith("no hazards\nwarp instructions")
    np.testing.assert_array_equal(np.load(out), 2 * np.arange(200, dtype=np.float32))


def test_emulate_reports_hazards_and_counters(capsys, twice):
    message = enveloped(capsys, *launched(twice, y="zeros:f32:150"))
    assert message["exit_code"] == 1
    (hazard,) = message["data"]["hazards"]
    assert hazard["kind"] == "oob-global" and hazard["where"] == "twice.ptx:11"
    assert message["data"]["counters"]["bytes"]["global_load"] == 800


def test_emulate_takes_arguments_in_order(capsys, twice):
    argv = [w.replace("x=", "one=").replace("y=", "two=") for w in launched(twice)]
    assert call(capsys, *argv)[0] == 0


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda a: [w.replace("n=u32:200", "n=u32:many") for w in a], "'many' is no u32 value"),
        (lambda a: [w.replace("empty:f32", "empty:f31") for w in a], "unknown type 'f31'"),
        (lambda a: [w.replace("x.npy", "z.npy") for w in a], "cannot load"),
        (lambda a: a[:-2], "4 parameters: x, y, n, s"),
        (lambda a: [*a, "--arg", "n=u32:1"], "given twice"),
        (lambda a: [*a, "--out", "q=f.npy"], "arrays: x, y"),
        (lambda a: [*a, "--grid", "0"], "--grid is '0'"),
        (lambda a: [*a, "--entry", "other"], "no entry 'other'"),
        (lambda a: [w for w in a if w not in ("--block", "128")], "--block is missing"),
        (lambda a: ["emulate", "nowhere.ptx"], "cannot read nowhere.ptx"),
        (lambda a: [w.replace("s=f32:2", "s=zeros:f32:9") for w in a], "no pointer"),
    ],
)
def test_emulate_says_what_is_wrong_with_a_call(capsys, twice, change, said):
    message = enveloped(capsys, *change(launched(twice)))
    assert message["exit_code"] == 2 and said in message["errors"][0]


def test_emulate_names_line_and_column_of_bad_ptx(capsys, twice):
    twice.write_text(TWICE.replace("mul.f32 %v", "mull.f32 %v"))
    message = enveloped(capsys, *launched(twice))
    assert message["exit_code"] == 2 and "twice.ptx:11:27: opcode mull.f32" in message["errors"][0]


def test_array_types_by_name():
    from deepasm_torch.verify.ptx_file import _value

    rng = np.random.default_rng(0)
    x, _, kind = _value("x", "random:bf16:4x8", rng)
    assert (x.shape, x.dtype, kind) == ((4, 8), np.uint16, "bf16")
    x, _, _ = _value("x", "random:s8:100", rng)
    assert x.dtype == np.int8 and x.min() < 0
    assert _value("x", "u16:0xffff", rng)[1] == b"\xff\xff"
    assert _value("x", "s32:-1", rng)[1] == b"\xff" * 4
    assert _value("x", "f64:0.5", rng)[1] == np.float64(0.5).tobytes()
