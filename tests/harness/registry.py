"""Which problems each row of the kernel table sees.

Every kernel gets the same list of named shape cases (`SHAPES`), laid out as its row demands.  The
features of the epilogue (bias, addend, activation, output type, output pitch) are dealt to them
from a seeded shuffle, so that each kernel meets every feature while the total stays small; another
seed meets other combinations.  `tests/test_harness.py` checks that nothing is missed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from deepasm_torch.kernels import gemm as table

from . import seeds
from .problem import GemmCase

TORCH_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Subject:
    """A kernel under test: a row of the table, or a stand-in for the reference or the planner."""

    name: str
    variant: int
    tier: int
    dtype: torch.dtype
    a_major: str
    b_major: str
    bm: int
    bn: int
    bk: int
    stages: int
    loads: str

    @property
    def tile(self) -> tuple[int, int]:
        return self.bm, self.bn


def subjects() -> list[Subject]:
    """One per row of the kernel table, in table order."""
    return [
        Subject(
            k.name,
            i,
            k.tier,
            TORCH_DTYPES[k.dtype],
            *k.reads,
            *k.tile,
            k.bk,
            k.stages,
            k.loads,
        )
        for i, k in enumerate(table.KERNELS)
    ]


def reference_subjects() -> list[Subject]:
    """The CPU reference, in the clothes of a small kernel that takes any strides."""
    return [
        Subject(f"reference_{name}", -1, 0, dtype, "*", "*", 16, 32, 16, 2, "any")
        for name, dtype in TORCH_DTYPES.items()
    ]


def planner_subjects() -> list[Subject]:
    """The planner's own choice, per dtype and layout, for operands TMA can take and for others."""
    return [
        Subject(f"planner_{name}_{layout}_{loads}", -1, 80, dtype, *majors, 128, 128, 64, 4, loads)
        for name, dtype in TORCH_DTYPES.items()
        for layout, majors in table.LAYOUTS.items()
        for loads in ("tma", "any")
    ]


ACTIVATIONS = (0, 1, 2, 3, 4)
BIASES = (None, "in", "f32")
ADDENDS = ((None, "full"), ("in", "full"), ("f32", "full"), ("in", "row"), ("f32", "col"))
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _shapes(s: Subject, sms: int, rng: random.Random) -> list[GemmCase]:
    """The named problems of one kernel, without an epilogue."""
    bm, bn, bk = s.bm, s.bn, s.bk
    tail = lambda size: rng.randrange(2, size)  # 1 would let a batch fold into the rows
    rows = max(2, int((sms * bn / bm) ** 0.5))  # a roughly square output of more tiles than SMs
    cols = sms // rows + 1
    long_k = (2 * s.stages + 1) * bk
    case = lambda name, m, n, k, **kw: GemmCase(name, m, n, k, s.dtype, **kw)
    return [
        case("full", bm, bn, 2 * bk),
        case("tail_m", bm + tail(bm), bn, bk),
        case("tail_n", bm, bn + tail(bn), bk),
        case("tail_k", bm, bn, 2 * bk + tail(bk)),
        case("short_k", bm, bn, tail(bk)),
        case("long_k", bm, bn, long_k + tail(bk)),
        case("many_tiles", rows * bm - tail(bm), cols * bn - tail(bn), bk + tail(bk)),
        case("tiny", *(rng.randrange(1, 9) for _ in range(3))),
        case("batch", bm + tail(bm), bn + tail(bn), bk + tail(bk), batch=(3,)),
        case(
            "broadcast_a",
            bm,
            tail(bn),
            bk + tail(bk),
            batch=(4,),
            a_batch=rng.choice(("none", "ones", "expand")),
        ),
        case(
            "broadcast_b",
            tail(bm),
            bn,
            bk,
            batch=(4,),
            b_batch=rng.choice(("none", "ones", "expand")),
        ),
        case("two_batches", tail(bm), tail(bn), bk + tail(bk), batch=(2, 3), swap_batch=True),
        case("outer_batches", bm, tail(bn), bk, batch=(2, 3), a_batch="first", b_batch="last"),
        case("few_sms", bm + tail(bm), bn + tail(bn), 3 * bk + tail(bk), batch=(2,), max_sms=3),
        case(
            "odd_pitch",
            bm + tail(bm),
            bn + tail(bn),
            bk,
            out_pad=1 + 2 * rng.randrange(8),
            out_offset=tail(8),
        ),
    ]


def _dealt(values, count: int, rng: random.Random) -> list:
    """`count` values in random order, each of `values` as often as the others."""
    hand = [v for i in range(-(-count // len(values))) for v in values][:count]
    rng.shuffle(hand)
    return hand


def _layout(s: Subject, case: GemmCase, rng: random.Random) -> GemmCase:
    """Lay the operands out as the kernel demands, and as awkwardly as it allows."""
    a_major = s.a_major if s.a_major != "*" else rng.choice("km")
    b_major = s.b_major if s.b_major != "*" else rng.choice("kn")
    if s.loads == "any" and case.name != "full":
        free = {"align": 1, "pad": rng.randrange(4), "offset": rng.randrange(8)}
        free["step"] = rng.choice((1, 1, 2))
    else:  # 16-byte rules: everything a multiple of 8 elements
        free = {"align": 8, "pad": 8 * rng.randrange(3), "offset": 8 * rng.randrange(3)}
    free["addend_offset"] = rng.randrange(8)  # no kernel asks for an aligned bias or addend
    return replace(case, a_major=a_major, b_major=b_major, **free)


def cases(s: Subject, sms: int) -> list[GemmCase]:
    """The problems of one kernel under this run's seed: same names and count for every seed."""
    rng = random.Random(seeds.case_seed("registry", s.name))
    plain = [_layout(s, case, rng) for case in _shapes(s, sms, rng)]
    rest = len(plain) - 1
    deals = zip(
        plain[1:],
        _dealt(ACTIVATIONS, rest, rng),
        _dealt(BIASES, rest, rng),
        _dealt(ADDENDS, rest, rng),
        _dealt(OUT_DTYPES, rest, rng),
    )
    result = [plain[0]]
    for case, activation, bias, (c, c_shape), out_dtype in deals:
        scale = (
            {
                "c": c,
                "c_shape": c_shape,
                "alpha": rng.choice((0.5, -1.25)),
                "beta": rng.choice((1.0, -0.75)),
            }
            if c
            else {}
        )
        result.append(replace(case, activation=activation, bias=bias, out_dtype=out_dtype, **scale))
    return result


#: What every kernel must have met, whatever the seed.
FEATURES = (
    {f"activation {a}" for a in ACTIVATIONS}
    | {f"bias {b}" for b in BIASES}
    | {f"c {c}" for c, _ in ADDENDS}
    | {"c shape row", "c shape col", "c shape full"}
    | {f"out {d}" for d in OUT_DTYPES}
    | {"out pitch", "a first", "b last", "a full", "b full"}
)
