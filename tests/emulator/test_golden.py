"""The emulator against an H200: micro-kernels whose outputs were recorded on the chip.

`golden/record.py` makes golden/h200.npz and h200.json; what was not recorded is skipped by name.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from golden.case import CASES, EXACT, Field, Rule
from golden.cases import ORDER
from golden.compare import compare
from golden.emulate import emulate

from deepasm_torch.codegen import find_ptxas
from deepasm_torch.emulator import EmulatorError, PtxError

HERE = Path(__file__).parent / "golden"
ABOUT = json.loads((HERE / "h200.json").read_text()) if (HERE / "h200.json").exists() else {}
RECORDS = ABOUT.get("cases", {})
HOW = "python tests/emulator/golden/record.py on an H200 records it"


@pytest.fixture(scope="module")
def golden():
    """Recorded bytes by "case::buffer"; empty without a file."""
    if not (HERE / "h200.npz").exists():
        return {}
    return np.load(HERE / "h200.npz")


def run(case, uniform):
    try:
        return emulate(case, uniform=uniform)
    except (EmulatorError, PtxError) as err:
        if case.refused and case.refused in str(err):
            pytest.skip(f"the emulator refuses: {str(err).splitlines()[-1]}")
        raise


def check(case, golden, uniform):
    record = RECORDS.get(case.name)
    status = record["status"] if record else None
    if status == "encode":  # the driver refused the tensor map
        with pytest.raises(EmulatorError):
            emulate(case)
        return
    if case.name.startswith("encode:"):
        if record is None:
            pytest.skip(f"no golden file: {HOW}")
        pytest.fail(f"the driver accepts this tensor map: {record}")
    outcome = run(case, uniform)
    problem = outcome.problem
    if not problem and case.fault != outcome.faulted:
        problem = f"fault: {outcome.faulted}, expected {case.fault}"
    if problem and case.differs:
        pytest.xfail(case.differs)
    assert not problem, problem
    if record is None:
        pytest.skip(f"no golden file: {HOW}")
    assert record["fingerprint"] == case.fingerprint(), f"the case has changed: {HOW}"
    if case.fault:
        assert status == "fault", record
        return
    assert status == "ok", record
    recorded = {n: golden[f"{case.name}::{n}"] for n in case.outputs}
    wrong = compare(case, recorded, outcome.outputs)
    if wrong and case.differs:
        pytest.xfail(case.differs)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [c.name for c in ORDER])
def test_matches_the_chip(name, golden):
    check(CASES[name], golden, False)


@pytest.mark.parametrize("name", [c.name for c in ORDER if c.uniform])
def test_uniform_values_match_the_chip(name, golden):
    """The same results from the paths that handle one value per warp."""
    check(CASES[name], golden, True)


def test_every_recording_belongs_to_a_case(golden):
    assert not set(RECORDS) - set(CASES), "recorded cases that no longer exist"
    kept = {k.rsplit("::", 1)[0] for k in getattr(golden, "files", [])}
    assert kept <= set(RECORDS)


def test_recordings_are_small_and_say_where_they_are_from():
    if not RECORDS:
        pytest.skip(f"no golden file: {HOW}")
    assert ABOUT["compute_capability"] == "9.0"
    assert (HERE / "h200.npz").stat().st_size < 1 << 20


def test_a_wrong_bit_is_noticed():
    """The comparison itself: exact fields see one bit, near ones see more than their bound."""
    case = CASES["add sub mul f32, denormals kept"]
    outputs = emulate(case).outputs
    changed = {k: v.copy() for k, v in outputs.items()}
    assert not compare(case, changed, outputs)
    changed["out"][8] ^= 1
    assert len(compare(case, changed, outputs)) == 2
    x = np.array([1, 2, np.nan, np.inf, 3], np.float32)
    y = np.array([1, 2.25, np.nan, np.inf, np.nan], np.float32)
    for bound, lines in ((0.25, 2), (0.2, 3)):
        field = Field("near", "out", 0, "float32", 5, Rule("near", 0, bound))
        near = type(case)("near", "", {}, [], [field])
        got = compare(near, {"out": x.view(np.uint8)}, {"out": y.view(np.uint8)})
        assert len(got) == lines
    assert EXACT.kind == "exact"


def _ptxas():
    try:
        return find_ptxas()
    except FileNotFoundError:
        return None


@pytest.mark.skipif(_ptxas() is None, reason="no ptxas found")
@pytest.mark.parametrize("name", [c.name for c in ORDER])
def test_ptxas_accepts(name, tmp_path):
    source = tmp_path / "k.ptx"
    source.write_text(CASES[name].text)
    done = subprocess.run(
        [_ptxas(), "-arch=sm_90a", "-O0", source, "-o", tmp_path / "k.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
