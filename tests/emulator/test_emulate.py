"""`emulate`: the ops on CPU tensors run the planned kernel, or say why there is none."""

from __future__ import annotations

import pytest
import torch

import deepasm_torch
from deepasm_torch import planning
from deepasm_torch.emulator import EmulatorError, HazardError, emulate

gemm = torch.ops.deepasm.gemm


def draw(*shape, dtype=torch.bfloat16, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=g).to(dtype)


def exact(a, b, dtype=None):
    return (a.double() @ b.double()).to(dtype or a.dtype)


@pytest.mark.parametrize("device, tier", [("h200", 90), ("a100", 80), ("rtx4090", 80)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_planned_kernel_runs(device, tier, dtype):
    a, b = draw(136, 64, dtype=dtype), draw(72, 64, dtype=dtype, seed=1).t()
    with emulate(device=device) as emulation:
        y = gemm(a, b)
    assert torch.equal(y, exact(a, b))
    (ran,) = emulation.launches
    plan = planning.plan_gemm(a.shape, a.stride(), b.shape, b.stride(), dtype=dtype, device=device)
    assert ran.plan.kernel == plan.kernel and ran.plan.tier == tier and ran.plan.grid == plan.grid
    assert ran.result.ok and ran.result.counters.total > 0


@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
def test_schedules_and_seeds(schedule):
    a, b = draw(192, 128), draw(128, 128, seed=2)
    with emulate(schedule=schedule, seed=3) as emulation:
        assert torch.equal(gemm(a, b), exact(a, b))
    assert emulation.ok and emulation.report() == "no hazards"


def test_bias_activation_and_output_type():
    a, b, bias = draw(64, 64), draw(64, 64, seed=1), draw(64, seed=2)
    with emulate():
        y = gemm(a, b, bias, activation=1, out_dtype=torch.float32)
    assert y.dtype == torch.float32
    assert torch.equal(y, torch.relu(exact(a, b, torch.float32) + bias.float()))


def test_batches_strides_and_views():
    storage = draw(3, 40, 200)
    a = storage[:, 3:35, 8:136]
    b = draw(3, 64, 128, seed=1).transpose(1, 2)
    with emulate() as emulation:
        y = gemm(a, b)
    assert torch.equal(y, exact(a, b))
    assert len(emulation.launches) >= 1


def test_out_keeps_what_lies_around_it():
    a, b = draw(48, 64), draw(64, 56, seed=1)
    storage = torch.full((50, 64), 7.0, dtype=torch.bfloat16)
    out = storage[1:49, 8:64]
    with emulate():
        gemm.out(a, b, out=out)
    assert torch.equal(out, exact(a, b))
    storage[1:49, 8:64] = 7
    assert (storage == 7).all()


def test_gradients_run_in_the_emulator():
    a, b = draw(64, 64).requires_grad_(), draw(64, 64, seed=1).requires_grad_()
    with emulate() as emulation:
        gemm(a, b).float().sum().backward()
    assert len(emulation.launches) == 3
    ones = torch.ones(64, 64, dtype=torch.double)
    assert torch.equal(a.grad.double(), ones @ b.detach().double().t())
    assert torch.equal(b.grad.double(), a.detach().double().t() @ ones)


def test_addmm_reads_its_addend():
    a, b, c = draw(64, 64), draw(64, 64, seed=1), draw(64, 64, seed=2)
    with emulate():
        y = torch.ops.deepasm._gemm(a, b, None, c, 2.0, -1.0, 0, None, -1)
    assert torch.equal(y, (2 * exact(a, b, torch.double) - c.double()).to(a.dtype))


def test_a_forced_variant_runs():
    a, b = draw(64, 64), draw(64, 64, seed=1)
    want = [k for k, row in enumerate(deepasm_torch.kernels.gemm.KERNELS) if row.loads == "any"][0]
    with emulate(variant=want) as emulation:
        assert torch.equal(gemm(a, b), exact(a, b))
    assert emulation.launches[0].plan.variant == want


def test_what_no_kernel_serves_is_refused():
    f32 = draw(8, 8).float()
    with emulate(), pytest.raises(EmulatorError, match="neither bfloat16 nor float16"):
        gemm(f32, f32)
    with emulate(), pytest.raises(EmulatorError, match="torch would"):
        gemm(draw(8, 0), draw(0, 8))
    with emulate(device="t4"), pytest.raises(EmulatorError, match="no kernel"):
        gemm(draw(8, 8), draw(8, 8))
    with emulate(), pytest.raises(EmulatorError, match="float64"):
        gemm(f32.double(), f32.double())


def test_empty_outputs_need_no_kernel():
    with emulate() as emulation:
        assert gemm(draw(0, 8), draw(8, 4)).shape == (0, 4)
    assert not emulation.launches


def test_errors_of_the_op_stay_the_same():
    with pytest.raises(RuntimeError) as plain:
        gemm(draw(4, 8), draw(4, 8))
    with emulate(), pytest.raises(RuntimeError) as emulated:
        gemm(draw(4, 8), draw(4, 8))
    assert str(plain.value) == str(emulated.value)


@pytest.mark.parametrize(
    "kwargs, word", [({"device": "frob"}, "h200"), ({"schedule": "x"}, "random")]
)
def test_bad_arguments(kwargs, word):
    with pytest.raises(ValueError, match=word):
        emulate(**kwargs)


def test_a_hazard_is_raised_with_its_report(monkeypatch):
    from deepasm_torch.emulator import torch_edge

    text = torch_edge.kernel_text

    def broken(plan):
        return text(plan).replace("fence.proxy.async.shared::cta;", "")

    monkeypatch.setattr(torch_edge, "kernel_text", broken)
    a, b = draw(128, 128), draw(128, 128, seed=1).t()
    with emulate(), pytest.raises(HazardError, match=r"missing-proxy-fence.*\n") as err:
        gemm(a, b)
    assert ".ptx.j2:" in str(err.value) and not err.value.result.ok
    with emulate(check=False) as emulation:
        gemm(a, b)
    assert not emulation.ok and "missing-proxy-fence" in emulation.report()


def test_outside_the_block_nothing_changes():
    a, b = draw(16, 16), draw(16, 16, seed=1)
    with emulate() as emulation:
        torch.mm(a, b)
    gemm(a, b)
    assert not emulation.launches
