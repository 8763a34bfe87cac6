"""The shipped GEMM kernels run exactly and silently: tails, several tiles per CTA, features.

One kernel of each structural class runs here on small shapes under every schedule; with
``-m slow`` every kernel of the table does.
"""

from __future__ import annotations

import gemm_launch
import numpy as np
import pytest

from deepasm_torch.kernels.gemm import KERNELS

SCHEDULES = ("round_robin", "random", "adversarial")


def structure(kernel):
    """What makes kernels the same program but for numbers."""
    layouts = kernel.a_major, kernel.b_major, getattr(kernel, "d_major", "n")
    return kernel.tier, kernel.schedule, *layouts, kernel.loads


CLASSES = list({structure(k): k for k in reversed(KERNELS)}.values())[::-1]


def shapes(kernel):
    """Full tiles, tails in every dimension, and more tiles than CTAs with a short and a long K."""
    m, n, k = kernel.bm, kernel.bn, kernel.bk
    yield (m, n, k), {}
    yield (m + 24, max(n - 24, 8), 3 * k - 8), {"ctas": 1}
    yield (3 * m, n + 8, k * (kernel.stages + 2)), {"ctas": 2}


def check(kernel, shape, **options):
    res, got, want = gemm_launch.run(kernel, *shape, **options)
    assert res.ok, f"{kernel.name} {shape} {options}\n{res.report()}"
    out = options.get("out", "same")
    expect = gemm_launch.rounded(want, kernel.dtype if out == "same" else out)
    assert np.array_equal(got, expect), f"{kernel.name} {shape} {options}"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", CLASSES, ids=lambda k: k.name)
def test_every_class_is_exact_and_silent(kernel, schedule):
    for shape, options in shapes(kernel):
        check(kernel, shape, schedule=schedule, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k not in CLASSES], ids=lambda k: k.name)
def test_every_other_kernel_is_exact_and_silent(kernel):
    for (shape, options), schedule in zip(shapes(kernel), SCHEDULES):
        check(kernel, shape, schedule=schedule, **options)


FEATURES = [
    {"bias": "in"},
    {"bias": "f32", "activation": 1},
    {"c": "in", "beta": 2.0},
    {"c": "f32", "beta": -1.0, "alpha": 2.0},
    {"out": "f32"},
    {"batch": 3},
    {"tma_store": False},
]


@pytest.mark.parametrize("options", FEATURES, ids=str)
@pytest.mark.parametrize("tier", [80, 90])
def test_features(tier, options):
    kernel = next(k for k in KERNELS if k.tier == tier and k.dtype == "bf16")
    check(kernel, (kernel.bm + 8, 72, 2 * kernel.bk), ctas=2, **options)


def test_a_gemm_of_a_quarter_million_outputs_takes_well_under_half_a_second():
    """Processor time, minimum of three: the bar is 0.5 s on an idle core."""
    import time

    kernel = next(k for k in KERNELS if k.name == "gemm_sm90_bf16_nt_128x256x64_coop")
    gemm_launch.run(kernel, 256, 512, 64)
    times = []
    for _ in range(3):
        start = time.process_time()
        gemm_launch.run(kernel, 256, 512, 512, ctas=4)
        times.append(time.process_time() - start)
    assert min(times) < 0.5
