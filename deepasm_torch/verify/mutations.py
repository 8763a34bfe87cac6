"""Generated bugs: at every synchronisation, descriptor, predicate and bounds site of a kernel.

`RULES` maps an opcode pattern to the family of the site and to a function that yields changes:
what was done, and the edits that do it. A rule knows PTX, not the kernels: the same ones apply to
every template, and nothing is planted by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from . import edits
from . import rules_data as data
from . import rules_sync as sync
from .sites import Text


@dataclass(frozen=True)
class Mutation:
    """One planted bug.

    Attributes
    ----------
    kernel : str
    line : int
        Line of the site in the rendered text, from 1.
    where : str
        Line of the site in its template.
    family, change : str
        Kind of site ("mbarrier wait"), and what was done to it ("drop").
    op : str
        Opcode at the site.
    statement : str
        What stands there in the clean kernel.
    edits : tuple
        For `Text.edited`.
    before, after : str
        The lines around it.
    """

    kernel: str
    line: int
    where: str
    family: str
    change: str
    op: str
    statement: str
    edits: tuple
    before: str = ""
    after: str = ""

    @property
    def guards_wait(self) -> bool:
        """The site makes a predicate that guards a wait for bulk groups."""
        return "bulk.wait_group" in self.after

    def __str__(self):
        return f"{self.kernel} {self.where}: {self.family}: {self.change}"


def mutations(kernel: str, source: str) -> Iterator[Mutation]:
    """Every mutation of a rendered kernel, in text order."""
    text = Text(source)
    for line, s in text.statements.items():
        for pattern, family, rule in RULES:
            if not re.match(pattern, s.op):
                continue
            for change, edited in rule(text, s):
                yield Mutation(
                    kernel,
                    line + 1,
                    s.where,
                    family,
                    change,
                    s.op,
                    _clean(text, line),
                    tuple(edited),
                    _clean(text, line - 1),
                    _clean(text, line + 1),
                )


def _clean(text, line):
    """A line without its marker and spare spaces."""
    return " ".join(text.lines[line].split("//")[0].split()) if line < len(text.lines) else ""


#: (opcode pattern, family of the site, rule); a statement may answer to several
RULES = (
    (r"fence\.proxy\.async", "proxy fence", sync.proxy_fence),
    (r"fence\.mbarrier_init", "init fence", edits.drop),
    (r"mbarrier\.init", "mbarrier init", sync.mbarrier_init),
    (r"mbarrier\.try_wait", "mbarrier wait", sync.mbarrier_wait),
    (r"mbarrier\.arrive\.shared", "mbarrier arrive", sync.mbarrier_arrive),
    (r"mbarrier\.arrive\.expect_tx", "expect_tx", sync.expect_tx),
    (r"cp\.async\.bulk\.tensor\.\dd\.shared", "tensor load", data.tma_load),
    (r"cp\.async\.bulk\.tensor\.\dd\.global", "tensor store", data.tma_store),
    (r"cp\.async\.bulk\.commit_group", "bulk commit", sync.cp_commit),
    (r"cp\.async\.bulk\.wait_group", "bulk wait", sync.wait_group),
    (r"cp\.async\.cg", "cp.async", data.cp_async),
    (r"cp\.async\.commit_group", "cp.async commit", sync.cp_commit),
    (r"cp\.async\.wait_(group|all)", "cp.async wait", sync.wait_group),
    (r"wgmma\.mma_async", "wgmma", data.wgmma),
    (r"wgmma\.fence", "wgmma fence", sync.wgmma_fence),
    (r"wgmma\.commit_group", "wgmma commit", sync.wgmma_commit),
    (r"wgmma\.wait_group", "wgmma wait", sync.wait_group),
    (r"bar\.sync", "barrier", sync.bar_sync),
    (r"bar\.arrive", "barrier arrive", sync.bar_arrive),
    (r"bar\.warp\.sync", "warp barrier", sync.warp_sync),
    (r"setmaxnreg", "setmaxnreg", sync.setmaxnreg),
    (r"elect\.sync", "elect", sync.elect),
    (r"griddepcontrol\.wait", "grid dependency", sync.grid_wait),
    (r"griddepcontrol\.launch", "grid launch", edits.drop),
    (r"ldmatrix|stmatrix", "matrix move", data.matrix_move),
    (r"st\.shared", "shared store", data.shared_store),
    (r"ld\.shared", "shared load", data.shared_load),
    (r"st\.global", "global store", data.global_store),
    (r"ld\.global", "global load", data.global_load),
    (r"setp\.", "predicate", data.compare),
    (r"xor\.b32", "xor", data.ring_step),
    (r"(min|max)\.s32", "bounds", data.clamp),
    (r"selp\.[bu]32", "select", data.select),
    (r"mov\.u32", "start value", data.start_value),
    (r"(or\.b32|add\.u32|shr\.u32|mad\.lo\.u32)$", "descriptor", data.descriptor_step),
    (r"mov\.b64", "descriptor", data.descriptor_word),
    (r"(mad\.lo|add)\.u32$", "stage address", data.stage_address),
)
