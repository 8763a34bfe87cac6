"""The shared-memory layouts of tier sm80 against a model of ldmatrix, mma.sync and the banks.

Proves, per row of the table: every element of a stage is written once and where the swizzle says,
each ldmatrix brings exactly the fragment that mma.sync expects, the epilogue slab returns every
accumulator once, and no access of a warp collides in the 32 banks.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from deepasm_torch.kernels.gemm_sm80 import SM80_KERNELS, Operand

LANES = np.arange(32)
CP16 = [k for k in SM80_KERNELS if k.loads == "cp16" and k.dtype == "bf16"]
ANY = [k for k in SM80_KERNELS if k.loads == "any" and k.dtype == "bf16"]


def _named(kernels):
    return [pytest.param(k, id=k.name) for k in kernels]


def _operands(kernels):
    return [pytest.param(k.values[f"op_{x}"], k, id=f"{k.name}-{x}") for k in kernels for x in "ab"]


def swizzled(op: Operand, row, chunk):
    """Byte offset in the operand's tile of logical (shared row, 16-byte chunk)."""
    return row * op.row_bytes + 16 * (chunk ^ (row >> op.swizzle_shift & op.swizzle_mask))


def labelled_tile(op: Operand) -> np.ndarray:
    """The tile as 16-bit words, each holding mn * bk + k of the element that belongs there."""
    words = np.full(op.bytes // 2, -1)
    for row, chunk in itertools.product(range(op.rows), range(op.chunks)):
        along = 8 * chunk + np.arange(8)
        labels = row * op.bk + along if op.major == "k" else along * op.bk + row
        at = swizzled(op, row, chunk) // 2
        words[at : at + 8] = labels
    return words


def collisions(addresses: np.ndarray, width: int) -> int:
    """Extra shared-memory cycles of one warp access of `width` bytes a lane.

    The hardware serves 128 bytes a cycle: a warp of 4-byte accesses at once, halves of 8-byte ones,
    quarters of 16-byte ones; different words of one bank cost a cycle each.
    """
    lanes, extra = 128 // width, 0
    for group in np.asarray(addresses).reshape(-1, lanes):
        words = (group[:, None] + np.arange(0, width, 4)).ravel() // 4
        worst = max(len({w for w in words if w % 32 == bank}) for bank in range(32))
        extra += worst - 1
    return extra


def ldmatrix_x4(words: np.ndarray, addresses: np.ndarray, trans: bool) -> np.ndarray:
    """[register, lane, half] of ldmatrix.m8n8.x4 with one row address (bytes) a lane."""
    out = np.empty((4, 32, 2), int)
    for q in range(4):
        rows = np.stack([words[a // 2 : a // 2 + 8] for a in addresses[8 * q : 8 * q + 8]])
        matrix = rows.T if trans else rows
        for half in range(2):
            out[q, :, half] = matrix[LANES // 4, 2 * (LANES % 4) + half]
    return out


@pytest.mark.parametrize("op, kernel", _operands(CP16))
def test_copies_fill_the_tile_once(op, kernel):
    seen = []
    for first in range(0, kernel.threads, 32):
        thread = first + LANES
        row, chunk = thread // op.chunks, thread % op.chunks
        base = swizzled(op, row, chunk)
        for i in range(op.passes):
            address = base + i * op.rows_per_pass * op.row_bytes
            np.testing.assert_array_equal(address, swizzled(op, row + i * op.rows_per_pass, chunk))
            assert collisions(address, 16) == 0
            seen += list(address)
    assert sorted(seen) == list(range(0, op.bytes, 16))


@pytest.mark.parametrize("op, kernel", _operands(CP16 + ANY))
def test_ldmatrix_brings_mma_fragments(op, kernel):
    words, warps = labelled_tile(op), op.extent // op.warp_extent
    group, pair = LANES // 4, 2 * (LANES % 4)
    for warp in range(warps):
        row = 8 * (LANES >> op.row_bit & 1) + (LANES & 7)
        chunk = LANES >> op.chunk_bit & 1
        if op.major == "k":
            row = row + warp * op.warp_extent
        else:
            chunk = chunk + warp * op.warp_extent // 8
        lane = swizzled(op, row, chunk)
        for kk, fragments in enumerate(op.fragments):
            for i, (flip, offset) in enumerate(fragments):
                address = (lane ^ flip) + offset
                assert collisions(address, 16) == 0
                got = ldmatrix_x4(words, address, trans=op.major != "k")
                for register, half in itertools.product(range(4), range(2)):
                    down, right = (register % 2, register // 2)
                    if op.name == "b":
                        down, right = right, down  # b's registers go along k first
                    mn = warp * op.warp_extent + 16 * i + 8 * down + group
                    k = 16 * kk + 8 * right + pair + half
                    np.testing.assert_array_equal(got[register, :, half], mn * op.bk + k)


@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize("op, kernel", _operands(ANY))
def test_element_loads_fill_the_tile_once(op, kernel, across):
    words = np.full(op.bytes // 2, -1)
    width = 16 if across else 4
    for first in range(0, kernel.threads, 32):
        thread = first + LANES
        if across:
            row, k = thread % op.extent, 16 * (thread // op.extent)
            base = swizzled(op, row, k // 8)
            stores = [(base, row, k), (base ^ 16, row, k + 8)]
        else:
            row, k = thread // 16, 2 * (thread % 16)
            base = swizzled(op, row, k // 8) + 2 * (k % 8)
            hop = kernel.values["along_rows"]
            stores = [(base + i * hop * op.row_bytes, row + i * hop, k) for i in range(8)]
        for address, row, k in stores:
            assert collisions(address, width) == 0
            for e in range(width // 2):
                assert (words[address // 2 + e] == -1).all()
                words[address // 2 + e] = row * op.bk + k + e
    np.testing.assert_array_equal(words, labelled_tile(op))


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("kernel", _named(CP16[:1] + CP16[-1:] + ANY))
def test_slab_returns_every_value_once(kernel, wide):
    v = kernel.values
    wn, pitch, steps = v["wn"], v["slab_pitch"], v["steps"]
    words = np.full(8 * pitch // 4, -1)
    for j in range(v["nj"]):
        address = LANES // 4 * pitch + LANES % 4 * 8 + 32 * j
        assert collisions(address, 8) == 0
        for half in range(2):
            words[address // 4 + half] = LANES // 4 * wn + 8 * j + 2 * (LANES % 4) + half
    row, col = (LANES // 8, LANES % 8 * 4) if wide else (0 * LANES, LANES)
    base, seen = row * pitch + 4 * col, []
    for q in range(steps):
        at = base + q % 2 * 4 * pitch + q // 2 * 128
        if wide:
            assert collisions(at, 16) == 0
        for e in range(4):
            address = at + (4 * e if wide else e * pitch)
            assert wide or collisions(address, 4) == 0
            step_row = q % 2 * 4 + row + (0 if wide else e)
            step_col = q // 2 * 32 + col + (e if wide else 0)
            np.testing.assert_array_equal(words[address // 4], step_row * wn + step_col)
            seen += list(words[address // 4])
    assert sorted(seen) == list(range(8 * wn))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"bk": 24}, "no swizzle"),
        ({"offset": 64}, "128-byte alignment"),
        ({"warp_extent": 24}, "do not tile"),
        ({"threads": 16}, "whole swizzle periods"),
    ],
)
def test_impossible_operand_is_refused(fields, message):
    good = {
        "name": "a",
        "major": "k",
        "extent": 128,
        "bk": 32,
        "warp_extent": 64,
        "threads": 128,
        "offset": 0,
    }
    Operand(**good)
    with pytest.raises(ValueError, match=message):
        Operand(**{**good, **fields})
