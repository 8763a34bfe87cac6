"""What the package does to a process: import, fork, environment variables (cases R09, I02).

Every test starts a fresh interpreter, because all of it happens once per process.
"""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from harness import isolated


def _mapped(name: str) -> bool:
    with open("/proc/self/maps") as maps:
        return any(name in line for line in maps)


@isolated(timeout=120)
def test_r09_import_touches_no_driver():
    before = _mapped("libcuda.so")
    import deepasm_torch

    assert not torch.cuda.is_initialized()
    a = torch.ones(4, 4)
    assert bool((torch.ops.deepasm.gemm(a, a) == 4).all())
    with deepasm_torch.override():
        torch.nn.Linear(4, 4)(a)
    assert not torch.cuda.is_initialized()
    assert _mapped("libcuda.so") == before, "importing, or a CPU call, loaded the CUDA driver"


def _cuda_works():
    assert bool((torch.ones(1).cuda() == 1).all())


@pytest.mark.gpu
@isolated(timeout=120)
def test_r09_a_fork_after_import_can_use_cuda():
    import deepasm_torch  # noqa: F401

    process = multiprocessing.get_context("fork").Process(target=_cuda_works)
    process.start()
    process.join(90)
    assert process.exitcode == 0


class _Products(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        a = torch.full((2, 2), float(i))
        return torch.ops.deepasm.gemm(a, torch.eye(2))


@isolated(timeout=120)
def test_r09_data_loader_workers():
    import deepasm_torch  # noqa: F401

    loader = torch.utils.data.DataLoader(
        _Products(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    assert [float(x[0, 0, 0]) for x in loader] == [0.0, 4.0]


def _uses_inherited(a, queue):
    try:
        torch.ops.deepasm.gemm(a, a)
        torch.cuda.synchronize()
        queue.put("no error")
    except RuntimeError as error:
        queue.put(str(error))


@pytest.mark.gpu
@isolated(timeout=120)
def test_r09_a_fork_after_cuda_use_gets_an_error():
    import deepasm_torch  # noqa: F401

    a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.ops.deepasm.gemm(a, a)
    torch.cuda.synchronize()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_uses_inherited, args=(a, queue))
    process.start()
    process.join(60)
    hung = process.is_alive()
    process.kill()
    assert not hung, "the forked child hung"
    assert process.exitcode == 0 and queue.get() != "no error"


@pytest.mark.gpu
@isolated(timeout=120, env={"DEEPASM_DISABLE": "1"})
def test_disable_sends_every_call_to_torch():
    from harness.counters import counting

    a = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    with counting() as counts:
        assert bool((torch.ops.deepasm.gemm(a, a) == 64).all())
    assert (counts.launches, counts.fallbacks) == (0, 1) and "DEEPASM_DISABLE" in counts.reason


@pytest.mark.gpu
@isolated(timeout=200, env={"DEEPASM_TIER": "sm80"})
def test_tier_sm80_runs_everything_on_sm80_kernels():
    from harness import check_gemm, registry
    from harness.counters import counting
    from harness.devices import multiprocessors

    with counting() as counts:
        for subject in registry.planner_subjects():
            for case in registry.cases(subject, multiprocessors("cuda")):
                check_gemm(
                    case, "cuda", tile=subject.tile, native=True, label=f"sm80 {subject.name}"
                )
    assert counts.kernels and all("_sm80_" in name for name in counts.kernels), counts.kernels


@pytest.mark.gpu
@isolated(timeout=120, env={"DEEPASM_MAX_SMS": "7"})
def test_max_sms_from_the_environment():
    from deepasm_torch import _C

    assert _C.get_option("max_sms") == 7
    a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    assert bool((torch.ops.deepasm.gemm(a, a) == 1024).all())


@isolated(timeout=120, env={"CUDA_VISIBLE_DEVICES": ""})
def test_i02_no_gpu():
    """Import and CPU ops work; an entry point that needs a device says so in one clear error."""
    import deepasm_torch

    x = torch.ones(1, 4)
    with deepasm_torch.override():
        layer = torch.nn.Linear(4, 4)
        assert torch.allclose(layer(x), x @ layer.weight.t() + layer.bias)
    with pytest.raises(RuntimeError, match=r"(?i)cuda|gpu|driver|device") as error:
        deepasm_torch.warmup()
    assert len(str(error.value).splitlines()) <= 3


@isolated(
    timeout=120, env={"DEEPASM_TIER": "sm70", "DEEPASM_MAX_SMS": "many", "DEEPASM_DISABLE": ""}
)
def test_nonsense_in_the_environment_does_not_break_the_import():
    import deepasm_torch  # noqa: F401
    from deepasm_torch import _C

    assert (_C.get_option("tier"), _C.get_option("max_sms"), _C.get_option("disable")) == (0, 0, 0)
