"""Mutations that change nothing a program can observe, each with the reason.

A planted bug that no run shows is missed, unless a row of this table says why it is none. Rows are
matched by kind of site, change, and the statement or template; they never name a line. A row that
matches a mutation which *was* caught is wrong, and the study reports it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    """One row.

    Parameters
    ----------
    family, change : str
        Regular expressions for the whole of `Mutation.family` and `Mutation.change`.
    statement : str
        Regular expression found somewhere in the clean statement.
    reason : str
    when : callable, optional
        Further condition on (mutation, kernel).
    """

    family: str
    change: str
    statement: str
    reason: str
    when: Callable | None = None

    def matches(self, mutation, kernel) -> bool:
        return bool(
            re.fullmatch(self.family, mutation.family)
            and re.fullmatch(self.change, mutation.change)
            and re.search(self.statement, mutation.statement)
            and (self.when is None or self.when(mutation, kernel))
        )


def _operand(mutation):
    """Which operand's descriptor a site is about."""
    return "a" if "%a_" in mutation.statement else "b"


def _k_major(mutation, kernel):
    return (kernel.a_major if _operand(mutation) == "a" else kernel.b_major) == "k"


TABLE = (
    Equivalent(
        "grid launch",
        "drop",
        "launch_dependents",
        "The next grid may start early; without the hint it starts when this one ends. It waits "
        "for this grid's memory by griddepcontrol.wait either way.",
    ),
    Equivalent(
        "setmaxnreg",
        "drop",
        r"setmaxnreg\.inc",
        "Registers left in the pool change no value. ptxas would spill instead, and the build "
        "refuses spills.",
    ),
    Equivalent(
        "wgmma",
        "swap neighbours",
        r"%desc_b\d, 1, ",
        "Two products that both accumulate: sums of the same terms in another order, or different "
        "accumulators. Exact on integers; on real data the last bit may differ.",
    ),
    Equivalent(
        "expect_tx",
        r"move late, past cp\.async\.bulk\.tensor.*",
        "",
        "The phase cannot complete while the producer's own arrival is pending, and the "
        "transaction count is signed: bytes may land before they are expected.",
    ),
    Equivalent(
        "proxy fence",
        r"move late, past bar",
        "",
        "The fence still lies between the writes and the copy on the path of causality: write, "
        "barrier, fence by the issuing thread, copy.",
    ),
    Equivalent(
        "elect",
        "everybody",
        "",
        "The predicate guards only a wait for the thread's own bulk groups; the other lanes have "
        "none, so their wait passes at once.",
        when=lambda m, kernel: m.guards_wait,
    ),
    Equivalent(
        "bulk wait",
        "no predicate",
        "",
        "Lanes that committed no bulk group wait for none.",
    ),
    Equivalent(
        "barrier arrive",
        "sync instead",
        "%order_other",
        "The warpgroup also waits for the other one to reach the same barrier, which it always "
        "does: mainloops no longer overlap epilogues, the order of everything else is kept.",
    ),
    Equivalent(
        "descriptor",
        r"leading offset off by one",
        "",
        "The leading byte offset of a swizzled k-major operand is not read: one atom spans the "
        "whole of k16.",
        when=_k_major,
    ),
    Equivalent(
        "predicate",
        "lt becomes le",
        r"setp\.lt\.and\.u32 %ep_p, %ep_(row|col|t), %[mn], %e(lect|p_p)",
        "A box that starts at the end of d is then stored too; the copy engine clips all of it.",
    ),
    Equivalent(
        "warp barrier",
        "drop",
        "",
        "Rows are read from two boxes in turn: before this one is filled again, the barrier of the "
        "other one has ordered its reads.",
        when=lambda m, kernel: "$rows_stored" in m.before and kernel.values["store_buffers"] == 2,
    ),
    Equivalent(
        "descriptor",
        r"\+1",
        r"mad\.lo\.u32 %a_desc, %consumer",
        "Descriptors count 16-byte units: the next instruction shifts the low four bits out.",
    ),
)


def argument(mutation, kernel) -> str:
    """Why a mutation is no bug, or "" if the table does not say."""
    for row in TABLE:
        if row.matches(mutation, kernel):
            return row.reason
    return ""
