"""The GEMM benchmark on any machine: its cases, and the suite end to end on CPU tensors.

The CPU stands in for the GPU: the same code builds, checks, races and reports, only without graphs.
"""

from __future__ import annotations

import json
import math
import random
import time

import pytest
import torch

from deepasm_torch.bench import (
    gemm,
    gemm_cases,
    gemm_contest,
    gemm_rows,
    gemm_table,
    gemm_variants,
    host_cost,
    report,
)
from deepasm_torch.bench.device import Program
from deepasm_torch.bench.gemm_cases import Case
from deepasm_torch.bench.nvml import Reading
from deepasm_torch.bench.timing import Settings


def row(**changes) -> dict:
    base = {
        "case": "4096x4096x4096 nt bf16",
        "pass": "fwd",
        "ours_ms": 0.2,
        "peers_ms": {"cublas": 0.21},
        "rel_err": 1.6e-3,
        "peer_rel_err": 1.6e-3,
        "variant": "gemm_sm90_bf16_nt_128x256x64_coop",
    }
    return {**base, **changes}


def result_of(*rows) -> dict:
    return {**report.header("gemm", "NVIDIA H200", "580.1", "2.11.0"), "rows": list(rows)}


# ---- the suite ---------------------------------------------------------------------------------


class CpuDevice:
    """Real time, CPU tensors, no graphs: enough to run the suite's own code."""

    hold = 1

    def now(self):
        return time.perf_counter()

    def idle(self, seconds):
        pass

    def synchronize(self):
        pass

    def capture(self, call, launches):
        raise RuntimeError("no graphs on the CPU")

    def loop(self, call, launches):
        return Program(lambda: [call(i) for i in range(launches)], launches, False)

    def once_ms(self, call, count):
        return self.submit(self.loop(call, count)) / count

    def submit(self, program, spaced=False):
        start = time.perf_counter()
        program.replay()
        return (time.perf_counter() - start) * 1e3

    def elapsed_ms(self, ticket):
        return ticket

    def read(self):
        return Reading(2000.0, 50.0)


TINY = Settings(0.05, graph_ms=0.2, idle_s=0.0, warm_s=(0.0, 0.01), min_rounds=2, max_rounds=3)


def run_on_cpu(case, peers=("cublas",), settings=TINY):
    return gemm_rows.run_case(
        case, CpuDevice(), settings, peers, torch_device="cpu", rotate_bytes=1 << 16
    )


@pytest.mark.parametrize(
    "case",
    [
        Case("square", 64, 64, 64),
        Case("odd", 33, 47, 21, "tn"),
        Case("layout", 32, 24, 16, "tt", dtype="f16"),
        Case("batched", 16, 24, 16, "nn", batch=3),
        Case("epilogue", 64, 48, 32, bias=True),
        Case("epilogue", 64, 48, 32, bias=True, activation=3),
    ],
    ids=lambda case: case.name,
)
def test_a_case_runs_and_its_rows_fit_the_schema(case):
    rows, faults = run_on_cpu(case)
    assert faults == []
    assert [one["mode"] for one in rows] == ["steady", "burst"]
    assert report.validate(result_of(*rows)) == []
    for one in rows:
        assert one["ours_ms"] > 0 and one["peers_ms"]["cublas"] > 0
        assert one["rel_err"] == pytest.approx(one["peer_rel_err"], rel=1, abs=1e-3)
        assert one["metrics"]["ratio"]["cublas"] == pytest.approx(
            one["peers_ms"]["cublas"] / one["ours_ms"], rel=1e-2
        )
        assert one["metrics"]["not_captured"] == ["deepasm", "cublas", "cublas#2"]
        json.dumps(one, allow_nan=False)
    text = gemm_table.render(result_of(*rows))
    assert case.name in text and "geometric mean, steady, xcublas: all" in text


def test_fused_cublas_is_a_peer_where_torch_has_it():
    rows, _ = run_on_cpu(
        Case("epilogue", 64, 48, 32, bias=True, activation=2), ["cublas", "cublas_fused"]
    )
    assert rows[0]["peers_ms"]["cublas_fused"] > 0
    rows, _ = run_on_cpu(
        Case("epilogue", 64, 48, 32, bias=True, activation=4), ["cublas", "cublas_fused"]
    )
    assert "cublas_fused" not in rows[0]["peers_ms"]


@pytest.mark.parametrize("fault", ["value", "unwritten", "tail", "raises"])
def test_wrong_results_are_findings(monkeypatch, fault):
    def ours(buffers, variant=None):
        def call(i):
            i %= buffers.sets
            a, b, out = buffers.a[i], buffers.b[i], buffers.out[i]
            if fault == "raises":
                raise RuntimeError("a: unsupported\nmore")
            if fault == "unwritten":
                out[..., :-1, :] = (a @ b)[..., :-1, :]
            elif fault == "tail":
                out.copy_(a @ b)
                out[..., -1, -1] += 3 * out.float().norm()
            else:
                out.copy_(a @ b * 1.05)
            return out

        return call

    monkeypatch.setattr(gemm_contest, "ours", ours)
    rows, faults = run_on_cpu(Case("square", 80, 64, 64))
    assert len(faults) == 1
    if fault == "raises":
        assert faults[0] == "deepasm failed: RuntimeError: a: unsupported"
        assert rows[0]["ours_ms"] is None and rows[0]["peers_ms"]["cublas"] > 0
        assert report.validate(result_of(*rows)) == []
        gemm_table.render(result_of(*rows))
    else:
        assert "relative error" in faults[0]
    for one in rows:
        json.dumps(one, allow_nan=False)


def test_sampled_reference_sees_the_tails_and_every_unwritten_element():
    case = Case("square", 700, 900, 32)
    buffers = gemm_contest.Buffers(case, "cpu", rotate_bytes=1)
    assert buffers.sets == 1
    reference = gemm_contest.Reference(buffers, rows=16, cols=16)
    assert reference.value.shape == (16, 16)
    right = (buffers.a[0].double() @ buffers.b[0].double()).to(torch.bfloat16)
    assert reference.error(right) < 3e-3
    for at in ((0, 0), (699, 899), (0, 899), (699, 0)):
        wrong = right.clone()
        wrong[at] += 1000
        assert reference.error(wrong) > 1
    hole = right.clone()
    hole[351, 353] = float("nan")
    assert math.isnan(reference.error(hole))


def test_a_fallback_is_a_finding(monkeypatch):
    counts = iter(
        [
            {"launches": 4, "fallbacks": 1, "kernels": {"k": 4}},
            {"launches": 4, "fallbacks": 2, "kernels": {"k": 4}, "last_fallback": "float32"},
        ]
    )
    monkeypatch.setattr(gemm_rows, "counters", lambda: next(counts, {}))
    rows, faults = run_on_cpu(Case("square", 32, 32, 32), peers=())
    assert faults == ["fell back to torch: float32"]
    assert rows[0]["variant"] == "torch" and rows[0]["fallbacks"] == 1


def test_the_variant_is_read_from_the_counters():
    before = {"launches": 4, "fallbacks": 0, "kernels": {"x": 3, "y": 1}}
    after = {"launches": 6, "fallbacks": 0, "kernels": {"x": 3, "y": 2, "z": 1}}
    done = gemm_rows.difference(before, after)
    assert (done["launches"], done["kernels"]) == (2, ["y", "z"])
    assert gemm_rows.difference({}, {}) == {
        "launches": 0, "fallbacks": 0, "kernels": [], "reason": None,
    }  # fmt: skip


def test_buffers_rotate_past_the_cache_and_keep_the_layout():
    case = Case("square", 256, 128, 64, "tt")
    buffers = gemm_contest.Buffers(case, "cpu", rotate_bytes=1 << 20)
    assert buffers.sets * case.bytes >= 1 << 20
    assert buffers.a[0].shape == (256, 64) and buffers.a[0].stride() == (1, 256)
    assert buffers.b[0].shape == (64, 128) and buffers.b[0].stride() == (1, 64)
    addresses = {t.data_ptr() for t in (*buffers.a, *buffers.b, *buffers.out)}
    assert len(addresses) == 3 * buffers.sets
    assert buffers.a[1].float().std() == pytest.approx(1.0, abs=0.1)
    assert not torch.equal(buffers.a[0], buffers.a[1])


# ---- cases -------------------------------------------------------------------------------------


def test_cases_are_distinct_and_hold_the_promised_speeds():
    names = [case.name for case in gemm_cases.CASES]
    assert len(set(names)) == len(names)
    promised = {
        case.name: ratio
        for case in gemm_cases.CASES
        for who, peer, ratio in case.targets
        if (who, peer) == ("deepasm", "cublas")
    }
    assert promised == {
        "1024x1024x1024 nt bf16": 1.03,
        "2048x2048x2048 nt bf16": 1.03,
        "4096x4096x4096 nt bf16": 1.02,
        "8192x8192x8192 nt bf16": 1.02,
        "8192x4096x14336 nt bf16": 1.00,
        "8192x8192x512 nt bf16": 1.15,
    }
    layouts = {case.layout for case in gemm_cases.CASES}
    assert layouts == {"nt", "nn", "tn", "tt"}


def test_selecting_cases():
    assert all(case.family == "odd" for case in gemm_cases.select(["odd"]))
    chosen = gemm_cases.select(["4096x4096x4096 nt"])
    assert {case.name.split(" +")[0] for case in chosen} >= {"4096x4096x4096 nt bf16"}
    assert 0 < len(gemm_cases.select([], quick=True)) < len(gemm_cases.CASES) / 2
    with pytest.raises(ValueError, match="--cases 'nothing' matches nothing.*square"):
        gemm_cases.select(["nothing"])


def test_cases_of_ones_own():
    assert gemm_cases.own_shape("4096x512x64").name == "4096x512x64 nt bf16"
    case = gemm_cases.own_shape("8x512x256x64:nn:f16->f32")
    assert (case.batch, case.m, case.n, case.k) == (8, 512, 256, 64)
    assert (case.layout, case.dtype, case.out_dtype) == ("nn", "f16", "f32")
    for text in ("12x13", "axbxc", "1x2x3:xx", "1x2x3:nt:f64"):
        with pytest.raises(ValueError, match="--shape"):
            gemm_cases.own_shape(text)


def test_flops_and_bytes():
    case = Case("batched", 128, 256, 64, "nn", out="f32", batch=3)
    assert case.flops == 2 * 3 * 128 * 256 * 64
    assert case.bytes == 3 * ((128 * 64 + 64 * 256) * 2 + 128 * 256 * 4)


def test_missed_targets():
    rows = [
        row(mode="steady", peers_ms={"cublas": 0.2, "triton": 0.25}),
        row(mode="burst", peers_ms={"cublas": 0.1}),
        row(case="1024x1024x1024 nt bf16", mode="steady", peers_ms={"cublas": 0.3}),
    ]
    missed = gemm_rows.missed_targets(rows)
    assert len(missed) == 2
    assert "deepasm is 1.000x cublas, meant is 1.02x" in missed[0]
    assert "triton is 0.800x cublas, meant is 0.88x" in missed[1]
    nothing = gemm_rows.missed_targets([row(mode="steady", ours_ms=None)])
    assert "no figure for deepasm" in nothing[0]


def test_the_budget_is_shared_among_the_cases_left():
    now = [0.0]
    clock = gemm.Clock(100.0, 10, lambda: now[0])
    assert clock.next() == pytest.approx(7.0)
    now[0] = 50.0  # one case took half of everything, in preparing it
    clock.spent(43.0)
    assert 1.0 <= clock.next() < 3.0
    now[0] = 99.5
    assert clock.next() is None


# ---- variants and host cost --------------------------------------------------------------------


def test_which_kernels_fit_a_case():
    kernel = {"op": "gemm", "dtype": "bf16", "a_major": "k", "b_major": "k", "d_major": "n"}
    assert gemm_variants.applicable(kernel, Case("x", 8, 8, 8, "nt"))
    assert not gemm_variants.applicable(kernel, Case("x", 8, 8, 8, "nn"))
    assert not gemm_variants.applicable(kernel, Case("x", 8, 8, 8, "tt"))
    assert not gemm_variants.applicable(kernel, Case("x", 8, 8, 8, "nt", dtype="f16"))
    assert gemm_variants.applicable({**kernel, "a_major": "m", "b_major": "n"},
                                    Case("x", 8, 8, 8, "tn"))  # fmt: skip
    assert gemm_variants.applicable({**kernel, "a_major": "*", "b_major": "*"},
                                    Case("x", 8, 8, 8, "tt"))  # fmt: skip
    assert not gemm_variants.applicable({**kernel, "op": "attention"}, Case("x", 8, 8, 8))


def test_variants_matrix(monkeypatch):
    def ours(buffers, variant=None):
        def call(i):
            i %= buffers.sets
            if variant == 1:
                raise RuntimeError("variant 1 needs 16-byte strides\nand more")
            buffers.out[i].copy_(buffers.a[i] @ buffers.b[i] * (1.5 if variant == 2 else 1))
            return buffers.out[i]

        return call

    monkeypatch.setattr(gemm_contest, "ours", ours)
    kernels = [{"name": f"gemm_sm90_bf16_nt_v{i}", "variant": i} for i in range(3)]
    seen = []
    rows, faults = gemm_variants.run_case(
        Case("square", 48, 48, 48), kernels, CpuDevice(), TINY, seen.append, "cpu", 1 << 16
    )
    assert any(name.endswith("gemm_sm90_bf16_nt_v2") for name in seen)  # named before it ran
    assert len(faults) == 1 and faults[0].startswith("gemm_sm90_bf16_nt_v2: relative error")
    assert report.validate(result_of(*rows)) == []
    assert rows[0]["variant"] == "gemm_sm90_bf16_nt_v0"
    assert set(rows[0]["metrics"]["ms"]) == {"cublas", "plan", "gemm_sm90_bf16_nt_v0"}
    assert rows[0]["metrics"]["refused"] == {
        "gemm_sm90_bf16_nt_v1": "variant 1 needs 16-byte strides"
    }
    text = gemm_variants.render(result_of(*rows))
    assert "v0: sm90 v0" in text and "planner's choice" in text


def test_layouts_and_types_share_the_columns_of_the_matrix():
    def measured(case, name, ms):
        metrics = {"ms": {"cublas": 0.2, "plan": ms, name: ms}, "noise": 0.01, "refused": {}}
        metrics["ratio"] = {"plan": 0.2 / ms, name: 0.2 / ms}
        return row(case=case, mode="steady", ours_ms=ms, variant=name, metrics=metrics)

    text = gemm_variants.render(
        result_of(
            measured("4096x4096x4096 nt bf16", "gemm_sm90_bf16_nt_128x256x64_coop", 0.1),
            measured("4096x4096x4096 tn f16", "gemm_sm90_f16_tn_128x256x64_coop", 0.16),
        )
    )
    assert "v0: sm90 128x256x64_coop" in text and "v1" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "4096x4096x4096 nt bf16 200.00 100.00 v0 2.000 2.000 1.0%" in lines
    assert "4096x4096x4096 tn f16 200.00 160.00 160.00" in lines


def test_host_cost_is_the_median_of_alternating_blocks():
    now = [0.0]
    costs = {"a": 2e-6, "b": 5e-6}
    spike = {"left": 30}

    def call_of(name):
        def call():
            now[0] += costs[name]
            if name == "a" and spike["left"] and random.random() < 0.01:
                spike["left"] -= 1
                now[0] += 1e-3

        return call

    synchronized = []
    times = host_cost.measure(
        {name: call_of(name) for name in costs},
        lambda: synchronized.append(1),
        rounds=41,
        block=20,
        clock=lambda: now[0],
    )
    assert times["b"] == pytest.approx(5.0)
    assert times["a"] == pytest.approx(2.0)
    assert len(synchronized) == 1 + 2 * 41


def test_host_cost_rows_fit_the_schema():
    rows = host_cost.run("cpu", lambda: None, rounds=2, block=3)
    assert report.validate(result_of(*rows)) == []
    assert [one["mode"] for one in rows][:2] == ["no_grad", "inference_mode"]
    assert all(one["ours_ms"] > 0 and one["peers_ms"]["torch.mm"] > 0 for one in rows)
    text = host_cost.render(rows)
    assert "deepasm.gemm.out" in text and "ours / torch.mm" in text


# ---- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_case_on_the_gpu_runs_in_graphs():
    from deepasm_torch.bench.device import CudaDevice

    settings = Settings(0.6, warm_s=(0.05, 0.1), min_rounds=2, max_rounds=20)
    rows, faults = gemm_rows.run_case(
        Case("square", 512, 512, 512), CudaDevice(), settings, ["cublas"], rotate_bytes=1 << 26
    )
    assert faults == []
    for one in rows:
        assert "not_captured" not in one["metrics"]
        assert one["variant"].startswith("gemm_") and one["launches"] == 1
        assert 0 < one["ours_ms"] < 1
    assert report.validate(result_of(*rows)) == []
