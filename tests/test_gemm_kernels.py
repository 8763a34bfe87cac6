"""Every GEMM kernel, the planner and the CPU reference against float64 on the registry's problems.

Proves, per kernel: full tiles, tails in each dimension, more tiles than SMs, sums longer than the
pipeline and shorter than one block, batches and broadcasting, every epilogue feature, every output
type, odd output pitch; exact on integers, within the tile bound on random data; no write outside
the output, operands untouched, repeatable bits, no memory beyond the output, one launch.
"""

from __future__ import annotations

import functools

import pytest
import torch
from harness import check_gemm, integers, registry
from harness.devices import multiprocessors
from harness.gemm import Call


def _marks(subject):
    marks = [pytest.mark.gpu]
    if subject.tier:
        marks.append(getattr(pytest.mark, f"sm{subject.tier}"))
    return marks


NAMES = tuple(case.name for case in registry.cases(registry.reference_subjects()[0], 4))


@functools.cache
def _cases(subject, sms: int):
    return {case.name: case for case in registry.cases(subject, sms)}


def _grid(subjects, marked: bool):
    return [
        pytest.param(s, name, id=f"{s.name}-{name}", marks=_marks(s) if marked else ())
        for s in subjects
        for name in NAMES
    ]


def _check(subject, name, device, record_property, native):
    record_property("kernel", subject.name)
    case = _cases(subject, multiprocessors(device))[name]
    common = {
        "variant": subject.variant,
        "tile": subject.tile,
        "native": native,
        "label": subject.name,
    }
    check_gemm(integers(case), device, **common)
    record_property("worst", check_gemm(case, device, **common))


@pytest.mark.parametrize("subject, name", _grid(registry.subjects(), marked=True))
def test_kernel(subject, name, record_property):
    _check(subject, name, "cuda", record_property, native=True)


@pytest.mark.parametrize("subject, name", _grid(registry.planner_subjects(), marked=True))
def test_planner(subject, name, record_property):
    _check(subject, name, "cuda", record_property, native=True)


@pytest.mark.parametrize("subject, name", _grid(registry.reference_subjects(), marked=False))
def test_reference(subject, name, record_property):
    _check(subject, name, "cpu", record_property, native=False)


@pytest.mark.gpu
@pytest.mark.parametrize("subject, name", _grid(registry.reference_subjects(), marked=True))
def test_fallback(subject, name, record_property):
    """The composition that CUDA falls back to obeys the same contract as a kernel."""
    case = _cases(subject, multiprocessors("cuda"))[name]

    def allocate(*args):
        return torch.ops.deepasm._gemm_reference(*args[:-1])

    def out(*args, out):
        out.copy_(allocate(*args))

    for problem in (integers(case), case):
        check_gemm(problem, "cuda", tile=subject.tile, call=Call(allocate, out), label=subject.name)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "subject", [pytest.param(s, id=s.name, marks=_marks(s)) for s in registry.subjects()]
)
def test_nan_and_inf_stay_in_their_row(subject):
    """A NaN in row i of a reaches row i of the output and nothing else; so does an infinity."""
    m, n, k = 2 * subject.bm, subject.bn + 8, 2 * subject.bk + 8
    a = torch.ones(m, k, device="cuda", dtype=subject.dtype)
    a[3, 5], a[subject.bm + 1, k - 1] = float("nan"), float("inf")
    b = torch.ones(k, n, device="cuda", dtype=subject.dtype)
    if subject.a_major == "m":
        a = a.t().contiguous().t()
    if subject.b_major in "k":
        b = b.t().contiguous().t()
    for activation in (0, 1):
        y = torch.ops.deepasm._gemm(
            a, b, None, None, 1.0, 0.0, activation, torch.float32, subject.variant
        )
        want = torch.full((m, n), float(k), device="cuda")
        want[3], want[subject.bm + 1] = float("nan"), float("inf")
        assert torch.equal(y.isnan(), want.isnan())
        assert torch.equal(y.nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "subject",
    [pytest.param(s, id=s.name, marks=_marks(s)) for s in registry.subjects() if s.loads != "any"],
)
def test_a_forced_kernel_refuses_what_it_cannot_read(subject):
    """Naming a kernel whose alignment rule the operands break raises: no fallback, no fault."""
    base = torch.ones(64 * 64 + 1, device="cuda", dtype=subject.dtype)
    a, b = base[1:].view(64, 64), torch.ones(64, 64, device="cuda", dtype=subject.dtype)
    if subject.a_major == "m":
        a = a.t()
    if subject.b_major == "k":
        b = b.t()
    with pytest.raises((RuntimeError, ValueError), match="not a multiple of 16 bytes"):
        torch.ops.deepasm._gemm(a, b, None, None, 1.0, 0.0, 0, None, subject.variant)
    torch.cuda.synchronize()
