"""Tier sm80 of the GEMM: mma.sync, ldmatrix and cp.async, for compute capability 8.0 and later.

`Operand` describes one operand's tile in shared memory (swizzle, who loads what, which address each
ldmatrix reads) and `sm80_kernel` the warp tiling and the shared-memory map; the templates get plain
numbers.  Two families:

cp16  16-byte cp.async copies, one kernel per layout; aligned operands.
any   element loads, any strides and alignment; one kernel per dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gemm_row import DTYPES, LAYOUTS, GemmKernel
from .params import layout

P = layout()
CHUNK = 16  # bytes of one swizzled unit: a cp.async, or one row of an 8x8 matrix of ldmatrix
FRAGMENT = 16  # rows of m or n, and columns of k, that one ldmatrix.x4 brings

#: name -> parameter fields of an operand: (stride along m or n, stride along k)
STRIDES = {"a": ("a_sm", "a_sk"), "b": ("b_sn", "b_sk")}


@dataclass(frozen=True)
class Operand:
    """The shared-memory tile of a or b: `extent` of m or n times `bk` of k, 2-byte elements.

    Shared rows run along k ('k') or along m, n ('mn').  The 16-byte chunk c of row r is stored at
    chunk c ^ ((r >> swizzle_shift) & swizzle_mask), which makes any 8 consecutive rows of a logical
    chunk, and any 128 consecutive bytes, cover all 32 banks once.
    """

    name: str  # "a" or "b"
    major: str  # "k" or "mn"
    extent: int  # bm or bn
    bk: int
    warp_extent: int  # rows of m or n that one warp multiplies
    threads: int
    offset: int  # bytes from the start of a stage

    def __post_init__(self):
        what = f"operand {self.name} ({self.major}, {self.extent}x{self.bk})"
        if self.row_bytes not in (64, 128, 256):
            raise ValueError(
                f"{what}: a shared row of {self.row_bytes} B has no swizzle; use 64, 128 or 256"
            )
        if self.offset % 128:
            raise ValueError(
                f"{what}: offset {self.offset} breaks the 128-byte alignment that xor steps need"
            )
        if self.warp_extent % FRAGMENT or self.extent % self.warp_extent:
            raise ValueError(
                f"{what}: {self.warp_extent} rows a warp do not tile it in fragments of {FRAGMENT}"
            )
        if self.rows % self.rows_per_pass or self.rows_per_pass % 8:
            raise ValueError(
                f"{what}: {self.threads} threads do not cover whole swizzle periods of it"
            )

    @property
    def rows(self) -> int:
        """Shared rows."""
        return self.extent if self.major == "k" else self.bk

    @property
    def row_bytes(self) -> int:
        return 2 * (self.bk if self.major == "k" else self.extent)

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def chunks(self) -> int:
        """16-byte chunks of a shared row."""
        return self.row_bytes // CHUNK

    @property
    def chunks_log2(self) -> int:
        return self.chunks.bit_length() - 1

    @property
    def extent_log2(self) -> int:
        return self.extent.bit_length() - 1

    @property
    def swizzle_shift(self) -> int:
        return 1 if self.row_bytes == 64 else 0  # two 64-byte rows share the 32 banks

    @property
    def swizzle_mask(self) -> int:
        return min(self.chunks, 8) - 1

    @property
    def rows_per_pass(self) -> int:
        """Rows that the threads copy together when each copies one chunk."""
        return self.threads // self.chunks

    @property
    def passes(self) -> int:
        return self.rows // self.rows_per_pass

    @property
    def row_bit(self) -> int:
        """Lane bit that moves ldmatrix down by 8 shared rows; `chunk_bit` moves it by one chunk.

        Lanes 8 q .. 8 q + 7 address matrix q.  mma wants the matrices of a as (m, k) = (0, 0),
        (8, 0), (0, 8), (8, 8) and those of b as (k, n) = (0, 0), (8, 0), (0, 8), (8, 8).
        """
        return 3 if (self.name == "a") == (self.major == "k") else 4

    @property
    def chunk_bit(self) -> int:
        return 7 - self.row_bit

    @property
    def fragments(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """[k-step][16-row fragment] -> (xor, offset) from the lane's address in the stage.

        A move along the shared row changes the chunk number, hence the xor (the lane's own chunk
        bits there are zero); a move down by 16 rows is a multiple of the swizzle period, hence an
        offset.
        """
        down, along = FRAGMENT * self.row_bytes, FRAGMENT * 2
        steps, count = self.bk // FRAGMENT, self.warp_extent // FRAGMENT
        if self.major == "k":
            return tuple(tuple((kk * along, i * down) for i in range(count)) for kk in range(steps))
        return tuple(tuple((i * along, kk * down) for i in range(count)) for kk in range(steps))

    # Parameter-block offsets of the fields the template reads, by role.

    @property
    def base(self) -> int:
        return P.offsets[self.name]

    @property
    def row_stride(self) -> int:
        """Stride between shared rows in global memory."""
        return P.offsets[STRIDES[self.name][0 if self.major == "k" else 1]]

    @property
    def mn_stride(self) -> int:
        return P.offsets[STRIDES[self.name][0]]

    @property
    def k_stride(self) -> int:
        return P.offsets[STRIDES[self.name][1]]

    @property
    def z0_stride(self) -> int:
        return P.offsets[f"{self.name}_sz0"]

    @property
    def z1_stride(self) -> int:
        return P.offsets[f"{self.name}_sz1"]

    @property
    def mn(self) -> int:
        """Field m or n."""
        return P.offsets["m" if self.name == "a" else "n"]

    @property
    def tile(self) -> str:
        """Register that counts tiles along m or n."""
        return "tile_m" if self.name == "a" else "tile_n"


@dataclass(frozen=True)
class Sm80Tile:
    """A tile shape, its warps, and the register budget that lets `min_ctas` share an SM."""

    bm: int
    bn: int
    bk: int
    stages: int
    warps_m: int
    warps_n: int
    min_ctas: int
    max_regs: int


# 64x64 a warp: ldmatrix reads 4 KB for 2^16 products, so the tensor cores and not the shared-memory
# port set the pace; 4 warps of it need 255 registers, and 2 CTAs fill the register file.
# 64x64x64 is for products with too few large tiles to fill the GPU.
CP16_TILES = (
    Sm80Tile(128, 128, 32, 4, 2, 2, 2, 255),
    Sm80Tile(64, 64, 64, 4, 2, 2, 3, 168),
)

# Element loads keep the load units busy, so two CTAs an SM hide their latency.
ANY_TILE = Sm80Tile(128, 128, 32, 2, 2, 4, 2, 128)


def _values(tile: Sm80Tile, dtype: str, majors: tuple[str, str]) -> dict:
    """Template variables that both families share, and the shared-memory map."""
    threads = 32 * tile.warps_m * tile.warps_n
    wm, wn = tile.bm // tile.warps_m, tile.bn // tile.warps_n
    op_a = Operand("a", majors[0], tile.bm, tile.bk, wm, threads, 0)
    op_b = Operand("b", majors[1], tile.bn, tile.bk, wn, threads, op_a.bytes)
    stage = op_a.bytes + op_b.bytes
    ring = tile.stages * stage
    steps = 2 * wn // 32  # of 4 rows by 32 columns in the epilogue's 8-row slab
    pitch = 4 * (wn + 8)  # words = 8 mod 32: rows of fragments fall on different banks
    return {
        "op_a": op_a,
        "op_b": op_b,
        "mma_type": dtype,
        "wm": wm,
        "wn": wn,
        "mi": wm // 16,
        "nj": wn // 8,
        "k_steps": tile.bk // 16,
        "warps_n": tile.warps_n,
        "warps_n_log2": tile.warps_n.bit_length() - 1,
        "stage_bytes": stage,
        "ring_bytes": ring,
        "min_ctas": tile.min_ctas,
        "slab_offset": ring,
        "slab_pitch": pitch,
        "slab_bytes": 8 * pitch,
        "steps": steps,
        "value_names": [f"%value{i}" for i in range(4 * steps)],
        "smem": ring + tile.warps_m * tile.warps_n * 8 * pitch,
    }


def sm80_kernel(tile: Sm80Tile, dtype: str, layout_name: str) -> GemmKernel:
    """One cp16 kernel."""
    a_major, b_major = LAYOUTS[layout_name]
    values = _values(
        tile, dtype, tuple("k" if major == "k" else "mn" for major in (a_major, b_major))
    )
    return GemmKernel(
        name=f"gemm_sm80_{dtype}_{layout_name}_{tile.bm}x{tile.bn}x{tile.bk}",
        template="sm80/gemm.ptx.j2",
        tier=80,
        dtype=dtype,
        a_major=a_major,
        b_major=b_major,
        schedule="mma",
        bm=tile.bm,
        bn=tile.bn,
        bk=tile.bk,
        stages=tile.stages,
        threads=32 * tile.warps_m * tile.warps_n,
        smem=values.pop("smem"),
        loads="cp16",
        max_regs=tile.max_regs,
        values=values,
    )


def any_kernel(tile: Sm80Tile, dtype: str) -> GemmKernel:
    """The kernel of one dtype that takes any strides and alignment."""
    values = _values(tile, dtype, ("k", "k"))
    threads = 32 * tile.warps_m * tile.warps_n
    elements = tile.bm * tile.bk // threads
    if tile.bm != tile.bn or elements != 16 or tile.bk != 32:
        raise ValueError(
            "the template loads 16 elements of a 32-wide k-block a thread, "
            f"not {elements} of {tile}"
        )
    return GemmKernel(
        name=f"gemm_sm80_{dtype}_any_{tile.bm}x{tile.bn}x{tile.bk}",
        template="sm80/gemm_any.ptx.j2",
        tier=80,
        dtype=dtype,
        a_major="*",
        b_major="*",
        schedule="mma",
        bm=tile.bm,
        bn=tile.bn,
        bk=tile.bk,
        stages=tile.stages,
        threads=threads,
        smem=values.pop("smem"),
        loads="any",
        max_regs=tile.max_regs,
        values=dict(values, along_rows=threads // (tile.bk // 2), bk_log2=5),
    )


SM80_KERNELS = (
    *(
        sm80_kernel(tile, dtype, name)
        for tile in CP16_TILES
        for dtype in DTYPES
        for name in LAYOUTS
    ),
    *(any_kernel(ANY_TILE, dtype) for dtype in DTYPES),
)
