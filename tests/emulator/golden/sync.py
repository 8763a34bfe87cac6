"""mbarrier phases: what test_wait answers after each step."""

from __future__ import annotations

import numpy as np

from . import pieces
from .case import Case, add, entry, whole

# ---------------------------------------------------------------------------- mbarriers


def ask(parity):
    """A test_wait whose answer is stored in the next slot."""
    return (
        f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], {parity};\n"
        "selp.u32 %r2, 1, 0, %p1;\nSTORE %r2"
    )


BOTH = ask(0) + "\n" + ask(1)
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r1];\n"
SCRIPTS = {
    "fresh barrier": ("1", [BOTH, ARRIVE + BOTH, ARRIVE + BOTH, ARRIVE + BOTH]),
    "three arrivals": ("3", [ARRIVE + BOTH] * 7),
    "arrive with a count": (
        "5",
        ["mbarrier.arrive.shared::cta.b64 _, [%r1], 3;\n" + BOTH,
         "mbarrier.arrive.shared::cta.b64 _, [%r1], 2;\n" + BOTH,
         "mbarrier.arrive.shared::cta.b64 _, [%r1], 5;\n" + BOTH],
    ),
    "expected bytes": (
        "2",
        ["mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;\n" + BOTH, ARRIVE + BOTH,
         "mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 48;\n" + BOTH,
         "mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 16;\n" + BOTH],
    ),
    "expect_tx without an arrival": (
        "1",
        ["mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 32;\n" + BOTH, ARRIVE + BOTH,
         "mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 32;\n" + BOTH],
    ),
    "bytes before they are expected": (
        "2",
        ["mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 16;\n" + BOTH,
         ARRIVE + BOTH, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;\n" + BOTH],
    ),
    "dropped arrivals": (
        "3",
        ["mbarrier.arrive_drop.shared::cta.b64 %d6, [%r1];\n" + BOTH, ARRIVE + BOTH,
         ARRIVE + BOTH, ARRIVE + BOTH, ARRIVE + BOTH],
    ),
    "state tokens": (
        "3",
        [
            """mbarrier.arrive.shared::cta.b64 %d5, [%r1];
mbarrier.pending_count.b64 %r2, %d5;
STORE %r2
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d5;
selp.u32 %r2, 1, 0, %p1;
STORE %r2
mbarrier.arrive.shared::cta.b64 %d6, [%r1];
mbarrier.pending_count.b64 %r2, %d6;
STORE %r2
mbarrier.arrive.shared::cta.b64 %d7, [%r1];
mbarrier.pending_count.b64 %r2, %d7;
STORE %r2
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d5;
selp.u32 %r2, 1, 0, %p1;
STORE %r2
mbarrier.arrive.shared::cta.b64 %d8, [%r1];
mbarrier.pending_count.b64 %r2, %d8;
STORE %r2
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d8;
selp.u32 %r2, 1, 0, %p1;
STORE %r2
mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d7;
selp.u32 %r2, 1, 0, %p1;
STORE %r2
"""
        ],
    ),
    "inval and init again": (
        "2",
        [ARRIVE + BOTH, "mbarrier.inval.shared::cta.b64 [%r1];\n"
         "mbarrier.init.shared::cta.b64 [%r1], 1;\n" + BOTH, ARRIVE + BOTH],
    ),
}  # fmt: skip
for _name, (_count, _steps) in SCRIPTS.items():
    _text = "\n".join(_steps)
    _n = _text.count("STORE")
    for _k in range(_n):
        _text = _text.replace("STORE %r2", f"st.global.u32 [%d1 + {4 * _k}], %r2;", 1)
    _body = f"""
ld.param.u64 %d1, [out];
mov.u32 %r1, bar;
mov.u32 %r50, %tid.x;
setp.ne.u32 %p8, %r50, 0;
@%p8 bra done;
mbarrier.init.shared::cta.b64 [%r1], {_count};
{_text}
done:
"""
    _out = np.full(_n, 9, np.uint32)
    add(Case(f"mbarrier {_name}", entry(_body, [".u64 out"], pieces.SHARED.format(size=16)),
             {"out": _out}, ["out"], [whole("out", _out)]))  # fmt: skip
