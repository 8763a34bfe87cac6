"""Rules about machine code: what the PTX says must be there, and local memory must not."""

from __future__ import annotations

import re

from .availability import Arch
from .model import ERROR, WARNING, Context, rule

#: PTX opcode pattern -> (machine opcodes one of which must be there, least target)
EXPECTED = tuple(
    (re.compile(pattern), sass, least)
    for pattern, sass, least in (
        (r"wgmma\.mma_async\S*\.(?:bf16|f16|tf32)\.(?:bf16|f16|tf32)$", ("HGMMA",), 90),
        (r"wgmma\.mma_async\S*\.(?:e4m3|e5m2)$", ("QGMMA",), 90),
        (r"wgmma\.mma_async\S*\.[su]8$", ("IGMMA",), 90),
        (r"wgmma\.mma_async\S*\.b1", ("BGMMA",), 90),
        (r"cp\.reduce\.async\.bulk\.tensor", ("UTMAREDG",), 90),
        (r"cp\.async\.bulk\.tensor\S*\.shared::c\w+\.global", ("UTMALDG",), 90),
        (r"cp\.async\.bulk\.tensor\S*\.global\.shared::cta", ("UTMASTG",), 90),
        (r"cp\.async\.bulk\.prefetch\.tensor", ("UTMAPF",), 90),
        (r"cp\.async\.bulk\.(?:shared|global)", ("UBLKCP",), 90),
        (r"cp\.async\.bulk\.prefetch\.L2", ("UBLKPF",), 90),
        (r"cp\.async\.c[ag]\.", ("LDGSTS",), 80),
        (r"prefetch\.tensormap", ("UTMACCTL",), 90),
        (r"mma\.sync\S*\.f64$", ("DMMA",), 80),
        (r"mma\.sync\S*\.[su][48]\.", ("IMMA",), 80),
        (r"mma\.(?:sp\S*\.)?sync\S*\.(?:f16|bf16|tf32)\.(?:f16|bf16|tf32)\.", ("HMMA",), 75),
        (r"mma\S*\.e[45]m[23]", ("QMMA", "HMMA"), 89),
        (r"ldmatrix\.", ("LDSM",), 75),
        (r"stmatrix\.", ("STSM",), 90),
        (r"movmatrix\.", ("MOVM",), 75),
        (r"redux\.", ("REDUX", "CREDUX"), 80),
        (r"setmaxnreg\.", ("USETMAXREG",), 90),
        (r"griddepcontrol\.wait", ("ACQBULK",), 90),
        (r"griddepcontrol\.launch_dependents", ("PREEXIT",), 90),
        (r"mbarrier\.(?:init|arrive|try_wait|test_wait)", ("SYNCS",), 90),
        (r"barrier\.cluster\.", ("UCGABAR_ARV", "UCGABAR_WAIT"), 90),
        (r"(?:bar|barrier)\.(?:sync|arrive|red|cta)", ("BAR", "WARPSYNC"), 75),
    )
)  # fmt: skip


@rule("sass-missing", ERROR, "sass", "PTX whose machine instruction is not there")
def missing(c: Context):
    arch = Arch.parse(c.assembly.target)
    names = {i.name for i in c.sass}
    asked: dict[str, object] = {}
    for ins in c.view.ins:
        asked.setdefault(ins.op, ins)
    told = set()
    for op, ins in asked.items():
        for pattern, wanted, least in EXPECTED:
            if not pattern.match(op):
                continue
            if arch and arch.number >= least and wanted not in told and not names & set(wanted):
                told.add(wanted)
                yield (
                    ins,
                    f"{op} left no {' or '.join(wanted)} in the machine code",
                    "ptxas found it dead or unreachable, or replaced it: see the disassembly",
                )
            break


@rule("fp8-emulated", WARNING, "sass", "FP8 mma.sync computed with 16-bit instructions")
def fp8_emulated(c: Context):
    names = {i.name for i in c.sass}
    if "QMMA" in names:
        return
    for ins in c.view.having("mma."):
        if re.search(r"\.e[45]m[23]", ins.op):
            yield (
                ins,
                f"{c.assembly.target} has no FP8 mma.sync: ptxas unpacks to HMMA",
                "use wgmma on sm_90a or tcgen05 on sm_100a; native are sm_89 and sm_120",
            )
            return


@rule("local-memory", ERROR, "sass", "loads or stores of local memory in the machine code")
def local_memory(c: Context):
    if c.view.entry.locals:  # the author asked for it
        return
    found = [i for i in c.sass if i.name in ("LDL", "STL")]
    if found:
        yield (
            None,
            f"{c.view.name} has {len(found)} accesses to local memory, the first"
            f" {found[0].opcode} at 0x{found[0].offset:x}",
            "registers were spilled: lower the pressure or raise the limit",
        )


#: qualifier -> (instructions it counts for, suffix of the machine opcode, machine opcodes)
_LOADS = ("LDG", "LD")
_STORES = ("STG", "ST")
HINTS = (
    (r"ld\.\S*L1::no_allocate", _LOADS, r"\.NA\b"),
    (r"ld\.\S*L1::evict_first", _LOADS, r"\.EF\b"),
    (r"ld\.\S*L1::evict_last", _LOADS, r"\.EL\b"),
    (r"ld\.\S*L1::evict_unchanged", _LOADS, r"\.EU\b"),
    (r"ld\.\S*L2::64B", _LOADS, r"\.LTC64B"),
    (r"ld\.\S*L2::128B", _LOADS, r"\.LTC128B"),
    (r"ld\.\S*L2::256B", _LOADS, r"\.LTC256B"),
    (r"ld\.global\S*\.nc\b", _LOADS, r"\.CONSTANT"),
    (r"ld\.(?:global\.)?cs\b", _LOADS, r"\.EF\b"),
    (r"ld\.(?:global\.)?lu\b", _LOADS, r"\.LU\b"),
    (r"ld\.(?:global\.)?cv\b", _LOADS, r"\.STRONG\.SYS"),
    (r"st\.\S*L1::no_allocate", _STORES, r"\.NA\b"),
    (r"st\.\S*L1::evict_first", _STORES, r"\.EF\b"),
    (r"st\.\S*L1::evict_last", _STORES, r"\.EL\b"),
    (r"st\.(?:global\.)?cs\b", _STORES, r"\.EF\b"),
    (r"st\.(?:global\.)?wt\b", _STORES, r"\.STRONG\.SYS"),
    (r"cp\.async\.c[ag]\S*L2::64B", ("LDGSTS",), r"\.LTC64B"),
    (r"cp\.async\.c[ag]\S*L2::128B", ("LDGSTS",), r"\.LTC128B"),
    (r"cp\.async\.c[ag]\S*L2::256B", ("LDGSTS",), r"\.LTC256B"),
    (r"cp\.async\.cg\.", ("LDGSTS",), r"\.BYPASS\b"),
    (r"prefetch\.global\.L1", ("CCTL",), r"\.PF1\b"),
    (r"prefetch\.global\.L2::evict_last", ("CCTL",), r"\.PML2\b"),
    (r"prefetch\.global\.L2(?!::)", ("CCTL",), r"\.PF2\b"),
    (r"applypriority\.", ("CCTL",), r"\.DML2\b"),
    (r"discard\.", ("CCTL",), r"\.RML2\b"),
)  # fmt: skip
_HINTS = [(re.compile(p), names, re.compile(suffix)) for p, names, suffix in HINTS]


@rule("cache-hint", WARNING, "sass", "a cache hint that did not reach the machine code")
def cache_hint(c: Context):
    told = set()
    for ins in c.view.ins:
        if ins.op in told:
            continue
        told.add(ins.op)
        for pattern, names, suffix in _HINTS:
            if not pattern.match(ins.op):
                continue
            if not any(i.name in names and suffix.search(i.opcode) for i in c.sass):
                text = suffix.pattern.replace("\\.", ".").replace("\\b", "")
                yield (
                    ins,
                    f"the hint of {ins.op} did not reach the machine code: no"
                    f" {' or '.join(names)} with {text}",
                    "use a form that the target keeps, or drop the hint",
                )
