"""The study of planted bugs: which generated mutations of the shipped kernels are noticed.

Kernels of one template, schedule and direction of d form a group. For each site of a group's text
and each change of it one kernel of the group is drawn; a seeded sample of them, spread evenly over
groups and kinds of sites, is planted, or all. A mutation runs on the cases that reach its line
until one schedule shows it: a hazard, a deadlock, a fault, or a wrong result.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace

from ..emulator import EmulatorError
from ..kernels.gemm import KERNELS
from .equivalent import argument
from .mutations import Mutation, mutations
from .problem import SCHEDULES, VARIANTS, Case, Problem, program, source
from .sites import Text
from .variants import representatives

DEFAULT_COUNT = 400
BAR = 0.95
ALL_SCHEDULES = 2  # cases that a mutation runs under every schedule; the others under one


def cases(kernel) -> list[Case]:
    """Problems that together reach every part of a kernel, the common ones first.

    The first two, with either epilogue, have several tiles a CTA and k longer than the ring, the
    next two more tile rows than a raster group. Tails differ from case to case, so that every
    16-row step of a tile is the last one somewhere; k and an odd n leave tails too.
    """
    bm, bn = kernel.tile
    bk, odd = kernel.bk, kernel.loads == "any"
    long = Case(bm + 9, 2 * bn + 8, bk * (kernel.stages + 2) + 8, sms=1)
    many = {"m": 10 * bm + 9, "n": bn + 8}
    if kernel.d_major == "m":
        many = {"m": bm + 1, "n": 10 * bn + 8}
    other = "f16" if kernel.dtype == "bf16" else "bf16"
    general = (
        {"bias": "in", "c": "f32", "alpha": 2.0, "beta": -1.0, "batch": (2,), "out": "f32"},
        {"bias": "f32", "c": "in", "beta": 1.0, "out": other, "activation": 1},
        {"pitch": 3, "bias": "in", "activation": 1, "batch": (2,), "shared": "b"},
        {"pitch": 1, "out": "f32", "c": "f32", "beta": 1.0, "bias": "f32"},
        {"pitch": 5, "out": other, "c": "in", "beta": 2.0},
        {"batch": (2, 2), "shared": "a0"},
        {"batch": (2, 2), "shared": "a1", "bias": "f32", "c": "in", "beta": 1.0},
        {"batch": (2, 2), "shared": "b0"},
        {"batch": (2, 2), "shared": "b1"},
        {"out": other},
        {"integers": False, "activation": 2, "out": "f32"},
        {"integers": False, "activation": 3},
        {"integers": False, "activation": 4},
        {"pitch": 7, "out": "f32"},
        {"bias": "f32", "k": bk // 2 - (3 if odd else 8)},
        *({"k": k} for k in ((4, 5, 14, 15) if odd else ())),  # both orders of either operand
        {"pitch": 3},
    )
    out = [long, replace(long, bias="f32"), replace(long, **many, k=bk)]
    out.append(replace(long, **many, k=bk, bias="in"))
    for i, feature in enumerate(general):
        last = i == len(general) - 1  # one row and one column short of whole tiles
        shape = {
            "m": 2 * bm - 1 if last else bm + (16 * i + 9) % bm,
            "n": 2 * bn - 1 if last else bn + (16 * i + (3 if "pitch" in feature else 8)) % bn,
            "k": bk + 16 * i % bk + (4 + i // 2 % 2 if odd else 8),
        }
        if "batch" in feature:  # one tile each, of part of its rows
            shape["m"] = shape["m"] - bm
        out.append(replace(long, **{**shape, **feature}))
    return out


def group(kernel) -> tuple:
    return kernel.template, kernel.schedule, kernel.d_major


def sites(seed=0, everything=False, pattern="") -> list[Mutation]:
    """Every kind of mutation of every group, on a kernel of the group drawn by seed.

    Parameters
    ----------
    everything : bool
        Every mutation of every representative kernel instead.
    pattern : str
        Only kernels, sites, families or changes whose description contains this text.
    """
    rng = random.Random(seed)
    buckets = defaultdict(list)
    for kernel in representatives():
        for m in mutations(kernel.name, source(kernel.name)):
            if pattern in str(m):
                buckets[(*group(kernel), m.where, m.family, m.change)].append(m)
    if everything:
        return [m for bucket in buckets.values() for m in bucket]
    return [rng.choice(bucket) for bucket in buckets.values()]


def sample(found: list[Mutation], count: int, seed=0) -> list[Mutation]:
    """At most `count` of them, spread over groups and families: one of each in turn.

    Of the mutations that the table of equivalent ones explains, one for each row is enough.
    """
    rng = random.Random(seed)
    piles, explained = defaultdict(list), {}
    for m in rng.sample(found, len(found)):
        kernel = KERNELS[VARIANTS[m.kernel]]
        why = argument(m, kernel)
        if why:
            explained.setdefault(why, m)
        else:
            piles[(*group(kernel), m.family)].append(m)
    chosen = list(explained.values())[:count]
    while piles and len(chosen) < count:
        for key in list(piles):
            if len(chosen) < count:
                chosen.append(piles[key].pop())
            if not piles[key]:
                del piles[key]
    return chosen


@dataclass
class Clean:
    """An unchanged kernel: what its runs reported, and which lines each case executed."""

    kernel: str
    flagged: list[str] = field(default_factory=list)
    covered: list[set] = field(default_factory=list)


def run_clean(task) -> Clean:
    """Run an unchanged kernel on all of its cases, on the first two under every schedule."""
    name, seed = task
    clean = Clean(name)
    entry = program(name).entry(name)
    for number, case in enumerate(cases(KERNELS[VARIANTS[name]])):
        lines = set()
        problem = Problem(name, case, seed)
        for schedule in SCHEDULES if number < 2 else [SCHEDULES[number % 3]]:
            verdict = problem.run(schedule, seed)
            if not verdict.clean:
                clean.flagged.append(f"{name} {case} {schedule}: {verdict.report()}")
            for counters in verdict.counters:
                for index in counters.blocks:
                    block = entry.blocks[index]
                    lines |= {entry.ins[i].line for i in range(block.first, block.first + block.n)}
        clean.covered.append(lines)
    return clean


@dataclass
class Outcome:
    """What became of one mutation.

    Attributes
    ----------
    verdict : str
        "caught", "equivalent" (survived, with an argument in the table), "missed", or
        "unreached" (no case runs the line).
    how : str
        Kinds of report, and the schedule; or the argument.
    runs : int
    refuted : str
        The argument of the table that this mutation, caught, shows to be wrong.
    """

    mutation: Mutation
    verdict: str
    how: str = ""
    runs: int = 0
    refuted: str = ""


def run_mutations(task) -> list[Outcome]:
    """Plant mutations of one kernel one after the other."""
    planted, covered, seed = task
    text = Text(source(planted[0].kernel))
    kernel = KERNELS[VARIANTS[planted[0].kernel]]
    problems, outcomes = {}, []
    for m in planted:
        reach = [i for i, lines in enumerate(covered) if m.line in lines]
        changed = text.edited(m.edits)
        outcomes.append(_plant(m, changed, reach, kernel, problems, seed))
    return outcomes


def _plant(m, changed, reach, kernel, problems, seed) -> Outcome:
    if not reach:
        return Outcome(m, "unreached")
    runs = 0
    for number, index in enumerate(reach):
        problem = problems.get(index)
        if problem is None:
            problem = problems[index] = Problem(m.kernel, cases(kernel)[index], seed)
        # later cases differ in numbers and tails, which one schedule shows as well as three
        for schedule in SCHEDULES if number < ALL_SCHEDULES else SCHEDULES[:1]:
            runs += 1
            try:
                verdict = problem.run(schedule, seed, changed, limit=2)
            except EmulatorError as error:
                return Outcome(m, "missed", f"could not be run: {error}", runs)
            if not verdict.clean:
                why = argument(m, kernel)
                how = f"{', '.join(verdict.kinds)} ({schedule}, {problem.case})"
                return Outcome(m, "caught", how, runs, why)
    why = argument(m, kernel)
    return Outcome(m, "equivalent" if why else "missed", why or "no report, right result", runs)
