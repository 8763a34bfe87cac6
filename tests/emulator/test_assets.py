"""Every PTX text of the emulator's tests is real PTX: ptxas assembles it."""

from __future__ import annotations

import re
import subprocess

import pytest
import test_atomics
import test_dsmem
import test_emulator_counters
import test_families
import test_foreign
import test_hazards
import test_mbarrier
import test_mma
import test_tma
import test_tma_stores
import test_warp
import test_wgmma
from ptx_case import TEXTS

from deepasm_torch.codegen import find_ptxas


def _ptxas():
    try:
        return find_ptxas()
    except FileNotFoundError:
        return None


# importing a test module registers its texts
MODULES = (
    test_atomics,
    test_emulator_counters,
    test_dsmem,
    test_families,
    test_foreign,
    test_hazards,
    test_mbarrier,
    test_mma,
    test_tma,
    test_tma_stores,
    test_warp,
    test_wgmma,
)


@pytest.mark.skipif(_ptxas() is None, reason="no ptxas found")
@pytest.mark.parametrize("name", TEXTS)
def test_ptxas_accepts(name, tmp_path):
    text = TEXTS[name]
    target = re.search(r"^\.target (\w+)", text, re.MULTILINE).group(1)
    source = tmp_path / "k.ptx"
    source.write_text(text)
    done = subprocess.run(
        [_ptxas(), f"-arch={target}", "-O0", source, "-o", tmp_path / "k.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + "\n" + text
