"""is_supported, explain, settings, counters and flops."""

from __future__ import annotations

import logging

import pytest
import torch
from harness.counters import counting, option
from surface import python, randn

import deepasm_torch as dt
from deepasm_torch import functional, kernels, planning


def half(*shape, device="meta"):
    return torch.empty(shape, device=device, dtype=torch.bfloat16)


class TestExplain:
    def test_names_the_kernel_of_the_planner(self):
        a, b = half(4096, 4096), half(4096, 4096).t()
        answer = dt.explain("gemm", a, b, device="h200")
        plan = planning.plan_gemm(a.shape, a.stride(), b.shape, b.stride(), device="h200")
        assert answer.native and answer.route == "kernel" and answer.kernel == plan.kernel
        assert answer.plan.grid == plan.grid and answer.plan.tensor_maps == plan.tensor_maps
        assert f"_{answer.tile[0]}x{answer.tile[1]}x{answer.tile[2]}_" in answer.kernel + "_"
        text = str(answer)
        for word in (plan.kernel, "4096 x 4096 x 4096", f"grid {plan.grid[0]}", "NVIDIA H200"):
            assert word in text
        assert dt.is_supported("gemm", a, b, device="h200") == (True, plan.kernel)

    def test_device_decides(self):
        a, b = half(512, 512), half(512, 512)
        assert dt.explain("gemm", a, b, device="h100").plan.tier == 90
        unsupported = dt.explain("gemm", a, b, device="t4")
        assert unsupported.route == "fallback" and "7.5" in unsupported.reason
        assert dt.is_supported("gemm", a, b, device="t4") == (False, unsupported.reason)
        record = planning.DeviceRecord("half an H100", (9, 0), 66, 227 * 1024)
        assert (
            dt.explain("gemm", half(8192, 8192), half(8192, 8192), device=record).plan.grid[0] == 66
        )

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_tensors_without_a_gpu_are_planned_for_a_named_one(self, device):
        a = half(64, 64, device=device)
        answer = dt.explain("gemm", a, a)
        assert answer.native and "H200" in answer.device and device in str(answer)
        supported, reason = dt.is_supported("gemm", a, a)
        assert not supported and device in reason

    def test_fallbacks_say_why(self):
        a, b = torch.empty(8, 8, device="meta"), torch.empty(8, 8, device="meta")
        answer = dt.explain("gemm", a, b)
        assert answer.route == "fallback" and "bfloat16" in answer.reason and not answer.kernel
        assert answer.tile is None
        h = half(8, 8)
        assert dt.explain("gemm", h, h, out_dtype=torch.float64).route == "fallback"
        assert dt.explain("gemm", half(8, 0), half(0, 8)).route == "reference"
        assert dt.explain("gemm", half(0, 8), h).route == "empty"
        with option("disable", 1):
            disabled = dt.explain("gemm", h, h)
        assert disabled.route == "fallback" and "disabled" in disabled.reason

    def test_bad_calls_are_explained_with_the_error_of_the_call(self):
        a, b = torch.ones(2, 3), torch.ones(4, 5)
        with pytest.raises(RuntimeError) as error:
            torch.ops.deepasm.gemm(a, b)
        answer = dt.explain("gemm", a, b)
        assert answer.route == "error" and "cannot be multiplied" in answer.reason
        assert "cannot be multiplied" in str(error.value)
        assert dt.is_supported("gemm", a, b) == (False, answer.reason)
        for args in ((a.to_sparse(), a), (a.int(), a.int().t()), (a, a.t(), torch.ones(7))):
            assert dt.explain("gemm", *args).route == "error"
        assert dt.explain("gemm", a, a.t(), out=torch.ones(3, 3)).route == "error"

    def test_hidden_work_is_noted(self):
        a, b, v, c = half(64, 64), half(64, 64), half(64), half(64, 64)
        stepped = torch.empty(64, 128, dtype=torch.bfloat16, device="meta")[:, ::2]
        assert any("copied" in n for n in dt.explain("gemm", a, b, out=stepped).notes)
        strided = torch.empty(128, dtype=torch.bfloat16, device="meta")[::2]
        copied = dt.explain("gemm", a, b, strided, c=c, beta=1.0)
        assert any("bias is copied" in n for n in copied.notes)
        assert not any("cop" in n for n in dt.explain("gemm", a, b, v, c=c, beta=1.0).notes)

    def test_transposed_products_say_why(self):
        few, many, weight = half(16, 4096), half(512, 4096), half(4096, 4096)
        narrow = dt.explain("gemm", few, weight.t(), device="h200")
        row = kernels.ALL[narrow.plan.variant]
        assert row.d_major == "m" and narrow.tile == (*row.tile, row.bk) and narrow.tile[1] == 64
        assert [n for n in narrow.notes if "transposed" in n and "few rows" in n]
        assert not [n for n in narrow.notes if "column-major" in n]

        plain = dt.explain("gemm", many, weight, device="h200")
        row = kernels.ALL[plain.plan.variant]
        assert row.d_major == "n" and plain.tile == (*row.tile, row.bk)
        assert not [n for n in plain.notes if "transposed" in n]

        turned = dt.explain("gemm", many, weight, out=half(4096, 512).t(), device="h200")
        row = kernels.ALL[turned.plan.variant]
        assert row.d_major == "n" and turned.tile == (row.bn, row.bm, row.bk)
        assert [n for n in turned.notes if "transposed" in n and "out is column-major" in n]
        assert not [n for n in turned.notes if "few" in n] and "512 x 4096 x 4096" in str(turned)

        both = dt.explain("gemm", weight, few.t(), out=half(16, 4096).t(), device="h200")
        row = kernels.ALL[both.plan.variant]
        assert row.d_major == "m" and both.tile == (row.bm, row.bn, row.bk)
        assert [n for n in both.notes if "few columns" in n] and "4096 x 16 x 4096" in str(both)
        assert not [n for n in both.notes if "transposed" in n]

    def test_alignment_of_the_storage_offset_counts(self):
        base = torch.empty(64 * 64 + 8, dtype=torch.bfloat16)
        aligned, off = base[8:].view(64, 64), base[1:-7].view(64, 64)
        w = torch.empty(64, 64, dtype=torch.bfloat16)
        assert dt.explain("gemm", aligned, w).plan.tensor_maps
        assert not (dt.explain("gemm", off, w).plan.tensor_maps)

    def test_autocast_is_taken_into_account(self):
        a, w, v = torch.ones(64, 64), torch.ones(64, 64), torch.ones(64)
        with torch.autocast("cpu", torch.bfloat16):
            answer = dt.explain("gemm", a, w.t(), v)
        assert answer.native and any("autocast" in n and "a, b" in n for n in answer.notes)
        assert not dt.explain("gemm", a, w.t(), v).native

    def test_settings_are_taken_into_account(self):
        a = half(8192, 8192)
        with dt.max_sms(7):
            assert dt.explain("gemm", a, a, device="h200").plan.grid[0] == 7
        with option("tier", 80):
            assert "sm90" not in dt.explain("gemm", a, a, device="h200").kernel

    def test_unknown_names(self):
        with pytest.raises(ValueError, match="'conv2d', expected one of 'gemm'"):
            dt.explain("conv2d", half(1, 1), half(1, 1))
        with pytest.raises(ValueError, match="h200"):
            dt.explain("gemm", half(1, 1), half(1, 1), device="abacus")

    @pytest.mark.gpu
    def test_agrees_with_what_runs(self, half):
        a, w = randn(200, 136, device="cuda", dtype=half), randn(72, 136, device="cuda", dtype=half)
        for x, y in ((a, w.t()), (a[:, 1:], w.t()[1:]), (a[::2, ::2], w.t()[::2])):
            answer = dt.explain("gemm", x, y)
            with counting() as counts:
                torch.ops.deepasm.gemm(x, y)
            assert dt.is_supported("gemm", x, y) == (True, answer.kernel)
            assert counts.kernels == {answer.kernel: answer.plan.launches}


class TestSettings:
    def test_max_sms(self):
        get = dt._library.require().get_option
        before = get("max_sms")
        with dt.max_sms(5):
            assert get("max_sms") == 5
            with pytest.raises(ZeroDivisionError), dt.max_sms(3):
                1 / 0
            assert get("max_sms") == 5
        assert get("max_sms") == before
        for bad, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError), ("3", TypeError)):
            with pytest.raises(error, match="set_max_sms: count"):
                dt.set_max_sms(bad)

    def test_cpu_calls_are_no_fallbacks(self):
        dt.reset_fallbacks()
        torch.ops.deepasm.gemm(torch.ones(2, 2), torch.ones(2, 2))
        assert not dt.fallbacks() and dt.counters()["gemm"]["launches"] == 0

    @pytest.mark.gpu
    def test_fallbacks_are_counted_with_a_reason_and_logged(self, caplog):
        dt.reset_fallbacks()
        with caplog.at_level(logging.DEBUG, "deepasm_torch"):
            functional.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda"))
        count, reason = dt.fallbacks()["gemm"]
        assert count == 1 and "bfloat16" in reason
        assert any("float32" in r.getMessage() for r in caplog.records)
        dt.reset_fallbacks()
        assert not dt.fallbacks()

    def test_warmup_refuses_other_devices(self):
        with pytest.raises(ValueError, match="expected a CUDA device"):
            dt.warmup("cpu")

    @pytest.mark.gpu
    def test_warmup(self):
        for device in (None, 0, "cuda", torch.device("cuda", 0)):
            dt.warmup(device)


class TestFlops:
    def test_forward_and_backward(self, device):
        from torch.utils.flop_counter import FlopCounterMode

        x = torch.ones(3, 7, 16, device=device, requires_grad=True)
        w = torch.ones(8, 16, device=device, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            functional.linear(x, w).sum().backward()
        assert counter.get_total_flops() == 3 * (2 * 3 * 7 * 16 * 8)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode(), FlopCounterMode(display=False) as counter:
                functional.matmul(torch.ones(5, 1, 2, 4, device=device), w[:4, 0])
                functional.addmm(x[0, 0, :1], w, w.t(), beta=2)
            assert counter.get_total_flops() == 2 * 5 * 2 * 4 + 2 * 8 * 16 * 8

    def test_formulas_wait_for_the_counter(self):
        """Importing the counter may import Triton, so importing the package must not import it."""
        done = python(
            """
            import sys, torch, deepasm_torch
            assert "torch.utils.flop_counter" not in sys.modules
            import torch.utils.flop_counter as counter
            assert torch.ops.deepasm.gemm in counter.flop_registry
            assert not any("deepasm" in type(f).__module__ for f in sys.meta_path)
            """
        )
        assert done.returncode == 0, done.stderr

    def test_counter_imported_first(self):
        done = python(
            """
            import torch.utils.flop_counter as counter, torch, deepasm_torch
            assert torch.ops.deepasm.gemm in counter.flop_registry
            """
        )
        assert done.returncode == 0, done.stderr
