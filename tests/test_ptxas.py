"""The assembler's own errors: a ptxas that lies, cannot run, or says nothing."""

from __future__ import annotations

import stat

import pytest

from deepasm_torch.codegen import Assembler, AssemblyError, find_ptxas


@pytest.fixture
def script(tmp_path):
    def make(body, executable=True):
        path = tmp_path / "ptxas"
        path.write_text("#!/bin/sh\n" + body)
        if executable:
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


VERSION = 'if [ "$1" = --version ]; then echo "release 12.9, V12.9.86"; exit 0; fi\n'
WRITE = 'while [ "$1" != -o ]; do shift; done\nprintf x > "$2"\n'


@pytest.mark.parametrize(
    "body, why",
    [
        ("exit 0", "failed"),  # no cubin
        (WRITE, "no register count"),
        (WRITE + 'echo "Used 999 registers"', "999 registers, the budget is 168"),
        (WRITE + 'echo "Used 9 registers, 4 bytes spill stores"', "4 B of spills"),
        (WRITE + 'echo "Used 9 registers"; echo "(C7510) serialized"', "C7510"),
        ('echo "line 3: error"; exit 1', "line 3: error"),
    ],
)
def test_a_report_that_cannot_be_trusted_fails_the_build(script, body, why):
    with pytest.raises(AssemblyError, match=why):
        Assembler(script(VERSION + body)).assemble(".version 8.0", "sm_90a", max_regs=168)


def test_a_program_that_is_not_ptxas(script, monkeypatch):
    with pytest.raises(AssemblyError, match="does not look like ptxas"):
        _ = Assembler(script("echo hello")).version
    path = script("", executable=False)
    monkeypatch.setenv("DEEPASM_PTXAS", str(path))
    path.chmod(0o644)
    with pytest.raises(FileNotFoundError, match="not executable"):
        find_ptxas()
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(AssemblyError, match="cannot be run as ptxas"):
        _ = Assembler(path).version
