"""Exchange between lanes: shuffles, votes, matches, reductions, elect."""

from __future__ import annotations

import numpy as np
import pytest
from test_families import LANE, out32


def _shfl(mode, lanes, b, c):
    clamp, seg = c & 31, c >> 8 & 31
    out = []
    for k in lanes:
        top = (k & seg) | (clamp & ~seg & 31)
        j = {"up": k - b, "down": k + b, "bfly": k ^ b, "idx": (k & seg) | (b & ~seg & 31)}[mode]
        ok = j >= top if mode == "up" else j <= top
        out.append(lanes[j] if ok else k)
    return out


@pytest.mark.parametrize(
    "mode, b, c",
    [
        ("up", 1, 0),
        ("down", 4, 31),
        ("bfly", 16, 31),
        ("idx", 5, 31),
        ("up", 2, 0x1800),
        ("down", 1, 0x181F),
        ("bfly", 3, 0x1C1F),
        ("idx", 6, 0x181F),
    ],
)
def test_shuffles(mode, b, c):
    body = f"shfl.sync.{mode}.b32 %r1|%p1, %r50, {b}, {c}, 0xffffffff;"
    out32(f"shfl {mode} {b} {c}", body, _shfl(mode, LANE.tolist(), b, c))


def test_votes_matches_reductions():
    body = """
and.b32 %r2, %r50, 3;
setp.eq.u32 %p1, %r2, 1;
vote.sync.ballot.b32 %r3, %p1, 0xffffffff;
vote.sync.any.pred %p2, %p1, 0xffffffff;
vote.sync.all.pred %p3, %p1, 0xffffffff;
match.any.sync.b32 %r4, %r2, 0xffffffff;
redux.sync.add.s32 %r5, %r50, 0xffffffff;
redux.sync.max.u32 %r6, %r50, 0xffffffff;
xor.b32 %r1, %r3, %r4;
add.u32 %r1, %r1, %r5;
add.u32 %r1, %r1, %r6;
@%p2 add.u32 %r1, %r1, 1000;
@%p3 add.u32 %r1, %r1, 5000;
"""
    ballot = 0x22222222
    match = np.array([0x11111111, 0x22222222, 0x44444444, 0x88888888], np.uint64)[LANE & 3]
    want = (ballot ^ match) + 496 + 31 + 1000
    out32("votes", body, want & 0xFFFFFFFF)


def test_elect_and_lane_masks():
    body = """
elect.sync %r2|%p1, 0xffffffff;
mov.u32 %r3, %lanemask_lt;
popc.b32 %r1, %r3;
@%p1 add.u32 %r1, %r1, 100;
"""
    want = LANE.copy()
    want[0] += 100
    out32("elect", body, want)
