"""Building and shipping (cases I02, I03, R10): what the binary imports, and the assembly cache.

I01, the isolated build and the wheel, is in test_build.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from pathlib import Path

import torch
from harness import isolated
from harness.elf import read_elf

ROOT = Path(__file__).resolve().parents[1]
#: Names of the stable ABI that look private (Misc/stable_abi.toml of CPython).
STABLE_ABI = {
    "_PyArg_ParseTuple_SizeT",
    "_Py_BuildValue_SizeT",
    "_Py_Dealloc",
    "_Py_FalseStruct",
    "_Py_NoneStruct",
    "_Py_TrueStruct",
}


def _binary() -> Path:
    from deepasm_torch import _C

    return Path(_C.__file__)


def test_i03_only_stable_symbols():
    """No C++ symbol of torch, nothing of CUDA: one binary for every torch, GPU or not."""
    elf = read_elf(_binary())
    mangled = sorted(
        s for s in elf.imported if re.match(r"_ZN?K?(St)?\d*(2at|3c10|5torch|6caffe2)", s)
    )
    assert not mangled, f"unstable torch symbols: {mangled[:5]}"
    cuda = sorted(s for s in elf.imported if re.match(r"(cu|cuda|nvrtc|cublas)[A-Z]", s))
    assert not cuda, f"CUDA symbols: {cuda[:5]}"
    in_cpu_builds = {"aoti_torch_device_type_cuda"}  # a constant
    only_in_cuda_torch = sorted(
        s for s in elf.imported - elf.weak - in_cpu_builds if "cuda" in s.lower()
    )
    assert not only_in_cuda_torch, f"a CPU build of torch lacks {only_in_cuda_torch}"
    assert not [lib for lib in elf.needed if re.search(r"cuda|nvrtc|cublas|c10", lib)]


def test_i03_limited_python_api():
    assert _binary().name.endswith(".abi3.so")
    private = sorted(
        s for s in read_elf(_binary()).imported if s.startswith("_Py") and s not in STABLE_ABI
    )
    assert not private, f"outside of the limited API: {private}"


def test_i03_glibc_floor(record_property):
    """manylinux_2_28 (GLIBC 2.28, GLIBCXX 3.4.25): asserted for release wheels, else reported."""
    floor = {}
    for version in read_elf(_binary()).versions:
        name, _, number = version.partition("_")
        if re.fullmatch(r"[\d.]+", number):
            parts = tuple(map(int, number.split(".")))
            floor[name] = max(floor.get(name, (0,)), parts)
    record_property("floor", json.dumps(floor))
    assert floor.get("GLIBC", (0,)) >= (2, 2), f"no GLIBC versions found: {floor}"
    if os.environ.get("DEEPASM_RELEASE"):
        assert floor["GLIBC"] <= (2, 28) and floor.get("GLIBCXX", (0,)) <= (3, 4, 25), floor


FAKE_PTXAS = """#!/bin/sh
# Behaves like ptxas, and logs its runs: the cache is what is under test.
[ "$1" = --version ] && echo "Cuda compilation tools, release 99.1, V99.1.7" && exit
echo run >> "{log}"
for last; do case "$last" in *.ptx) source="$last";; esac; done
sha256sum < "$source" > "$last"
sleep 0.02
seq 1000 >> "$last"
echo "ptxas info : 0 bytes stack frame, 0 bytes spill stores" >&2
echo "ptxas info : Used 32 registers" >&2
"""


def _fake_ptxas(folder: Path) -> tuple[Path, Path]:
    path, log = folder / "ptxas", folder / "log"
    path.write_text(FAKE_PTXAS.format(log=log))
    path.chmod(0o755)
    return path, log


def _rows():
    from deepasm_torch import kernels

    return kernels.ALL[:2]


def _build_at_once(barrier, folder, ptxas, results):
    from deepasm_torch import codegen

    barrier.wait()
    summary = codegen.build(folder, jobs=2, ptxas=ptxas, table=_rows())
    results.put(sorted(summary["kernels"]))


@isolated(timeout=240)
def test_r10_processes_race_on_the_assembly_cache():
    """Eight processes assemble the same kernels into one cache; every file left is whole."""
    import tempfile

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        ptxas, _ = _fake_ptxas(Path(name))
        for turn in range(2):
            folder = Path(name, f"out{turn}")
            barrier, results = context.Barrier(8), context.Queue()
            processes = [
                context.Process(target=_build_at_once, args=(barrier, folder, ptxas, results))
                for _ in range(8)
            ]
            for p in processes:
                p.start()
            found = [results.get(timeout=60) for _ in processes]
            for p in processes:
                p.join(60)
            assert [p.exitcode for p in processes] == [0] * 8
            assert all(names == sorted(k.name for k in _rows()) for names in found)
            left = {path.suffix for path in (folder / "cache").iterdir()}
            assert left == {".cubin", ".json"}, f"temporary files were left: {left}"


def test_r10_damaged_cache_entries_are_made_again(tmp_path):
    from deepasm_torch import codegen

    ptxas, log = _fake_ptxas(tmp_path)

    def build():
        before = len(log.read_text().splitlines()) if log.exists() else 0
        codegen.build(tmp_path / "out", ptxas=ptxas, table=_rows())
        return len(log.read_text().splitlines()) - before, (
            tmp_path / "out" / "kernels.blob"
        ).read_bytes()

    runs, blob = build()
    assert runs >= len(_rows())
    assert build() == (0, blob), "an unchanged table was assembled again"
    cubin, *_ = sorted((tmp_path / "out" / "cache").glob("*.cubin"))
    cubin.write_bytes(cubin.read_bytes()[: cubin.stat().st_size // 2])
    assert build() == (1, blob), "a truncated entry must be assembled again"
    cubin.write_bytes(cubin.read_bytes()[:-1] + b"\1")
    assert build() == (1, blob), "an entry with a flipped byte must be assembled again"
    cubin.with_suffix(".json").unlink()
    (cubin.parent / f"{cubin.stem}.99999.part").write_bytes(b"half")
    assert build() == (1, blob)


def test_i02_works_with_this_build_of_torch():
    """The same binary imports under CPU-only and CUDA builds of torch; this is one of the two."""
    import deepasm_torch  # noqa: F401

    assert torch.ops.deepasm.gemm(torch.eye(3), torch.ones(3, 3)).sum() == 9
