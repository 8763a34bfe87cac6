"""Planted bugs in barriers, waits and warp-level operations.

A case is (name, report, PTX body with buggy and clean lines, launch options).
The line marked ``//here`` is the one the report must name.
"""

from __future__ import annotations

import numpy as np
from ptx_case import pointers

PTR1, LOAD1 = pointers("a")
SHARED = ".shared .align 128 .b8 buf[2048];\n.shared .align 8 .b64 bar;\n"

CASES = [
    (
        "lanes exchange through shared memory without bar.warp.sync",
        "race-lanes",
        """
mov.u32 %r1, buf;
mov.u32 %r2, %laneid;
mad.lo.u32 %r3, %r2, 4, %r1;
xor.b32 %r4, %r3, 4;
st.shared.u32 [%r3], %r2;
bar.warp.sync 0xffffffff; //clean
ld.shared.u32 %r5, [%r4]; //here
""",
        {"outside": SHARED},
    ),
    (
        "a lane overwrites what its neighbour still reads",
        "race-lanes",
        """
mov.u32 %r1, buf;
mov.u32 %r2, %laneid;
mad.lo.u32 %r3, %r2, 4, %r1;
xor.b32 %r4, %r3, 4;
st.shared.u32 [%r3], %r2;
bar.warp.sync 0xffffffff;
ld.shared.u32 %r5, [%r4];
bar.warp.sync 0xffffffff; //clean
st.shared.u32 [%r3], %r5; //here
""",
        {"outside": SHARED},
    ),
    (
        "a matrix stored by the warp and read by its lanes",
        "race-lanes",
        """
mov.u32 %r1, buf;
mov.u32 %r2, %laneid;
mad.lo.u32 %r3, %r2, 16, %r1;
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r3], {%r2, %r2, %r2, %r2};
bar.warp.sync 0xffffffff; //clean
ld.shared.u32 %r5, [%r3]; //here
""",
        {"outside": SHARED},
    ),
    (
        "a warp barrier whose mask leaves out who runs it",
        "divergence",
        """
bar.warp.sync 0xffff; //bug //here
bar.warp.sync 0xffffffff; //clean
""",
        {},
    ),
    (
        "elect among lanes that are not all of those that ask",
        "divergence",
        """
elect.sync _|%p1, 0xffff; //bug //here
elect.sync _|%p1, 0xffffffff; //clean
""",
        {},
    ),
    (
        "an arrival that nothing orders after the phase before",
        "early-arrive",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
and.b32 %r3, %r2, 31; //bug
mov.u32 %r3, %r2; //clean
setp.eq.u32 %p1, %r3, 0;
setp.eq.u32 %p2, %r2, 0;
@%p2 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1]; //here
""",
        {"outside": SHARED, "block": 64},
    ),
    (
        "one instruction that completes a phase again and again",
        "over-arrive",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0; //clean
setp.ne.u32 %p1, %r2, 1; //bug
setp.eq.u32 %p2, %r2, 0;
@%p2 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1]; //here
""",
        {"outside": SHARED},
    ),
    (
        "mbarrier at an address that is no multiple of 8",
        "mbarrier-address",
        """
mov.u32 %r1, bar;
add.u32 %r1, %r1, 4; //bug
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1; //here
""",
        {"outside": SHARED},
    ),
    (
        "mbarrier with a count of zero",
        "mbarrier-count",
        """
mov.u32 %r1, bar;
mov.u32 %r3, 1; //clean
mov.u32 %r3, 0; //bug
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], %r3; //here
""",
        {"outside": SHARED},
    ),
    (
        "barrier number that does not exist",
        "fault",
        """
mov.u32 %r1, 3; //clean
mov.u32 %r1, 16; //bug
bar.sync %r1; //here
""",
        {},
    ),
    (
        "more arrivals than the mbarrier counts",
        "over-arrive",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
setp.lt.u32 %p2, %r2, 1; //clean
setp.lt.u32 %p2, %r2, 2; //bug
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0;
@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16; //here
@%p1 mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 16;
""",
        {"outside": SHARED},
    ),
    (
        "mbarrier used before its initialisation is ordered",
        "mbarrier-init-race",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r2, 32;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0; //clean
@%p2 mbarrier.arrive.shared::cta.b64 _, [%r1]; //here
""",
        {"outside": SHARED, "block": 64},
    ),
    (
        "mbarrier that nobody initialised",
        "mbarrier-uninit",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1; //clean
bar.sync 0;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1]; //here
""",
        {"outside": SHARED},
    ),
    (
        "mbarrier initialised twice",
        "mbarrier-reinit",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p1 mbarrier.inval.shared::cta.b64 [%r1]; //clean
@%p1 mbarrier.init.shared::cta.b64 [%r1], 2; //here
""",
        {"outside": SHARED},
    ),
    (
        "nobody arrives",
        "deadlock",
        """
mov.u32 %r1, bar;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
bar.sync 0;
@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1]; //clean
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; //here
@!%p2 bra wait;
""",
        {"outside": SHARED},
    ),
    (
        "a flag in global memory that nobody sets",
        "deadlock",
        f"""
{LOAD1}
st.relaxed.gpu.global.u32 [%d1], 1; //clean
wait:
ld.acquire.gpu.global.u32 %r1, [%d1]; //here
setp.eq.u32 %p1, %r1, 0;
@%p1 bra wait;
""",
        {"params": PTR1, "args": [np.zeros(4, np.uint32)]},
    ),
    (
        "an endless loop",
        "watchdog",
        """
mov.u32 %r1, 0;
again:
add.u32 %r1, %r1, 1; //here
setp.lt.u32 %p1, %r1, 100; //clean
setp.ne.u32 %p1, %r1, 0; //bug
@%p1 bra again;
""",
        {"max_blocks": 4000},
    ),
    (
        "barrier count that is no multiple of 32",
        "barrier-count",
        """
mov.u32 %r1, 64; //clean
mov.u32 %r1, 48; //bug
bar.sync 1, %r1; //here
""",
        {"block": 64},
    ),
    (
        "two counts on one barrier",
        "barrier-count",
        """
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 32;
@%p1 bra first;
bar.sync 1, 64; //here
bra done;
first:
bar.sync 1, 64; //clean
bar.sync 1, 96; //bug
done:
""",
        {"block": 64},
    ),
    (
        "warp arrives twice before the barrier completes",
        "barrier-reuse",
        """
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 32;
@%p1 bra other;
bar.arrive 1, 64;
bar.arrive 1, 64; //bug //here
bra done;
other:
bar.sync 1, 64; //clean
done:
""",
        {"block": 64},
    ),
    (
        "aligned barrier in a divergent branch",
        "divergence",
        """
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 16;
@!%p1 bra after; //bug
bar.sync 0; //here
after:
bar.sync 0; //bug
""",
        {},
    ),
    (
        "shuffle of lanes that left",
        "divergence",
        """
mov.u32 %r1, %laneid;
setp.ge.u32 %p1, %r1, 16;
@%p1 bra low; //bug
bra low; //clean
bra done;
low:
shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffffffff; //here
done:
""",
        {},
    ),
    (
        "register pool asked for more than it has",
        "deadlock",
        """
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 128;
@%p1 bra low;
setmaxnreg.inc.sync.aligned.u32 232; //here
bra done;
low:
setmaxnreg.dec.sync.aligned.u32 40; //clean
setmaxnreg.dec.sync.aligned.u32 160; //bug
done:
""",
        {"block": 384, "directives": ".maxntid 384, 1, 1\n.minnctapersm 1"},
    ),
    (
        "setmaxnreg in the wrong direction",
        "setmaxnreg",
        """
setmaxnreg.dec.sync.aligned.u32 64;
setmaxnreg.dec.sync.aligned.u32 40; //clean
setmaxnreg.dec.sync.aligned.u32 96; //bug //here
""",
        {"block": 128, "directives": ".maxntid 128, 1, 1\n.minnctapersm 1"},
    ),
    (
        "one warp of a warpgroup keeps its registers",
        "setmaxnreg",
        """
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 96;
@%p1 bra done; //bug
setmaxnreg.dec.sync.aligned.u32 64; //here
done:
""",
        {"block": 128, "directives": ".maxntid 128, 1, 1\n.minnctapersm 1"},
    ),
]
