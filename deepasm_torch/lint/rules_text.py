"""Rules about a text as a whole: what ptxas refuses, and what it would refuse elsewhere."""

from __future__ import annotations

import re

from ..analysis import assemble
from .availability import OPCODES, VERSIONS, Arch, least_version, problem
from .model import ERROR, HINT, Context, rule


def _version(module) -> tuple[int, int]:
    found = [int(x) for x in re.findall(r"\d+", module.version or "")][:2]
    return (found[0], found[1]) if len(found) == 2 else (99, 0)


@rule("opcode", ERROR, "text", "an instruction that PTX does not have")
def unknown_opcodes(c: Context):
    for view in c.views:
        for ins in view.ins:
            if ins.parts[0] not in OPCODES:
                yield (
                    ins,
                    f"{ins.op} is no PTX instruction (column {ins.col})",
                    "check its spelling against the PTX ISA",
                )


@rule("target", ERROR, "text", "an instruction that the .target or .version does not have")
def availability(c: Context):
    version = _version(c.module)
    declared = Arch.parse(c.module.target)
    for target in dict.fromkeys((c.module.target, *c.targets)):
        arch = Arch.parse(target)
        if declared and arch and not declared.runs(arch):
            yield (
                c.line_of(".target"),
                f"PTX for {c.module.target} cannot be assembled for {target}",
                "sm_XYa code runs on that chip alone, sm_XYf in its family, plain sm_XY on"
                " everything later; write a kernel for the other target",
            )
        known: dict[str, str | None] = {}
        for ins in (i for view in c.views for i in view.ins):
            if ins.op not in known:
                known[ins.op] = problem(ins.op, target, version)
                if known[ins.op]:
                    yield (
                        ins,
                        known[ins.op],
                        "change the header, or use an instruction that the target has",
                    )


@rule("version", HINT, "text", "a .version higher than the text needs keeps older drivers out")
def lowest_version(c: Context):
    declared = _version(c.module)
    target = c.module.target
    ops = {i.op for view in c.views for i in view.ins}
    if declared not in VERSIONS or Arch.parse(target) is None or c.problems:
        return
    least = least_version(ops, target)
    for version in VERSIONS:
        if not least <= version < declared:
            continue
        lower = re.sub(
            r"^(\s*\.version\s+)\S+",
            lambda m: f"{m[1]}{version[0]}.{version[1]}",
            c.text,
            count=1,
            flags=re.MULTILINE,
        )
        if assemble(lower, target, c.assembler).ok:
            yield (
                c.line_of(".version"),
                f".version {declared[0]}.{declared[1]} is higher than needed",
                f"write .version {version[0]}.{version[1]}, the lowest that assembles for"
                f" {target}, so that older drivers can load the text",
            )
            return


@rule("ptxas-error", ERROR, "assembly", "ptxas refuses the text")
def refused(c: Context):
    for line, text in c.assembly.errors:
        yield (
            line,
            f"ptxas {c.assembler.version} refuses it: {text}",
            "correct the statement",
        )


#: code -> what it means and what to do
C75 = {
    "C7508": (
        "setmaxnreg is ignored because the register count at entry is not known",
        "add .maxntid (or .reqntid) with .minnctapersm 1, or .maxnreg",
    ),
    "C7510": (
        "wgmma is serialised because a call or function boundary lies in its pipeline",
        "keep wgmma code in one .entry, without calls",
    ),
    "C7511": (
        "wgmma is serialised for lack of registers, or because accumulators are written between"
        " the wgmmas of one batch",
        "use fewer accumulators a thread, raise the budget, or do not touch them",
    ),
    "C7514": (
        "wgmma is serialised because another instruction reads accumulators in flight",
        "read them only behind wgmma.wait_group",
    ),
    "C7515": (
        "wgmma is serialised because another instruction writes accumulators in flight",
        "write them before wgmma.fence or behind wgmma.wait_group (scale-d 0 needs no zeros)",
    ),
    "C7517": (
        "ptxas inserted a wait because accumulators are used before wgmma.wait_group",
        "wait for the batch first: wait_group 0, or the number of later batches",
    ),
    "C7519": (
        "ptxas inserted a fence because registers of a wgmma are written without wgmma.fence",
        "put wgmma.fence.sync.aligned between the writes and the first wgmma",
    ),
    "C7520": (
        "wgmma is serialised because it runs under a divergent branch",
        "branch on values that a whole warpgroup shares",
    ),
}
_BY_TEXT = (
    ("setmaxnreg", "setmaxnreg has no effect", "see the conditions in docs/lint.md"),
    ("wgmma", "wgmma is serialised", "keep fence, wgmma, commit and wait in straight-line code"),
    ("warpgroup", "ptxas inserted a warpgroup instruction", "write the fence or the wait yourself"),
)


@rule("ptxas-note", ERROR, "assembly", "a C75xx note of ptxas: slow or ineffective code")
def notes(c: Context):
    for note in c.assembly.notes:
        meaning, advice = C75.get(note.code, (None, None))
        if meaning is None:
            found = [rest for word, *rest in _BY_TEXT if word in note.text]
            meaning, advice = found[0] if found else ("ptxas warns", "read the note")
        first = next(
            (
                i
                for v in c.views
                if note.function in (None, v.name)  # C7508 names none
                for i in v.having("setmaxnreg." if "setmaxnreg" in note.text else "wgmma.")
            ),
            None,
        )
        text = note.text.removeprefix(f"({note.code}) ")
        yield note.line or first, f"{note.code}: {meaning} ({text})", advice


@rule("registers", ERROR, "assembly", "more registers than the kernel's budget")
def registers(c: Context):
    for view in c.views:
        used = c.assembly.resources.get(view.name)
        if used and c.max_regs and used.registers > c.max_regs:
            yield (
                c.line_of(f".entry {view.name}"),
                f"{view.name} takes {used.registers} registers, its budget is {c.max_regs}",
                "shorten live ranges or use a smaller tile; a larger budget costs occupancy",
            )


@rule("spills", ERROR, "assembly", "registers spilled to local memory")
def spills(c: Context):
    for view in c.views:
        used = c.assembly.resources.get(view.name)
        if used is None:
            continue
        if used.spill_bytes:
            message = (
                f"{view.name} spills {used.spill_stores} B of stores and"
                f" {used.spill_loads} B of loads"
            )
        elif used.stack_bytes and not view.entry.locals:
            message = f"{view.name} has a stack frame of {used.stack_bytes} B"
        else:
            continue
        yield (
            c.line_of(f".entry {view.name}"),
            message,
            "lower the register pressure or raise the limit (.maxnreg, .minnctapersm)",
        )
