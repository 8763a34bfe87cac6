"""Bugs planted in the rendered GEMM kernels: each must be reported under at least one schedule.

Every case edits the PTX text of one kernel at one site and names the reports that may answer it.
The unedited kernel is run too: it must be exact and silent, so a rule that always fires fails here.
"""

from __future__ import annotations

import re

import gemm_launch
import pytest

from deepasm_torch.kernels.gemm_sm80 import SM80_KERNELS
from deepasm_torch.kernels.gemm_sm90 import SM90_KERNELS

KERNELS = {k.name: k for k in SM90_KERNELS + SM80_KERNELS}
COOP = KERNELS["gemm_sm90_bf16_nt_128x256x64_coop"]
PING = KERNELS["gemm_sm90_bf16_nt_128x128x64_pingpong"]
SMALL = KERNELS["gemm_sm90_bf16_nt_64x64x64_pingpong"]
MMA = KERNELS["gemm_sm80_bf16_nt_128x128x32"]
SCHEDULES = ("round_robin", "random", "adversarial")
SHAPE = {
    COOP.name: (256, 512, 640),
    PING.name: (256, 512, 1024),
    MMA.name: (256, 256, 256),
    SMALL.name: (384, 192, 128),
}


def drop(pattern, which=None):
    """Comment out the matching statements (all, or the one with index ``which``)."""

    def edit(text):
        found = list(re.finditer(pattern, text))
        assert found, pattern
        for m in reversed(found if which is None else [found[which]]):
            text = text[: m.start()] + "//" + text[m.start() :]
        return text

    return edit


def swap(pattern, new, which=None):
    """Replace matches."""

    def edit(text):
        found = list(re.finditer(pattern, text))
        assert found, pattern
        for m in reversed(found if which is None else [found[which]]):
            text = text[: m.start()] + m.expand(new) + text[m.end() :]
        return text

    return edit


CASES = [
    (
        "no proxy fence before the TMA store",
        COOP,
        drop(r"fence\.proxy\.async"),
        {"missing-proxy-fence"},
    ),
    (
        "no barrier after mbarrier.init",
        COOP,
        drop(r"bar\.sync 0;"),
        {"mbarrier-init-race", "mbarrier-uninit"},
    ),
    (
        "consumer starts with parity 1",
        COOP,
        swap(r"mov\.u32 %phase, 0;", "mov.u32 %phase, 1;"),
        {"uninit-shared", "race-raw", "race-war", "deadlock"},
    ),
    (
        "producer starts with parity 0",
        COOP,
        swap(r"mov\.u32 %phase, 1;", "mov.u32 %phase, 0;"),
        {"deadlock"},
    ),
    (
        "expect_tx too small",
        COOP,
        swap(r"(expect_tx\S* _, \[%full_bar\], )(\d+);", r"\g<1>32768;"),
        {"tx-count", "race-raw", "uninit-shared"},
    ),
    (
        "expect_tx too large",
        COOP,
        swap(r"(expect_tx\S* _, \[%full_bar\], )(\d+);", r"\g<1>65536;"),
        {"deadlock"},
    ),
    (
        "empty arrive before the wgmma wait",
        COOP,
        swap(
            r"(wgmma\.wait_group\.sync\.aligned 0;[^\n]*\n)(\s*@%leader mbarrier\.arrive[^\n]*\n)",
            r"\2\1",
        ),
        {"race-war"},
    ),
    ("no wait before the epilogue", COOP, drop(r"wgmma\.wait_group"), {"accumulator-touched"}),
    ("no wgmma.fence", COOP, drop(r"wgmma\.fence"), {"missing-wgmma-fence"}),
    ("no staging barrier before stmatrix", COOP, drop(r"bar\.sync %wg_bar, 128;", 0), {"race-war"}),
    (
        "no staging barrier before the TMA store",
        COOP,
        drop(r"bar\.sync %wg_bar, 128;", 1),
        {"race-raw", "uninit-shared", "missing-proxy-fence"},
    ),
    (
        "barrier count 96 for 128",
        COOP,
        swap(r"bar\.sync %wg_bar, 128;", "bar.sync %wg_bar, 96;"),
        {
            "race-raw",
            "race-war",
            "missing-proxy-fence",
            "barrier-count",
            "barrier-reuse",
            "deadlock",
        },
    ),
    (
        "no wait_group.read",
        COOP,
        drop(r"@%elect cp\.async\.bulk\.wait_group\.read"),
        {"race-war", "exit-pending-store"},
    ),
    (
        "no final wait_group",
        COOP,
        drop(r"@%?\w* ?cp\.async\.bulk\.wait_group(?:\.read)? 0;"),
        {"exit-pending-store"},
    ),
    (
        "pingpong without the order barrier",
        PING,
        drop(r"bar\.sync %order_mine, 256;"),
        {"race-war", "race-raw", "over-arrive", "deadlock"},
    ),
    (
        "two lanes arrive instead of one",
        COOP,
        swap(r"setp\.eq\.u32 %leader, %lane, 0;", "setp.lt.u32 %leader, %lane, 2;"),
        {"over-arrive", "race-war", "race-raw"},
    ),
    (
        "a register is never written",
        COOP,
        drop(r"shr\.u32 %warpgroup, %thread, 7;"),
        {"uninit-register"},
    ),
    ("setmaxnreg.dec dropped", COOP, drop(r"setmaxnreg\.dec"), {"deadlock"}),
    ("sm80: no cp.async wait", MMA, drop(r"cp\.async\.wait_group"), {"race-raw", "uninit-shared"}),
    ("sm80: no barrier", MMA, drop(r"bar\.sync 0"), {"race-raw", "race-war", "uninit-shared"}),
]


REUSED_BOX = swap(r"cp\.async\.bulk\.wait_group\.read 0;", "cp.async.bulk.wait_group.read 1;", 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_staging_box_reused_too_early(schedule):
    """docs/emulator.md tells this one: the result is right under round robin, the report is not."""
    res, got, want = gemm_launch.run(SMALL, *SHAPE[SMALL.name], schedule=schedule, edit=REUSED_BOX)
    assert {h.kind for h in res.hazards} == {"race-war"}
    assert all("epilogue_sm90.ptx.j2" in h.where and "stmatrix" in h.text for h in res.hazards)
    right = (got == gemm_launch.rounded(want, SMALL.dtype)).all()
    assert right == (schedule == "round_robin")


@pytest.mark.parametrize("kernel", [COOP, PING, MMA], ids=lambda k: k.name)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_unedited_kernel_is_silent(kernel, schedule):
    res, got, want = gemm_launch.run(kernel, *SHAPE[kernel.name], schedule=schedule)
    assert res.ok, res.report()
    assert (got == gemm_launch.rounded(want, kernel.dtype)).all()


@pytest.mark.parametrize("name, kernel, edit, kinds", CASES, ids=[c[0] for c in CASES])
def test_planted_bug_is_reported(name, kernel, edit, kinds):
    seen = set()
    for schedule in SCHEDULES:
        res, _, _ = gemm_launch.run(
            kernel, *SHAPE[kernel.name], schedule=schedule, edit=edit, limit=4
        )
        seen |= {h.kind for h in res.hazards}
        if seen & kinds:
            return
    pytest.fail(f"{name}: expected one of {sorted(kinds)}, got {sorted(seen)}")
