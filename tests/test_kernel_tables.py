"""The kernel tables prove themselves, without a GPU.

Every row's columns agree with each other and with its name; it renders to the same text every time;
ptxas assembles it for every target its tier claims, within its register budget, without spills or
C75xx notes; the machine code holds the instructions the row promises.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deepasm_torch import codegen
from deepasm_torch.analysis import disassemble, find_nvdisasm
from deepasm_torch.codegen import Assembler, AssemblyError, find_ptxas, render, template_root
from deepasm_torch.kernels import ALL, gemm
from deepasm_torch.kernels.gemm_row import MAX_SMEM
from deepasm_torch.kernels.params import GEMM_FLAGS, GEMM_PARAMS, KINDS, layout

#: tier -> targets it claims.  Plain sm_80 PTX runs on everything later; sm_90a code only on itself.
TARGETS = {
    80: ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_110", "sm_120"),
    90: ("sm_90a",),
}
#: PTX ISA versions around the ones in use, to prove that no lower one would do.
VERSIONS = ("6.5", "7.0", "7.1", "7.8", "8.0", "8.1")
#: loads -> (opcodes that must be in the machine code, opcodes that must not)
OPCODES = {
    "tma": (("HGMMA", "UTMALDG", "SYNCS"), ("LDL", "STL", "HMMA")),
    "cp16": (("HMMA.16816.F32", "LDSM.16.M", "LDGSTS.E.BYPASS.128"), ("LDL", "STL", "HGMMA")),
    "any": (("HMMA.16816.F32", "LDSM.16.M", "LDG.E.U16"), ("LDL", "STL", "LDGSTS")),
}
every_kernel = pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in ALL])


@functools.cache
def assembler() -> Assembler:
    try:
        return Assembler(find_ptxas())
    except FileNotFoundError as error:
        pytest.skip(str(error))


@functools.cache
def assembled(kernel, target):
    """(cubin, report), or a skip where ptxas is missing or too old for the target."""
    if not assembler().knows(target):
        pytest.skip(f"ptxas {assembler().version} does not know {target}")
    return assembler().assemble(render(kernel), target, name=kernel.name, max_regs=kernel.max_regs)


def test_names_are_unique():
    names = [k.name for k in ALL]
    assert len(set(names)) == len(names)


@every_kernel
def test_row_agrees_with_itself(kernel):
    k = kernel
    assert re.fullmatch(r"[a-z][a-z0-9_]*", k.name)
    layouts = {majors: name for name, majors in gemm.LAYOUTS.items()}
    wanted = [f"{k.op}_sm{k.tier}", k.dtype, layouts.get((k.a_major, k.b_major), "any")]
    assert k.name.startswith("_".join(wanted) + f"_{k.bm}x{k.bn}x{k.bk}")
    assert (k.a_major == "*") == (k.b_major == "*") == (k.loads == "any")
    assert (k.loads == "tma") == (k.tier == 90)
    assert (template_root() / k.template).is_file() and k.template.startswith(f"sm{k.tier}/")
    assert k.threads % 32 == 0 and k.threads <= 1024 and k.cluster >= 1 and k.stages >= 2
    assert k.bk % 16 == 0 and k.bm % 16 == 0 and k.bn % 8 == 0
    assert 2 * k.bk * (k.bm + k.bn) * k.stages <= k.smem <= MAX_SMEM[k.tier]
    assert k.max_regs <= min(255, 65536 // k.threads)


@pytest.mark.parametrize("tier", sorted(TARGETS))
def test_tier_covers_every_layout(tier):
    rows = [k for k in ALL if k.op == "gemm" and k.tier == tier]
    for dtype in gemm.DTYPES:
        served = {k.reads for k in rows if k.dtype == dtype and k.d_major == "n"}
        assert served >= set(gemm.LAYOUTS.values())
        assert tier != 80 or ("*", "*") in served


def test_too_much_shared_memory_is_refused():
    columns = {name: getattr(ALL[0], name) for name in ALL[0].__dataclass_fields__}
    with pytest.raises(ValueError, match="of shared memory exceed"):
        gemm.GemmKernel(**{**columns, "smem": MAX_SMEM[ALL[0].tier] + 1})


def test_parameter_block():
    block, end = layout(), 0
    for name, kind, _ in GEMM_PARAMS:
        size, align, _ = KINDS[kind]
        offset = getattr(block, name)
        assert offset % align == 0 and end <= offset < end + align
        end = offset + size
    assert block.size % 128 == 0 and end <= block.size < 4096
    with pytest.raises(AttributeError, match="no field 'nonsense'"):
        _ = block.nonsense
    bits = [set(range(bit, bit + width)) for bit, width in GEMM_FLAGS.values()]
    assert len(set().union(*bits)) == sum(map(len, bits))


@every_kernel
def test_renders(kernel):
    text, marked = render(kernel), render(kernel, markers=True)
    assert render(kernel) == text
    assert f".visible .entry {kernel.name}(" in text and text.count(".entry") == 1
    assert "//" not in text and "\n\n" not in text and text.isascii()
    assert not re.search(r"\$\{|<%|<#|^\s*#", text, re.MULTILINE), "a template construct survived"
    bare = re.sub(r"\s*//[^\n]*", "", marked)
    assert [x.strip() for x in bare.split("\n") if x.strip()] == [
        x.strip() for x in text.split("\n") if x.strip()
    ]
    unmarked = [
        line
        for line in marked.split("\n")
        if re.search(r";\s*(//.*)?$", line) and f"{Path(kernel.template).suffix}:" not in line
    ]
    assert not unmarked, "instructions without the template line they come from"
    assert f".maxntid {kernel.threads}, 1, 1" in text


def test_rendering_does_not_depend_on_the_process():
    # The package itself imports torch, which has nothing to do with rendering and takes seconds.
    program = (
        "import hashlib, sys, types\n"
        "package = sys.modules['deepasm_torch'] = types.ModuleType('deepasm_torch')\n"
        "package.__path__ = [sys.argv[1]]\n"
        "from deepasm_torch import codegen, kernels\n"
        "text = ''.join(map(codegen.render, kernels.ALL))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    package = Path(codegen.__file__).parents[1]
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, package],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    "kernel, target",
    [pytest.param(k, t, id=f"{k.name}-{t}") for k in ALL for t in TARGETS[k.tier]],
)
def test_assembles(kernel, target):
    cubin, report = assembled(kernel, target)
    assert cubin.startswith(b"\x7fELF")
    assert 32 <= report.registers <= kernel.max_regs and not report.spill_bytes and not report.notes


@pytest.mark.parametrize("tier", sorted(TARGETS))
def test_ptx_version_is_the_lowest(tier):
    kernels = [k for k in ALL if k.tier == tier]
    used = {re.search(r"^\.version (\S+)$", render(k), re.MULTILINE).group(1) for k in kernels}
    assert len(used) == 1, f"tier {tier} uses several versions: {used}"
    lower = VERSIONS[VERSIONS.index(used.pop()) - 1]
    text = re.sub(r"^\.version \S+$", f".version {lower}", render(kernels[0]), flags=re.MULTILINE)
    with pytest.raises(AssemblyError, match=r"(?i)version|ISA"):
        assembler().assemble(text, TARGETS[tier][0], name=kernels[0].name)


@every_kernel
def test_machine_code(kernel):
    cubin, _ = assembled(kernel, TARGETS[kernel.tier][0])
    try:
        tool = find_nvdisasm()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = {i.opcode for i in disassemble(cubin, tool)[kernel.name]}
    wanted, banned = OPCODES[kernel.loads]
    for opcode in wanted:
        assert any(f.startswith(opcode) for f in found), f"no {opcode} in {sorted(found)}"
    for opcode in banned:
        assert not any(f.split(".")[0] == opcode for f in found), f"{opcode} in {kernel.name}"
    if kernel.tier == 80:
        assert any(f.startswith("HMMA") and f.endswith("BF16") for f in found) == (
            kernel.dtype == "bf16"
        )
