"""Tier sm90 of the GEMM: TMA, mbarriers and wgmma, for compute capability 9.0.

`sm90_kernel` derives everything the template needs to know about a tile (shared-memory map,
descriptor steps, register split) and passes it on as plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gemm_row import DTYPES, LAYOUTS, GemmKernel

SM90_ROW = 128  # bytes of one swizzled shared-memory row, and of one TMA box row


@dataclass(frozen=True)
class Sm90Tile:
    """A tile shape and schedule of the sm90 template.

    coop: two consumer warpgroups share a tile, each owns bm / 2 rows.
    pingpong: two consumer warpgroups own alternate tiles, one computes while the other stores.
    """

    schedule: str
    bm: int
    bn: int
    stages: int
    wait_depth: int  # wgmma batches in flight; 0 pays for coop, 1 for pingpong
    producer_regs: int = 40
    consumer_regs: int = 232
    store_buffers: int = 2  # staging buffers per consumer warpgroup
    d_major: str = "n"  # 'm': for few tokens, which then take the narrow n side (epilogue_sm90_t)


SM90_TILES = (
    Sm90Tile("coop", 128, 256, 4, 0),
    Sm90Tile("pingpong", 128, 128, 6, 1),
    Sm90Tile("pingpong", 128, 192, 4, 1, 24, 240),
    Sm90Tile("pingpong", 64, 128, 8, 1),
    Sm90Tile("pingpong", 64, 64, 12, 1, store_buffers=1),
)
# Weight rows on the 64-row side, tokens on the n side: a deep ring of small stages streams the
# weight.
SM90_NARROW_TILES = (
    Sm90Tile("pingpong", 64, 8, 24, 1, d_major="m"),
    Sm90Tile("pingpong", 64, 16, 20, 1, d_major="m"),
    Sm90Tile("pingpong", 64, 32, 16, 1, d_major="m"),
    Sm90Tile("pingpong", 64, 64, 12, 1, d_major="m"),
)

BOX_BYTES = 64 * SM90_ROW  # one 64-row, 128-byte-wide box of shared memory


def sm90_kernel(tile: Sm90Tile, dtype: str, layout: str) -> GemmKernel:
    """Derive the shared-memory map and descriptor numbers of one sm90 GEMM kernel."""
    a_major, b_major = LAYOUTS[layout]
    bk = 64
    consumers = 2
    rows = tile.bm // consumers if tile.schedule == "coop" else tile.bm  # rows of d per warpgroup
    m_atoms = rows // 64
    box = BOX_BYTES if tile.d_major == "n" else tile.bn * SM90_ROW
    if tile.d_major == "n" and m_atoms * tile.bn // 64 % tile.store_buffers:
        raise ValueError(
            f"{tile}: a tile must fill whole turns of the staging buffers, or the next tile would "
            "overwrite a box that a store still reads"
        )
    a_bytes, b_bytes = tile.bm * SM90_ROW, tile.bn * SM90_ROW
    stage = a_bytes + b_bytes
    ring = tile.stages * stage
    store = ring  # staging for the epilogue, 1024-byte aligned like every swizzled tile
    bias = store + consumers * tile.store_buffers * box
    full = bias + (consumers * tile.bn * 4 if tile.d_major == "n" else 0)
    empty = full + 8 * tile.stages
    end = empty + 8 * tile.stages
    # Descriptor words count 16-byte units.  In the 128-byte swizzle a k16 step is 32 B along a
    # k-major row, or 16 rows of 128 B of an operand whose rows run along k.
    lbo = {"k": 1, "mn": bk * SM90_ROW // 16}
    values = dict(
        consumers=consumers,
        rows=rows,
        m_atoms=m_atoms,
        wait_depth=tile.wait_depth,
        producer_regs=tile.producer_regs,
        consumer_regs=tile.consumer_regs,
        store_buffers=tile.store_buffers,
        acc=m_atoms * tile.bn // 2,
        stage_bytes=stage,
        b_offset=a_bytes,
        store_offset=store,
        bias_offset=bias,
        full_offset=full,
        empty_offset=empty,
        box_bytes=box,
        epilogue=f"include/epilogue_sm90{'' if tile.d_major == 'n' else '_t'}.ptx.j2",
        a_boxes=1 if a_major == "k" else tile.bm // 64,
        a_box_bytes=BOX_BYTES,
        b_boxes=1 if b_major == "k" else tile.bn // 64,
        b_box_bytes=BOX_BYTES,
        a_k_step=2 if a_major == "k" else 16 * SM90_ROW // 16,
        b_k_step=2 if b_major == "k" else 16 * SM90_ROW // 16,
        a_m_step=64 * SM90_ROW // 16,  # next 64 rows: the next atom in either majorness
        a_lbo=lbo["k"] if a_major == "k" else lbo["mn"],
        b_lbo=lbo["k"] if b_major == "k" else lbo["mn"],
        trans_a=int(a_major == "m"),
        trans_b=int(b_major == "n"),
        desc_hi=(1024 // 16) | (1 << 30),  # stride between 8-row groups; swizzle mode 128 B
    )
    return GemmKernel(
        name=f"gemm_sm90_{dtype}_{layout}_{tile.bm}x{tile.bn}x{bk}_{tile.schedule}"
        + ("_t" if tile.d_major == "m" else ""),
        template="sm90/gemm.ptx.j2",
        tier=90,
        dtype=dtype,
        a_major=a_major,
        b_major=b_major,
        schedule=tile.schedule,
        bm=tile.bm,
        bn=tile.bn,
        bk=bk,
        stages=tile.stages,
        threads=128 * (1 + consumers),
        smem=end,
        loads="tma",
        max_regs=168,
        values=values,
        d_major=tile.d_major,
    )


SM90_KERNELS = tuple(
    sm90_kernel(tile, dtype, layout)
    for tile in SM90_TILES
    for dtype in DTYPES
    for layout in LAYOUTS
) + tuple(
    # the tokens are k-major (b), the weight either way (a)
    sm90_kernel(tile, dtype, layout)
    for tile in SM90_NARROW_TILES
    for dtype in DTYPES
    for layout in ("nt", "tt")
)
