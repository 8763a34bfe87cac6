"""Building and shipping (cases I02, I03, R10): one binary everywhere, and the assembly cache.

I01 (the isolated build and the wheel) and the rest of I03 (symbols of torch, CUDA and the C++
library) are in test_build.py.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import torch
from harness import isolated
from harness.elf import read_elf

#: Names of the stable ABI that look private (Misc/stable_abi.toml of CPython).
STABLE_ABI = {
    "_PyArg_ParseTuple_SizeT",
    "_Py_BuildValue_SizeT",
    "_Py_Dealloc",
    "_Py_FalseStruct",
    "_Py_NoneStruct",
    "_Py_TrueStruct",
}


def test_i03_limited_python_api():
    from deepasm_torch import _C

    binary = Path(_C.__file__)
    private = sorted(
        s for s in read_elf(binary).imported if s.startswith("_Py") and s not in STABLE_ABI
    )
    assert binary.name.endswith(".abi3.so") and not private, f"not in the limited API: {private}"


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
