"""GPUs that are not here (case R12), and problems too large to run, through the planner.

`planning.plan_gemm` runs the code that precedes every launch, on a description of a GPU; so what a
T4, an RTX 4090 or a B200 would get is checked on any machine.
"""

from __future__ import annotations

import pytest

from deepasm_torch import planning
from deepasm_torch.kernels import gemm as table

DTYPES = ["bfloat16", "float16"]
LAYOUTS = {
    "nn": ((64 * 17, 1), (64 * 9, 1)),
    "nt": ((64 * 17, 1), (1, 64 * 17)),
    "tn": ((1, 64 * 31), (64 * 9, 1)),
    "tt": ((1, 64 * 31), (1, 64 * 17)),
}
SHAPE = (64 * 31, 64 * 17, 64 * 9)  # m, k, n


def _plan(device, dtype="bfloat16", layout="nn", **kwargs):
    m, k, n = SHAPE
    a_stride, b_stride = LAYOUTS[layout]
    return planning.plan_gemm(
        (m, k), a_stride, (k, n), b_stride, dtype=dtype, device=device, **kwargs
    )


def _capability(cc, smem_kib):
    return planning.DeviceRecord(f"a GPU of capability {cc}", cc, 80, smem_kib * 1024)


OLD = [_capability((7, 0), 96), planning.DEVICES["t4"]]
AMPERE_AND_LATER = [d for d in planning.DEVICES.values() if d.cc >= (8, 0) and d.cc != (9, 0)]
UNKNOWN = [
    _capability((9, 1), 227),
    _capability((10, 3), 227),
    _capability((12, 1), 99),
    _capability((13, 0), 227),
]
HOPPER = [planning.DEVICES["h100"], planning.DEVICES["h200"]]
ids = {"ids": lambda value: value.name if hasattr(value, "cc") else str(value)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", OLD, **ids)
def test_r12_too_old_falls_back_and_names_the_capability(device, dtype):
    plan = _plan(device, dtype)
    assert plan.route == "fallback" and not plan.native
    assert "{}.{}".format(*device.cc) in plan.reason and "8.0" in plan.reason


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", AMPERE_AND_LATER + UNKNOWN, **ids)
def test_r12_everything_from_ampere_on_gets_tier_sm80(device, dtype, layout):
    """No '>= 9' test offers sm_90a kernels to newer GPUs, and shared memory fits."""
    plan = _plan(device, dtype, layout)
    assert plan.native and plan.tier == 80, plan.reason
    assert plan.smem <= device.smem
    assert table.KERNELS[plan.variant].name == plan.kernel and plan.launches == 1
    hopper = [c for c in plan.candidates if table.KERNELS[c.variant].tier == 90]
    assert all(c.cost is None and c.reason for c in hopper)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", HOPPER, **ids)
def test_r12_hopper_gets_tier_sm90(device, dtype, layout):
    plan = _plan(device, dtype, layout)
    assert plan.native and plan.tier == 90, plan.reason
    assert plan.smem <= device.smem and 0 < plan.grid[0] <= device.sms
    kernel = table.KERNELS[plan.variant]
    assert kernel.reads == table.LAYOUTS[layout]
    limited = _plan(device, dtype, layout, tier=80)
    assert limited.native and limited.tier == 80, limited.reason


def test_r12_a_gpu_with_little_shared_memory_gets_a_kernel_that_fits():
    plan = _plan(_capability((9, 0), 99))
    assert plan.native and plan.smem <= 99 * 1024
    assert not _plan(_capability((8, 0), 1)).native


@pytest.mark.parametrize("device", ["h200", "a100"])
def test_g04_a_large_batch_is_not_a_grid_dimension(device):
    plan = planning.plan_gemm((70_000, 8, 8), None, (70_000, 8, 8), None, device=device)
    assert plan.native, plan.reason
    assert plan.grid[1:] == (1, 1) and plan.grid[0] <= 4 * planning.DEVICES[device].sms
    assert plan.fields()["tiles"] == 70_000 and plan.launches == 1


@pytest.mark.parametrize("device", ["h200", "a100"])
def test_g06_strides_beyond_32_bits_arrive_whole(device):
    rows, pitch, step = 100_000, 50_000, 3 * 2**31
    plan = planning.plan_gemm((2, rows, 64), (step, pitch, 1), (64, 8), None, device=device)
    assert plan.native, plan.reason
    fields = plan.fields()
    assert fields["a_sm"] == pitch and step in (fields["a_sz0"], fields["a_sz1"])


@pytest.mark.parametrize(
    "a, b",
    [
        ((2**31, 64, 8), (8, 128)),  # products in a batch
        ((8, 2**31 + 8), (2**31 + 8, 8)),  # length of the sum
        ((2**31 + 8, 8), (8, 8)),  # rows
        ((2**20, 2**17, 8), (2**20, 8, 4096)),  # tiles
    ],
    ids=str,
)
def test_what_32_bit_counters_cannot_hold_falls_back(a, b):
    """Refused with a reason, never wrapped around."""
    plan = planning.plan_gemm(a, None, b, None, device="h200")
    assert plan.route == "fallback" and "2^31" in plan.reason, plan.reason
