"""Run the rules on a text: parse, assemble for each target, disassemble."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path

from ..analysis import assemble, disassemble
from ..emulator.errors import PtxError
from ..emulator.text.parser import parse
from .model import RULES, Context, EntryView, Finding

RULE_MODULES = ("rules_text", "rules_registers", "rules_async", "rules_sass")
for _name in RULE_MODULES:
    importlib.import_module(f"{__package__}.{_name}")


@dataclass
class Tools:
    """Programs the rules need: an `Assembler`, and nvdisasm or None to skip machine code."""

    assembler: object
    nvdisasm: Path | None = None


@dataclass
class Report:
    """Findings on one text, and what could not be looked at."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    entries: int = 0


def lint_text(
    text: str,
    tools: Tools,
    *,
    name: str = "ptx",
    targets: tuple[str, ...] = (),
    row: object = None,
    max_regs: int | None = None,
    disabled: frozenset[str] = frozenset(),
) -> Report:
    """Check one PTX text.

    Parameters
    ----------
    text : str
    tools : Tools
    name : str
        File name for messages; template markers and ``.loc`` lines win over it.
    targets : tuple of str, optional
        Architectures to assemble for, by default the text's own ``.target``.
    row : optional
        Row of the kernel tables that the text comes from.
    max_regs : int, optional
        Register budget of every entry.
    disabled : set of str
        Rules that are not wanted.

    Returns
    -------
    Report
    """
    report = Report(name)
    problems = []
    try:
        module = parse(text, name)
    except PtxError as error:
        problems, module = error.problems, error.module
    targets = targets or ((module.target,) if module.target else ())
    views = [EntryView(entry, entry.name) for entry in module.entries.values()]
    report.entries = len(views)

    def context(view=None, assembly=None, sass=None):
        return Context(
            name, text, module, problems, targets, tools.assembler, row, max_regs, view, assembly,
            sass, views,
        )  # fmt: skip

    def check(scope: str, c: Context) -> None:
        for rule in RULES.values():
            if rule.scope == scope and rule.id not in disabled:
                report.findings += [c.finding(rule, *found) for found in rule.check(c)]

    check("text", context())
    for view in views:
        if view.ins:
            check("entry", context(view))
    accepted = False
    for target in targets:
        if not tools.assembler.knows(target):
            report.notes.append(
                f"{name}: ptxas {tools.assembler.version} does not know {target}; what needs it"
                " was not checked"
            )
            continue
        assembly = assemble(text, target, tools.assembler)
        accepted |= assembly.ok
        check("assembly", context(assembly=assembly))
        if assembly.ok and tools.nvdisasm is not None:
            _check_machine_code(report, context, check, assembly, views, tools)
    if not targets:
        report.notes.append(f"{name}: no .target and no --arch, so nothing was assembled")
    if accepted:
        report.notes += [
            f"{name}:{line}:{column}: not understood, rules did not see it: {message}"
            for line, column, message in problems
        ]
    report.findings = list(dict.fromkeys(report.findings))
    return report


def _check_machine_code(report, context, check, assembly, views, tools) -> None:
    try:
        code = disassemble(assembly.cubin, tools.nvdisasm)
    except RuntimeError as error:
        report.notes.append(f"{report.name}: rules on machine code were skipped: {error}")
        return
    for view in views:
        if view.ins and view.name in code:
            check("sass", context(view, assembly, code[view.name]))


def lint_kernel(
    kernel, tools: Tools, disabled: frozenset[str] = frozenset(), targets: tuple[str, ...] = ()
) -> Report:
    """Check a row of the kernel tables, for every target it is embedded for."""
    from ..codegen.build import CUBIN_TARGETS
    from ..codegen.render import render

    return lint_text(
        render(kernel, markers=True),
        tools,
        name=f"{kernel.name}.ptx",
        targets=targets or CUBIN_TARGETS[kernel.tier],
        row=kernel,
        max_regs=kernel.max_regs,
        disabled=disabled,
    )
