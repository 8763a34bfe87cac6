"""Triton kernels of the baseline: one through TMA descriptors, one through pointers.

Both compute ``D[z] = act(A[z] @ B[z] + bias)`` with float32 accumulation, and share the raster, the
activation codes and the epilogue's arithmetic. Importing this module imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile_of(index, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Grouped raster: GROUP_M tile rows are walked column by column, so B tiles stay in L2."""
    per_group = GROUP_M * tiles_n
    group = index // per_group
    first = group * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    within = index % per_group
    return first + within % height, within // height


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == 1:
        # A comparison, not a maximum: NaN has to survive, as it does in torch.relu.
        x = tl.where(x < 0, 0.0, x)
    elif ACT == 2:
        # 0.5 x (1 + tanh(u)) == x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACT == 3:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACT == 4:
        x = x * tl.sigmoid(x)
    return x


# Sizes are not specialised on their divisibility: the descriptors carry all the alignment the
# compiler needs, and one binary per tile shape then serves every problem size.
@triton.jit(do_not_specialize=["M", "N", "K", "nz", "a_z", "b_z", "d_sm", "d_sz"])
def gemm_tma(
    a_desc,  # A as stored: [z,] M, K when A_K, else [z,] K, M
    b_desc,  # B as stored: [z,] N, K when B_K, else [z,] K, N
    d_desc,  # D: [z,] M, N, or None when its rows do not meet TMA's 16-byte rule
    d_ptr,  # D's address when d_desc is None
    bias_ptr,  # float32 or 16-bit, N elements, or None
    M,
    N,
    K,
    nz,  # batch entries, 1 when not BATCHED
    a_z,  # 0 when A is broadcast over the batch, else 1
    b_z,
    d_sm,  # D's row pitch and batch pitch in elements, used without d_desc
    d_sz,
    A_K: tl.constexpr,
    B_K: tl.constexpr,
    BATCHED: tl.constexpr,
    ACT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,  # the epilogue's column slices: fewer registers and less shared memory
    GROUP_M: tl.constexpr,
):
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    per_z = tiles_m * tiles_n
    k_blocks = tl.cdiv(K, BK)
    step = tl.num_programs(0)
    width: tl.constexpr = BN // PARTS

    # The epilogue recomputes its tile from its own counter: sharing the loop's would tie the loads
    # of the next tile to the stores of this one, and the flattened loop could not overlap them.
    done = tl.program_id(0)
    for tile in tl.range(tl.program_id(0), per_z * nz, step, flatten=True):
        pm, pn = _tile_of(tile % per_z, tiles_m, tiles_n, GROUP_M)
        z = tile // per_z
        m0 = pm * BM
        n0 = pn * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for block in range(k_blocks):
            k0 = block * BK
            if BATCHED:
                if A_K:
                    a = a_desc.load([z * a_z, m0, k0]).reshape(BM, BK)
                else:
                    a = a_desc.load([z * a_z, k0, m0]).reshape(BK, BM).T
                if B_K:
                    b = b_desc.load([z * b_z, n0, k0]).reshape(BN, BK).T
                else:
                    b = b_desc.load([z * b_z, k0, n0]).reshape(BK, BN)
            else:
                if A_K:
                    a = a_desc.load([m0, k0])
                else:
                    a = a_desc.load([k0, m0]).T
                if B_K:
                    b = b_desc.load([n0, k0]).T
                else:
                    b = b_desc.load([k0, n0])
            acc = tl.dot(a, b, acc)

        om, on = _tile_of(done % per_z, tiles_m, tiles_n, GROUP_M)
        oz = done // per_z
        done += step
        row0 = om * BM
        col0 = on * BN
        if PARTS == 2:
            left, right = acc.reshape(BM, 2, width).permute(0, 2, 1).split()
            parts = (left, right)
        else:
            parts = (acc,)
        for part in tl.static_range(PARTS):
            x = parts[part]
            col = col0 + part * width
            cols = col + tl.arange(0, width)
            if bias_ptr is not None:
                x += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
            x = _activate(x, ACT)
            if d_desc is not None:
                y = x.to(d_desc.dtype)
                if BATCHED:
                    d_desc.store([oz, row0, col], y.reshape(1, BM, width))
                else:
                    d_desc.store([row0, col], y)
            else:
                # 32-bit offsets inside the tile (the launcher checks BM * d_sm < 2^31).
                rows = tl.arange(0, BM)
                base = d_ptr + oz.to(tl.int64) * d_sz + row0.to(tl.int64) * d_sm
                inside = (rows < M - row0)[:, None] & (cols < N)[None, :]
                offsets = rows[:, None] * d_sm + cols[None, :]
                tl.store(base + offsets, x.to(d_ptr.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=[
        "m_units", "n_units", "k_units", "nz0", "a_so", "a_si", "a_z0", "a_z1",
        "b_so", "b_si", "b_z0", "b_z1", "d_sm", "d_sz",
    ]
)  # fmt: skip
def gemm_pointer(
    a_ptr,
    b_ptr,
    d_ptr,
    bias_ptr,
    m_units,  # M / M_UNIT, and so on: a size known to be a multiple of a power of two lets the
    n_units,  # compiler prove that a masked load is whole, so it may use 4, 8 or 16-byte copies
    k_units,
    nz0,  # inner batch count: z = z1 * nz0 + z0
    a_so,  # A's outer stride / A_UNIT; outer is M when A_MAJOR is 1 ("k"), K when it is 2 ("m")
    a_si,  # A's inner stride, used when A_MAJOR is 0 (no unit stride): strides of M and K
    a_z0,  # batch strides / A_UNIT
    a_z1,
    b_so,  # the same for B; B_MAJOR 1 ("k"): outer is N, 2 ("n"): outer is K, 0: (N, K)
    b_si,
    b_z0,
    b_z1,
    d_sm,
    d_sz,
    M_UNIT: tl.constexpr,
    N_UNIT: tl.constexpr,
    K_UNIT: tl.constexpr,
    A_UNIT: tl.constexpr,
    B_UNIT: tl.constexpr,
    A_MAJOR: tl.constexpr,
    B_MAJOR: tl.constexpr,
    WIDE: tl.constexpr,  # offsets inside a tile need 64 bits
    ACT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    M = m_units * M_UNIT
    N = n_units * N_UNIT
    K = k_units * K_UNIT
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    per_z = tiles_m * tiles_n
    pm, pn = _tile_of(tl.program_id(0) % per_z, tiles_m, tiles_n, GROUP_M)
    z = tl.program_id(0) // per_z
    z0 = (z % nz0).to(tl.int64)
    z1 = (z // nz0).to(tl.int64)

    # A scalar 64-bit base that walks along K, plus offsets inside the tile that are 32-bit unless
    # the tile spans more: pointer tensors would cost two registers for every element loaded.
    OFFSET: tl.constexpr = tl.int64 if WIDE else tl.int32
    row0 = pm * BM
    col0 = pn * BN
    rows = row0 + tl.arange(0, BM)
    cols = col0 + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    i = tl.arange(0, BM).to(OFFSET)[:, None]
    j = tl.arange(0, BN).to(OFFSET)[None, :]
    k_row = ks.to(OFFSET)[None, :]
    k_col = ks.to(OFFSET)[:, None]
    a_at = a_ptr + (z0 * a_z0 + z1 * a_z1) * A_UNIT
    b_at = b_ptr + (z0 * b_z0 + z1 * b_z1) * B_UNIT
    a_outer = a_so.to(OFFSET) * A_UNIT
    b_outer = b_so.to(OFFSET) * B_UNIT
    if A_MAJOR == 1:
        a_at += row0.to(tl.int64) * a_outer
        a_offsets = i * a_outer + k_row
        a_step = BK
    elif A_MAJOR == 2:
        a_at += row0
        a_offsets = k_row * a_outer + i
        a_step = a_outer.to(tl.int64) * BK
    else:
        a_at += row0.to(tl.int64) * a_outer
        a_offsets = i * a_outer + k_row * a_si
        a_step = a_si.to(tl.int64) * BK
    if B_MAJOR == 1:
        b_at += col0.to(tl.int64) * b_outer
        b_offsets = j * b_outer + k_col
        b_step = BK
    elif B_MAJOR == 2:
        b_at += col0
        b_offsets = k_col * b_outer + j
        b_step = b_outer.to(tl.int64) * BK
    else:
        b_at += col0.to(tl.int64) * b_outer
        b_offsets = j * b_outer + k_col * b_si
        b_step = b_si.to(tl.int64) * BK

    row_ok = (rows < M)[:, None]
    col_ok = (cols < N)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range(tl.cdiv(K, BK)):
        left = K - block * BK
        a = tl.load(a_at + a_offsets, mask=row_ok & (ks < left)[None, :], other=0.0)
        b = tl.load(b_at + b_offsets, mask=(ks < left)[:, None] & col_ok, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += a_step
        b_at += b_step

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    acc = _activate(acc, ACT)
    d_at = d_ptr + z.to(tl.int64) * d_sz + row0.to(tl.int64) * d_sm + col0
    d_offsets = i * d_sm + j
    tl.store(d_at + d_offsets, acc.to(d_ptr.dtype.element_ty), mask=row_ok & col_ok)
