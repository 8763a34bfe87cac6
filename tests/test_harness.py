"""The harness itself: it passes a right implementation and catches each kind of wrong one.

Every check of `check_gemm` is tried on a fault that only that check can see, on the CPU, so a test
of the suite that is green means something.
"""

from __future__ import annotations

import re

import pytest
import torch
from harness import GemmCase, buffers, check_gemm, compare, integers, registry
from harness.gemm import Call
from harness.problem import allocate, allocate_out

from deepasm_torch import planning

CASE = GemmCase(
    "fault",
    40,
    72,
    33,
    torch.bfloat16,
    bias="in",
    c="f32",
    alpha=0.5,
    beta=1.0,
    activation=1,
    pad=3,
    offset=2,
    out_pad=5,
)


def right(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
    return compare.epilogue(
        a.float() @ b.float(),
        torch.float32,
        bias=bias,
        c=c,
        alpha=alpha,
        beta=beta,
        activation=activation,
    ).to(out_dtype)


def faulty(change=None, after=None, rounded=None) -> Call:
    """`right` with `change(result)` applied, then `after(args, out)`."""

    def allocate(*args):
        y = (rounded or right)(*args)
        if change:
            change(y)
        return y

    def out(*args, out):
        out.copy_(allocate(*args))
        if after:
            after(args, out)

    return Call(allocate, out)


def check(call, case=CASE):
    return check_gemm(case, "cpu", tile=(16, 32), call=call, label="harness")


@pytest.mark.parametrize("case", [CASE, integers(CASE)], ids=["normal", "int"])
def test_accepts_a_right_implementation(case):
    assert check(faulty(), case) < 1.0


def test_catches_one_wrong_element_and_names_its_tile():
    with pytest.raises(
        AssertionError, match=r"1 of 2880 elements.*\n.*tile \(2, 1\); element \(33, 40\)"
    ) as error:
        check(faulty(lambda y: y[33, 40].add_(y[33, 40].abs() * 0.25 + 20.0)))
    assert "DEEPASM_TEST_SEED=" in str(error.value)


def test_catches_an_integer_off_by_one():
    with pytest.raises(AssertionError, match="wrong values"):
        check(faulty(lambda y: y[0, 0].add_(1.0)), integers(CASE))


def test_catches_a_sum_rounded_to_the_output_type_first():
    def twice_rounded(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
        partial = (a.float()[:, :16] @ b.float()[:16]).bfloat16() + (
            a.float()[:, 16:] @ b.float()[16:]
        ).bfloat16()
        return compare.epilogue(
            partial, torch.float32, bias=bias, c=c, alpha=alpha, beta=beta, activation=activation
        ).to(out_dtype)

    case = GemmCase("rounding", 64, 64, 64, torch.bfloat16, out_dtype=torch.float32)
    with pytest.raises(AssertionError, match="times its bound"):
        check(faulty(rounded=twice_rounded), case)


def test_catches_unwritten_elements():
    def skip_last_row(args, out):
        buffers.bits(out)[-1].fill_(0x7FE5)

    with pytest.raises(AssertionError, match="72 of 2880 output elements were never written"):
        check(faulty(after=skip_last_row))


@pytest.mark.parametrize("shift", [-1, 72])
def test_catches_a_write_beside_the_output(shift):
    def write_beside(args, out):
        torch.as_strided(out, (1,), (1,), out.storage_offset() + shift).fill_(0.0)

    with pytest.raises(AssertionError, match=re.escape(f"the first lies at element {shift:+d} ")):
        check(faulty(after=write_beside))


@pytest.mark.parametrize("index, name", list(enumerate(("a", "b", "bias", "c"))))
def test_catches_a_modified_operand(index, name):
    calls = []

    def modify(args, out):
        calls.append(None)
        if len(calls) == 2:  # after the values have been compared
            args[index].view(-1)[0].add_(1.0) if index == 2 else args[index][0, 0].add_(1.0)

    result = None

    def first(*args):
        nonlocal result
        result = right(*args) if result is None else result
        return result.clone()

    with pytest.raises(
        AssertionError, match=f"operand {name}, or the memory around it, was modified"
    ):
        check(faulty(after=modify, rounded=first))


def test_catches_results_that_differ_between_calls():
    calls = []

    def drift(y):
        calls.append(None)
        y[0, 0] = y[0, 0] * (1.0 if len(calls) == 1 else 1.0 + 2**-7)

    with pytest.raises(AssertionError, match="other bits"):
        check(
            faulty(drift),
            GemmCase("drift", 32, 32, 16, torch.bfloat16, kind="int", c="in", alpha=1.0, beta=64.0),
        )


def test_catches_an_output_of_another_type():
    good = faulty()
    with pytest.raises(
        AssertionError, match=r"allocated torch.float32 .*, expected contiguous torch.bfloat16"
    ):
        check(Call(lambda *args: good.allocate(*args).float(), good.out))


def test_catches_a_read_past_the_logical_row():
    """Operands lie in NaN: reading one column too many shows even when it is multiplied by zero."""

    def reads_slack(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
        wide = torch.as_strided(a, (a.size(0), a.size(1) + 1), a.stride(), a.storage_offset())
        zero = torch.zeros(1, b.size(1))
        return right(
            wide, torch.cat([b.float(), zero]), bias, c, alpha, beta, activation, out_dtype, variant
        )

    with pytest.raises(AssertionError, match="wrong values"):
        check(faulty(rounded=reads_slack))


def test_ulp_is_the_spacing_of_the_type():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0, 2.0**-14, 2.0**-13, 60000.0], dtype=dtype)
        above = (
            torch.nextafter(x.float(), torch.tensor(torch.inf))
            if dtype is torch.float32
            else ((x.view(torch.int16) + 1).view(dtype))
        )
        assert torch.equal(compare.ulp(x, dtype), above.double() - x.double())


ALL = registry.subjects() + registry.planner_subjects() + registry.reference_subjects()


@pytest.mark.parametrize("subject", ALL, ids=lambda s: s.name)
def test_each_kernel_meets_every_feature(subject):
    cases = registry.cases(subject, 132)
    names = [case.name for case in cases]
    assert names == [case.name for case in registry.cases(registry.reference_subjects()[0], 4)]
    met = set().union(*(case.features for case in cases))
    assert registry.FEATURES <= met, f"never met: {sorted(registry.FEATURES - met)}"
    tiles = {c.name: -(-c.m // subject.bm) * -(-c.n // subject.bn) for c in cases}
    assert tiles["many_tiles"] > 132
    blocks = {c.name: -(-c.k // subject.bk) for c in cases}
    assert blocks["long_k"] > 2 * subject.stages
    assert blocks["short_k"] == 1


def _plan(case, subject, tier):
    """The planner's answer for a case on an H200, from the layout of its operands alone."""
    x, out = allocate(case, "meta"), allocate_out(case, "meta")
    tensors = {"a": x.a, "b": x.b, "bias": x.bias, "c": x.c, "out": out}
    views = {name: t.view for name, t in tensors.items() if t is not None}
    addresses = {
        n: 2**36 * i + v.storage_offset() * v.element_size()
        for i, (n, v) in enumerate(views.items())
    }
    extra = {}
    if x.bias is not None:
        extra |= {"bias": x.bias.view.numel(), "bias_dtype": x.bias.view.dtype}
    if x.c is not None:
        c = x.c.view
        extra |= {"c_shape": c.shape, "c_stride": c.stride(), "c_dtype": c.dtype}
    a, b, out = x.a.view, x.b.view, out.view
    return planning.plan_gemm(
        a.shape,
        a.stride(),
        b.shape,
        b.stride(),
        dtype=case.dtype,
        out_dtype=out.dtype,
        out_shape=out.shape,
        out_stride=out.stride(),
        alpha=case.alpha,
        beta=case.beta,
        activation=case.activation,
        device="h200",
        addresses=addresses,
        variant=subject.variant,
        tier=tier,
        max_sms=case.max_sms,
        **extra,
    )


@pytest.mark.parametrize(
    "subject, tier",
    [pytest.param(s, 0, id=s.name) for s in registry.subjects() + registry.planner_subjects()]
    + [pytest.param(s, 80, id=f"{s.name}-sm80") for s in registry.planner_subjects()],
)
def test_each_problem_fits_its_kernel(subject, tier):
    """The planner takes every problem for the kernel it is meant for: one launch, no copies."""
    for case in registry.cases(subject, 132):
        plan = _plan(case, subject, tier)
        assert plan.native, f"{case.name}: {plan.reason}\n{case}"
        assert (plan.launches, plan.out_copy, plan.bias_copy) == (1, False, False), case
        assert subject.variant in (-1, plan.variant)
        if case.max_sms:  # several tiles for each of the few CTAs; at most two CTAs fit an SM
            assert plan.grid[0] <= 2 * case.max_sms and plan.grid[0] < plan.fields()["tiles"], case
