"""The native table (deepasm_torch.native) is a promise; this holds the package to it.

Without a GPU: the planner must have a kernel for every native row, and the backward must consist of
the stated number of gemms and of torch kernels.  With one: nothing falls back, nothing is copied
behind the caller's back, and the device runs exactly the stated kernels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re

import pytest
import torch
from harness.counters import counting, graph_nodes, option
from harness.devices import tier_missing
from torch.utils._python_dispatch import TorchDispatchMode

import deepasm_torch as dt
from deepasm_torch import native

FORWARD = [r for r in native.ROWS if r.direction == "forward"]
BACKWARD = [r for r in native.ROWS if r.direction == "backward"]
PLANNED_ON = {80: "a100", 90: "h200"}


def name(row):
    return f"{row.feature}-{row.dtype}-sm{row.tier}"


def plan(call, device):
    return dt.explain(
        "gemm",
        call.a,
        call.b,
        call.bias,
        c=call.c,
        alpha=call.alpha,
        beta=call.beta,
        activation=call.activation,
        out_dtype=call.out_dtype,
        device=device,
    )


@pytest.mark.parametrize("row", FORWARD, ids=name)
def test_planner_agrees(row):
    call = native.CASES[row.feature]("cpu", row.torch_dtype)
    answer = plan(call, PLANNED_ON[row.tier])
    assert answer.native == row.native, answer
    if row.native:
        assert (answer.plan.tier,) * answer.plan.launches == row.tiers, answer
        assert not answer.plan.out_copy and not answer.plan.bias_copy


class Kernels(TorchDispatchMode):
    """Ops that compute: deepasm's, and the others without views and allocations."""

    FREE = ("detach", "alias", "empty", "_unsafe_view", "slice_backward", "new_zeros")

    def __init__(self):
        super().__init__()
        self.ours, self.others = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "deepasm":
            self.ours.append(func.name())
        elif not func.is_view and not any(word in func.name() for word in self.FREE):
            self.others.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("row", [r for r in BACKWARD if r.native and r.tier == 90], ids=name)
def test_backward_is_made_of_what_the_row_says(row):
    call = native.CASES[row.feature]("cpu", row.torch_dtype)
    y = call()
    dy = torch.ones_like(y)
    with Kernels() as kernels:
        grads = torch.autograd.grad(y, call.leaves, dy)
    assert len(kernels.ours) == row.launches, kernels.ours
    assert len(kernels.others) <= row.others, kernels.others
    for g, leaf in zip(grads, call.leaves):
        assert g.shape == leaf.shape and g.dtype == leaf.dtype


@pytest.mark.parametrize("row", [r for r in BACKWARD if r.native], ids=name)
def test_planner_agrees_for_every_gemm_of_the_backward(row):
    tiers = []

    class Plans(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.deepasm._gemm.default:
                a, b, bias, c, alpha, beta, activation, out_dtype, _ = args
                call = native.Call(a, b, bias, c, alpha, beta, activation, out_dtype)
                answer = plan(call, PLANNED_ON[row.tier])
                assert answer.native and answer.plan.launches == 1, answer
                tiers.append(answer.plan.tier)
            return func(*args, **(kwargs or {}))

    call = native.CASES[row.feature]("cpu", row.torch_dtype)
    y = call()
    with Plans():
        torch.autograd.grad(y, call.leaves, torch.ones_like(y))
    assert tuple(sorted(tiers)) == row.tiers


def test_table_is_complete():
    assert {r.feature for r in native.ROWS} == set(native.CASES)
    assert len({dataclasses.astuple(r)[:5] for r in native.ROWS}) == len(native.ROWS)
    for row in native.ROWS:
        assert row.native == (row.dtype in ("bfloat16", "float16"))
        assert bool(row.launches) == row.native and len(row.tiers) == row.launches
        assert list(row.tiers) == sorted(row.tiers) and set(row.tiers) <= {80, row.tier}
    for feature in native.CASES:
        assert feature in native.table()


def launched_tiers(counts):
    """Tier of the kernel of each launch, lowest first."""
    found = []
    for kernel, launches in counts.kernels.items():
        found += [int(re.search(r"_sm(\d+)_", kernel)[1])] * launches
    return tuple(sorted(found))


@contextlib.contextmanager
def on_tier(row):
    if tier_missing(row.tier):
        pytest.skip(tier_missing(row.tier))
    with option("tier", row.tier):
        yield


@pytest.mark.gpu
@pytest.mark.parametrize("row", FORWARD, ids=name)
def test_forward_on_the_gpu(row):
    call = native.CASES[row.feature]("cuda", row.torch_dtype)
    with on_tier(row):
        with counting() as counts:
            call()
        assert (counts.fallbacks == 0) == row.native, counts
        assert counts.copies == 0
        if not row.native:
            return
        assert counts.launches == row.launches
        assert launched_tiers(counts) == row.tiers, counts
        with torch.no_grad():
            assert graph_nodes(call) == ["kernel"] * row.launches


@pytest.mark.gpu
@pytest.mark.parametrize("row", BACKWARD, ids=name)
def test_backward_on_the_gpu(row):
    with on_tier(row), torch.cuda.stream(torch.cuda.Stream()):
        call = native.CASES[row.feature]("cuda", row.torch_dtype)
        y = call()
        dy = torch.ones_like(y)
        with counting() as counts:
            torch.autograd.grad(y, call.leaves, dy)
        del y
        assert (counts.fallbacks == 0) == row.native, counts
        assert counts.copies == 0
        if row.native:
            assert counts.launches == row.launches
            assert launched_tiers(counts) == row.tiers, counts
            forward = len(graph_nodes(call))
            nodes = graph_nodes(lambda: torch.autograd.grad(call(), call.leaves, dy))
            assert len(nodes) - forward - row.launches <= row.others, nodes
