"""Which kernels `deepasm verify` runs, on which shapes, with which features of the epilogue."""

from __future__ import annotations

import random
from dataclasses import replace

from ..kernels.gemm import KERNELS
from .problem import SCHEDULES, Case

SAMPLE = 6  # variants of the default set beyond one of each class


def operand_class(kernel) -> tuple:
    """The program that loads and multiplies: template, schedule, majors of every operand."""
    layout = kernel.a_major, kernel.b_major, kernel.d_major
    return kernel.template, kernel.schedule, kernel.loads, *layout


def tile_class(kernel) -> tuple:
    """What a tile changes in the text beyond numbers."""
    values = kernel.values
    return (
        kernel.template,
        kernel.schedule,
        kernel.d_major,
        values.get("m_atoms"),
        values.get("store_buffers"),
        values.get("acc", 0) > 128,  # the epilogue moves accumulators down
        kernel.bn < 16,  # half of a stmatrix
        values.get("k_steps"),
    )


def representatives(kernels=KERNELS) -> list:
    """One kernel of each operand class and of each tile class, smallest tiles first."""
    order = sorted(kernels, key=lambda k: (k.bm * k.bn, k.dtype, kernels.index(k)))
    seen, chosen = set(), []
    for kernel in order:
        keys = {("operand", operand_class(kernel)), ("tile", tile_class(kernel))}
        if keys - seen:
            seen |= keys
            chosen.append(kernel)
    return sorted(chosen, key=kernels.index)


def selected(everything=False, pattern="", seed=0, kernels=KERNELS) -> list:
    """Kernels to verify, in table order.

    Parameters
    ----------
    everything : bool
        All of them, instead of the representatives and a seeded sample of the rest.
    pattern : str
        Only names that contain this text; a pattern selects among all kernels.
    """
    if everything or pattern:
        return [k for k in kernels if pattern in k.name]
    chosen = representatives(kernels)
    rest = [k for k in kernels if k not in chosen]
    chosen += random.Random(seed).sample(rest, min(SAMPLE, len(rest)))
    return sorted(chosen, key=kernels.index)


def shapes(kernel) -> list[Case]:
    """A full tile; tails in every dimension; more tiles than CTAs with k longer than the ring."""
    bm, bn = kernel.tile
    bk, odd = kernel.bk, kernel.loads == "any"
    return [
        Case(bm, bn, bk, sms=1),
        Case(bm + max(bm // 2 - 3, 1), max(bn - 24, 8), 2 * bk - (5 if odd else 8), sms=1),
        Case(2 * bm + 1, bn + 8, bk * (kernel.stages + 2) + (1 if odd else 8), sms=1),
    ]


#: what a run adds to a shape; the first is the common epilogue
FEATURES = (
    {},
    {"bias": "in", "activation": 1},
    {"bias": "f32", "out": "f32"},
    {"c": "in", "beta": 2.0, "alpha": -1.0},
    {"c": "f32", "beta": -1.0, "bias": "in", "out": "f16"},
    {"c": "f32", "beta": 1.0, "row_bias": True, "pitch": 8},
    {"pitch": 3},
    {"pitch": 1, "out": "f32", "bias": "f32"},
    {"pitch": 5, "c": "in", "beta": 0.5, "out": "bf16"},
    {"activation": 2, "integers": False},
    {"activation": 3, "integers": False, "bias": "f32"},
    {"activation": 4, "integers": False, "out": "f32"},
    {"batch": (3,)},
    {"batch": (2, 2), "shared": "a", "bias": "in"},
    {"batch": (2,), "shared": "b", "out": "f32", "alpha": 2.0},
    {"batch": (2, 2), "shared": "a0"},
    {"batch": (2, 2), "shared": "a1"},
    {"batch": (2, 2), "shared": "b1", "c": "in", "beta": 1.0},
)


def runs(kernel, seed=0) -> list[tuple[Case, str, int]]:
    """(case, schedule, seed) of every run of a kernel: each shape plain once, the rest dealt."""
    rng = random.Random(f"{seed} {kernel.name}")
    deck = []
    out = []
    for number, shape in enumerate(shapes(kernel)):
        plain = rng.randrange(len(SCHEDULES))
        for index, schedule in enumerate(SCHEDULES):
            if not deck:
                deck = list(FEATURES[1:])
                rng.shuffle(deck)
            feature = {} if index == plain else deck.pop()
            if number == 2 and feature.get("batch") == (3,):  # the longest problem, not thrice
                feature = {"batch": (2,)}
            out.append((replace(shape, **feature), schedule, rng.randrange(1 << 16)))
    return out
