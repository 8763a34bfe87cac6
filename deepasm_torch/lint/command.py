"""``deepasm lint``: static checks of the shipped kernels, or of PTX files."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..cli import CannotRun, Outcome


def configure(parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="PTX texts; none: what ships")
    parser.add_argument(
        "--arch", action="append", default=[], metavar="sm_XX",
        help="assemble for this target instead of the text's own (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--disable", action="append", default=[], metavar="ID", help="rules to leave out"
    )
    parser.add_argument("--max-regs", type=int, metavar="N", help="register budget (files only)")
    parser.add_argument("-k", dest="pattern", metavar="TEXT", help="shipped kernels named so")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="texts at a time")
    parser.add_argument("--list-rules", action="store_true", help="say what is checked, and stop")


def execute(args) -> Outcome:
    """Run the command."""
    try:
        from . import runner
        from .model import RULES
    except ImportError as error:
        raise CannotRun(
            f"the linter needs {error.name}: pip install 'deepasm_torch[test]'"
        ) from error
    if args.list_rules:
        return _list_rules(RULES)
    disabled = _disabled(args.disable, RULES)
    tools, notes = _tools(runner)
    targets = _targets(args.arch, tools.assembler)
    work = _files(args, targets) if args.files else _kernels(args, targets)
    started = time.monotonic()
    reports = _run(runner, work, tools, disabled, args)
    findings = [f for r in reports for f in r.findings]
    notes += [n for r in reports for n in r.notes]
    data = {
        "ptxas": tools.assembler.version,
        "nvdisasm": str(tools.nvdisasm) if tools.nvdisasm else None,
        "texts": len(reports),
        "entries": sum(r.entries for r in reports),
        "rules": len(RULES) - len(disabled),
        "seconds": round(time.monotonic() - started, 2),
        "findings": [dataclasses.asdict(f) for f in findings],
        "notes": notes,
    }
    return _outcome(data, findings, notes)


def _list_rules(rules) -> Outcome:
    rows = [dataclasses.asdict(r) for r in rules.values()]
    for row in rows:
        del row["check"]
    text = "\n".join(f"{r['id']:20} {r['severity']:8} {r['summary']}" for r in rows)
    return Outcome(data={"rules": rows}, text=text)


def _disabled(given, rules) -> frozenset[str]:
    names = frozenset(x for item in given for x in re.split(r"[,\s]+", item) if x)
    unknown = sorted(names - set(rules))
    if unknown:
        raise CannotRun(
            f"--disable {', '.join(unknown)}: no such rule; the rules are {', '.join(rules)}"
        )
    return names


def _tools(runner):
    from ..analysis import find_nvdisasm
    from ..codegen.ptxas import Assembler, AssemblyError

    try:
        assembler = Assembler()
        assembler.version  # noqa: B018 - a ptxas that does not run must be found here
    except (FileNotFoundError, AssemblyError, OSError) as error:
        raise CannotRun(f"the linter needs ptxas: {error}") from error
    try:
        return runner.Tools(assembler, find_nvdisasm()), []
    except FileNotFoundError as error:
        skipped = f"rules on machine code were skipped: {error}"
        return runner.Tools(assembler, None), [skipped]


def _targets(given, assembler) -> tuple[str, ...]:
    for target in given:
        if not assembler.knows(target):
            raise CannotRun(f"--arch {target}: ptxas {assembler.version} does not know this target")
    return tuple(given)


def _files(args, targets):
    """(name, what `lint_text` takes) of every file."""
    if args.pattern:
        raise CannotRun("-k chooses among the shipped kernels; it goes with no FILE")
    work = []
    for name in args.files:
        try:
            raw = Path(name).read_bytes()
        except OSError as error:
            raise CannotRun(f"{name}: {error.strerror or error}") from error
        text = raw.rstrip(b"\0").decode("utf-8", errors="replace")
        if "\0" in text or not re.search(r"^\s*\.version\b", text, re.MULTILINE):
            raise CannotRun(f"{name} is not PTX text: it has no .version line")
        work.append((name, (text, targets)))
    return work


def _kernels(args, targets):
    from ..kernels import ALL

    if args.max_regs is not None:
        raise CannotRun("--max-regs is for files; shipped kernels have their own budgets")
    rows = [k for k in ALL if not args.pattern or args.pattern in k.name]
    if not rows:
        raise CannotRun(f"-k {args.pattern} matches none of the {len(ALL)} shipped kernels")
    if targets:
        from .availability import Arch

        own = {80: Arch(80, ""), 90: Arch(90, "a")}
        fits = lambda k: tuple(t for t in targets if own[k.tier].runs(Arch.parse(t)))
        work = [(k.name, (k, fits(k))) for k in rows if fits(k)]
        if not work:
            raise CannotRun(f"none of the chosen kernels can be assembled for {', '.join(targets)}")
        return work
    return [(k.name, (k, ())) for k in rows]


def _run(runner, work, tools, disabled, args):
    """Lint in threads: most of the time passes in ptxas and nvdisasm."""
    from ..bench.progress import Progress

    def one(item):
        name, (what, targets) = item
        if isinstance(what, str):
            return runner.lint_text(
                what, tools, name=name, targets=targets, max_regs=args.max_regs, disabled=disabled
            )
        return runner.lint_kernel(what, tools, disabled, targets)

    reports = []
    with (
        Progress(len(work), quiet=args.json or len(work) == 1) as bar,
        ThreadPoolExecutor(max_workers=max(1, args.jobs)) as pool,
    ):
        if not bar.redraw:
            bar.quiet = True  # a line for each of many kernels is no progress bar
        for (name, _), report in zip(work, pool.map(one, work)):
            reports.append(report)
            bar.step(name)
    return reports


def _outcome(data, findings, notes) -> Outcome:
    from .model import HINT

    lines, seen = [], {}
    for f in findings:  # the same template line is wrong in every kernel made from it
        same = f.rule, f.where, f.message.replace(f.entry, "") if f.entry else f.message
        seen.setdefault(same, []).append(f)
    told = []
    for group in seen.values():
        first = group[0]
        others = len({f.entry for f in group}) - 1
        more = f" [and {others} more kernels]" if others > 0 else ""
        told.append((first.severity, f"{first}{more}"))
    errors = [text for severity, text in told if severity != HINT]
    lines += [text for severity, text in told if severity == HINT]
    lines += [f"note: {n}" for n in dict.fromkeys(notes)]
    count = {s: sum(x == s for x, _ in told) for s in ("error", "warning", HINT)}
    lines.append(
        f"{data['entries']} kernel{'' if data['entries'] == 1 else 's'}, {data['rules']} rules,"
        f" ptxas {data['ptxas']},"
        f" {data['seconds']:.1f} s: "
        + ", ".join(f"{n} {s}{'' if n == 1 else 's'}" for s, n in count.items())
    )
    return Outcome(data=data, text="\n".join(lines), errors=errors)
