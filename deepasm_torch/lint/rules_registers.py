"""Rules about registers: never written, never read, setmaxnreg, 64-bit shared addresses."""

from __future__ import annotations

import re

from .model import ERROR, HINT, WARNING, Context, rule
from .operands import reads, writes
from .values import Values

WARPGROUP = 128
REGISTER_FILE = 65536


@rule("unwritten-register", ERROR, "entry", "a register that is read and never written")
def never_written(c: Context):
    written = {r.index for i in c.view.ins for r in writes(i)}
    seen = set()
    for ins in c.view.ins:
        for reg in reads(ins):
            if reg.index not in written and reg.index not in seen:
                seen.add(reg.index)
                yield (
                    ins,
                    f"{reg.name} is read and nothing writes it",
                    "ptxas says nothing and picks any value: write it first, or mend the name",
                )


@rule("unread-register", HINT, "entry", "a register that is declared or written and never read")
def never_read(c: Context):
    used = {r.index for i in c.view.ins for r in reads(i)}
    first: dict[int, object] = {}
    accumulators = set()
    for ins in c.view.ins:
        for reg in writes(ins):
            first.setdefault(reg.index, ins)
            # results that come in groups or beside a side effect need not all be wanted
            if ins.ops[0].kind != "reg" or ins.parts[0] in ("wgmma", "atom", "mbarrier"):
                accumulators.add(reg.index)
    dead: dict[str, tuple[int, list[str]]] = {}  # place -> line, registers
    idle: dict[str, tuple[int, list[str]]] = {}
    for reg in c.view.entry.regs:
        if reg.index in used or reg.index in accumulators:
            continue
        if reg.index in first:
            group, line = dead, first[reg.index].line
        else:
            group, line = idle, _declaration(c.text, reg.name)
        group.setdefault(c.at(line), (line, []))[1].append(reg.name)
    for line, names in dead.values():
        yield (
            line,
            f"{_list(names)} written and never read",
            "remove the instruction, or write to _ where a sink is allowed",
        )
    for line, names in idle.values():
        yield line, f"{_list(names)} declared and never used", "remove the declaration"


def _list(names: list[str]) -> str:
    return ", ".join(names) + (" is" if len(names) == 1 else " are")


def _declaration(text: str, name: str) -> int:
    """Line that declares a register."""
    wanted = re.compile(rf"{re.escape(name)}(?![\w$])")
    for number, line in enumerate(text.split("\n"), 1):
        if ".reg" in line and wanted.search(line):
            return number
    return 1


@rule("shared-64", HINT, "entry", "shared memory addressed through a 64-bit register")
def wide_shared(c: Context):
    found = {}
    for ins in c.view.ins:
        head = ins.parts[0]
        spaces = {p.split("::")[0] for p in ins.parts[1:]}
        if "shared" not in spaces or head in ("cvta", "isspacep", "mapa", "tensormap"):
            continue
        memory = [o for o in ins.ops if o.kind == "mem" and o.coords is None]
        if head == "cp" and "global" in spaces:
            # the shared address comes first in a load, last in a store
            memory = memory[:1] if _position(ins, "shared") < _position(ins, "global") else []
        base = memory[0].base if memory else None
        if base is not None and base.kind == "reg" and base.reg.width == 64:
            found.setdefault(base.reg.name, []).append(ins)
    for name, where in found.items():
        more = f" ({len(where)} instructions)" if len(where) > 1 else ""
        yield (
            where[0],
            f"{where[0].op} takes its shared address from the 64-bit {name}{more}",
            "compute shared addresses in 32-bit registers: half the registers and instructions,"
            " and a generic address cannot slip in",
        )


def _position(ins, space):
    return next((k for k, p in enumerate(ins.parts) if p.startswith(space)), 99)


# ---------------------------------------------------------------------------------- setmaxnreg


def entry_registers(view) -> int | None:
    """Registers per thread at entry, when directives fix them."""
    directives = view.entry.directives
    if directives.get("maxnreg"):
        return directives["maxnreg"][0]
    ctas = directives.get("minnctapersm")
    if view.threads and ctas:
        fits = REGISTER_FILE // (max(ctas[0], 1) * view.threads)
        return min(255, fits // 8 * 8)
    return None


@rule("setmaxnreg-entry", ERROR, "entry", "setmaxnreg in an entry of unknown register count")
def setmaxnreg_entry(c: Context):
    found = c.view.having("setmaxnreg.")
    if found and entry_registers(c.view) is None:
        yield (
            found[0],
            f"nothing fixes the registers of {c.view.name} at entry, and ptxas may ignore"
            " setmaxnreg",
            "add .minnctapersm beside .maxntid or .reqntid, or .maxnreg",
        )


@rule("setmaxnreg-count", ERROR, "entry", "setmaxnreg with a count that does not exist")
def setmaxnreg_count(c: Context):
    for ins in c.view.having("setmaxnreg."):
        n = ins.ops[0].value if ins.ops and ins.ops[0].kind == "imm" else None
        if n is None or n % 8 or not 24 <= n <= 256:
            yield (
                ins,
                f"setmaxnreg to {'a value that is no constant' if n is None else n}",
                "use a multiple of 8 from 24 to 256",
            )


@rule("setmaxnreg-pool", ERROR, "entry", "setmaxnreg that asks for more than the block was given")
def setmaxnreg_pool(c: Context):
    view = c.view
    per_thread = entry_registers(view)
    places = {i.idx: i for i in view.having("setmaxnreg.")}
    if not places or per_thread is None or not view.threads or view.threads % WARPGROUP:
        return
    if any(i.ops[0].kind != "imm" for i in places.values()) or not view.one_dimensional:
        return
    order = {b: k for k, b in enumerate(view.flow.order)}
    final, freed, wanted, raised = [], 0, 0, None
    for first in range(0, view.threads, WARPGROUP):
        visited = Values(view.flow, view.threads, first, WARPGROUP).visited
        steps = [i for i in places.values() if view.flow.block_of[i.idx] in visited]
        steps.sort(key=lambda i: (order[view.flow.block_of[i.idx]], i.idx))
        now = per_thread
        for step in steps:
            n, up = step.ops[0].value, step.parts[1] == "inc"
            if up and n < now or not up and n > now:
                yield (
                    step,
                    f"setmaxnreg.{step.parts[1]} to {n} in warpgroup {first // WARPGROUP}, which"
                    f" has {now} registers a thread",
                    "dec must not raise the count and inc must not lower it",
                )
            now = n
        final.append(now)
        if steps:
            change = steps[0].ops[0].value - per_thread
            freed, wanted = freed + max(-change, 0), wanted + max(change, 0)
            raised = raised or (steps[0] if change > 0 else None)
    pool, total = per_thread * len(final), sum(final)
    last = next((i for i in places.values() if i.parts[1] == "inc"), None)
    if total > pool and last is not None:
        yield (
            last,
            f"the warpgroups end with {' + '.join(map(str, final))} = {total} registers a thread"
            f" in sum, the block was given {len(final)} x {per_thread} = {pool}",
            "lower the counts: an inc that cannot be served waits for ever",
        )
    elif wanted > freed and raised is not None:
        yield (
            raised,
            f"the first setmaxnreg of the warpgroups raise {wanted} registers a thread in sum and"
            f" free {freed}",
            "let other warpgroups dec first: an inc that cannot be served waits for ever",
        )


@rule(
    "aligned-guard",
    WARNING,
    "entry",
    "an .aligned instruction under a divergent guard",
)
def aligned_guard(c: Context):
    for ins in c.view.ins:
        if ins.pred is None or "aligned" not in ins.parts and ins.parts[0] != "bar":
            continue
        if "warp" in ins.parts:  # has a mask of lanes
            continue
        guard = c.view.values.guards.get(ins.idx)
        if guard is not None and guard[2] >= 2:
            yield (
                ins,
                f"{ins.op} is guarded by {ins.pred.name}, in which the lanes of a warp may differ",
                "branch on a value that the whole warp shares instead",
            )
