"""What every test of the suite can rely on.

One suite runs everywhere.  Tests marked `gpu` are skipped with the reason where no CUDA device can
be used; DEEPASM_REQUIRE_GPU=1 turns that into a failure of the whole session.  The `device` fixture
gives "cpu" (the ops' reference path) and "cuda".  Random data come from one seed per session, which
the header prints and DEEPASM_TEST_SEED replays.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
if Path(__file__).parents[1].joinpath("deepasm_torch").is_dir():  # plain `pytest` in a source tree
    sys.path.append(str(Path(__file__).parents[1]))

from harness import cuda_missing, requires_gpu, session_seed, summary, tier_missing
from harness.devices import devices_missing
from harness.process import prefetch, shut_down
from harness.watchdog import guard

MARKERS = {
    "gpu": "needs a CUDA device",
    "sm80": "runs a kernel of tier sm80 (compute capability at least 8.0)",
    "sm90": "runs a kernel of tier sm90 (compute capability exactly 9.0)",
    "multigpu": "needs two CUDA devices",
    "slow": "takes seconds, or gigabytes; deselect with -m 'not slow'",
    "perf": "measures time",
}


def pytest_configure(config):
    session_seed()  # before workers are started, so that all of them inherit it
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_report_header(config):
    device = cuda_missing() or torch.cuda.get_device_name(0)
    return [
        f"torch {torch.__version__}, {device}",
        f"seed {session_seed()} (replay with DEEPASM_TEST_SEED={session_seed()})",
    ]


@pytest.fixture(scope="session", autouse=True)
def _gpu_where_required():
    if requires_gpu() and cuda_missing():
        pytest.fail(f"DEEPASM_REQUIRE_GPU is set, but there is {cuda_missing()}", pytrace=False)


def _reason_to_skip(item) -> str | None:
    if item.get_closest_marker("multigpu"):
        return devices_missing(2)
    for tier in (80, 90):
        if item.get_closest_marker(f"sm{tier}") and tier_missing(tier):
            return tier_missing(tier)
    return cuda_missing() if item.get_closest_marker("gpu") else None


def pytest_collection_modifyitems(items):
    if requires_gpu() and cuda_missing():
        return  # nothing is skipped: the session fixture fails every test
    for item in items:
        if reason := _reason_to_skip(item):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session):
    workers = min(6, (os.cpu_count() or 1) // 3)
    under_xdist = "PYTEST_XDIST_WORKER" in os.environ
    if (
        workers > 1
        and not under_xdist
        and not cuda_missing()
        and not session.config.option.collectonly
    ):
        prefetch(session.items, workers)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    timer = guard(item) if item.get_closest_marker("gpu") and not cuda_missing() else None
    yield
    if timer:
        timer.cancel()


def pytest_sessionfinish(session):
    shut_down()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    """ "cpu", then "cuda" (skipped with the reason where there is none)."""
    return request.param


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def half(request) -> torch.dtype:
    """The input dtypes that have kernels."""
    return request.param


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "f16", "f32"])
def dtype(request) -> torch.dtype:
    """The half types, and float32, which falls back to torch on CUDA."""
    return request.param


def pytest_terminal_summary(terminalreporter):
    summary.print_summary(terminalreporter)
