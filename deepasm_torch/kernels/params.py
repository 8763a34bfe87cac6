"""The parameter block that C++ fills and a kernel reads: one list, three consumers.

`GEMM_PARAMS` fixes the order; natural alignment fixes the offsets.  The templates read fields by
name (`ld.param.u32 %m, [params + ${P.m}]`), the build writes the same layout as a C struct with a
`static_assert` per offset, and `planning` packs it for tools that run without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

#: size and alignment in bytes, and the C type, of each field kind
KINDS = {
    "map": (128, 128, "TensorMapBytes"),
    "ptr": (8, 8, "uint64_t"),
    "s64": (8, 8, "int64_t"),
    "f32": (4, 4, "float"),
    "u32": (4, 4, "uint32_t"),
    "div": (8, 4, "FastDivisor"),
}

#: (name, kind, meaning).  Strides count elements; z = z1 * nz0 + z0 numbers the batch.
GEMM_PARAMS = (
    ("map_a", "map", "tensor map of a (tier sm90)"),
    ("map_b", "map", "tensor map of b (tier sm90)"),
    ("map_d", "map", "tensor map of d, used when flag tma_store is set (tier sm90)"),
    ("a", "ptr", "a[z, m, k]"),
    ("b", "ptr", "b[z, k, n]"),
    ("c", "ptr", "addend c[z, m, n], when flag has_c is set"),
    ("d", "ptr", "output d[z, m, n]"),
    ("bias", "ptr", "bias[n] (bias[m] for d_major m), contiguous, when flag has_bias is set"),
    ("a_sm", "s64", "stride of a along m"),
    ("a_sk", "s64", "stride of a along k"),
    ("a_sz0", "s64", "stride of a along z0, 0 for a broadcast"),
    ("a_sz1", "s64", "stride of a along z1, 0 for a broadcast"),
    ("b_sk", "s64", "stride of b along k"),
    ("b_sn", "s64", "stride of b along n"),
    ("b_sz0", "s64", "stride of b along z0, 0 for a broadcast"),
    ("b_sz1", "s64", "stride of b along z1, 0 for a broadcast"),
    ("c_sm", "s64", "stride of c along m, 0 for a broadcast"),
    ("c_sn", "s64", "stride of c along n, 0 for a broadcast"),
    ("c_sz0", "s64", "stride of c along z0, 0 for a broadcast"),
    ("c_sz1", "s64", "stride of c along z1, 0 for a broadcast"),
    ("d_sm", "s64", "stride between lines of d: along m, or along n for d_major m; the other is 1"),
    ("d_sz0", "s64", "stride of d along z0"),
    ("d_sz1", "s64", "stride of d along z1"),
    ("alpha", "f32", "scale of a @ b"),
    ("beta", "f32", "scale of c"),
    ("m", "u32", "rows of d"),
    ("n", "u32", "columns of d"),
    ("k", "u32", "length of the sum, at least 1"),
    ("nz0", "u32", "extent of z0"),
    ("tiles_m", "u32", "ceil(m / tile rows)"),
    ("tiles_n", "u32", "ceil(n / tile columns)"),
    ("tiles", "u32", "tiles_m * tiles_n * batch"),
    ("k_blocks", "u32", "ceil(k / bk), at least 1"),
    ("group_m", "u32", "height of a raster group in tiles"),
    ("flags", "u32", "see GEMM_FLAGS"),
    ("per_batch", "u32", "tiles_m * tiles_n"),
    ("span", "u32", "tiles in a full raster group, group_m * tiles_n"),
    ("last_rows", "u32", "tile rows of the last raster group"),
    ("div_batch", "div", "divides by per_batch"),
    ("div_nz0", "div", "divides by nz0"),
    ("div_span", "div", "divides by span"),
    ("div_rows", "div", "divides by group_m"),
    ("div_last", "div", "divides by last_rows"),
)

#: name -> (lowest bit, width)
GEMM_FLAGS = {
    "out_dtype": (0, 2),  # 0 bf16, 1 f16, 2 f32
    "activation": (2, 3),  # 0 none, 1 relu, 2 gelu_tanh, 3 gelu_erf, 4 silu
    "has_bias": (5, 1),
    "bias_f32": (6, 1),  # otherwise bias has the input dtype
    "has_c": (7, 1),
    "c_f32": (8, 1),  # otherwise c has the input dtype
    "tma_store": (9, 1),  # d obeys the 16-byte rules of a TMA store
    "a_z0": (10, 1),  # the batch coordinate z0 / z1 indexes map_a, map_b
    "a_z1": (11, 1),
    "b_z0": (12, 1),
    "b_z1": (13, 1),
    "scale_alpha": (14, 1),  # alpha != 1
}


def fast_divisor(d: int) -> tuple[int, int]:
    """(mul, shift) with  a // d == (mulhi(a, mul) + a) >> shift  for 0 <= a < 2**31.

    Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994.

    Kernels divide by run-time constants at the start of each tile; a division instruction sequence
    there delays the first load by some hundred cycles.
    """
    if not 1 <= d < 2**31:
        raise ValueError(f"divisor {d} is outside 1 .. 2**31 - 1")
    shift = (d - 1).bit_length()
    return (2**32 * (2**shift - d)) // d + 1, shift


def raster(tiles_m: int, tiles_n: int, batch: int, nz0: int, group_m: int) -> dict:
    """The tile-order fields of the block, from the tile counts."""
    group_m = min(group_m, tiles_m)
    groups = -(-tiles_m // group_m)
    last = tiles_m - (groups - 1) * group_m
    return dict(
        nz0=nz0,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        tiles=tiles_m * tiles_n * batch,
        group_m=group_m,
        per_batch=tiles_m * tiles_n,
        span=group_m * tiles_n,
        last_rows=last,
        div_batch=fast_divisor(tiles_m * tiles_n),
        div_nz0=fast_divisor(nz0),
        div_span=fast_divisor(group_m * tiles_n),
        div_rows=fast_divisor(group_m),
        div_last=fast_divisor(last),
    )


@dataclass(frozen=True)
class Layout:
    """Byte offsets of a parameter block; `layout.m` is the offset of field `m`."""

    offsets: dict[str, int]
    size: int

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["offsets"][name]
        except KeyError:
            raise AttributeError(f"the parameter block has no field {name!r}") from None


def layout(fields=GEMM_PARAMS) -> Layout:
    """Lay `fields` out in order with natural alignment, as a C compiler does."""
    offsets, end, align_max = {}, 0, 1
    for name, kind, _ in fields:
        size, align, _ = KINDS[kind]
        end = -(-end // align) * align
        offsets[name] = end
        end += size
        align_max = max(align_max, align)
    return Layout(offsets, -(-end // align_max) * align_max)


_C_PROLOGUE = """\
// Generated from deepasm_torch/kernels/params.py.
#pragma once
#include <cstddef>
#include <cstdint>

namespace deepasm {

struct alignas(128) TensorMapBytes {
  unsigned char bytes[128];
};

// a / d == (mulhi(a, mul) + a) >> shift for a < 2^31
struct FastDivisor {
  uint32_t mul, shift;
};

struct alignas(128) GemmParams {"""


def c_header(fields=GEMM_PARAMS, flags=GEMM_FLAGS) -> str:
    """The block as a C++ header: struct, offset checks, flag constants."""
    lay = layout(fields)
    out = [_C_PROLOGUE]
    out += [f"  {KINDS[kind][2]} {name};  // {text}" for name, kind, text in fields]
    out += ["};", ""]
    for name, *_ in fields:
        out.append(f"static_assert(offsetof(GemmParams, {name}) == {lay.offsets[name]});")
    out += [f"static_assert(sizeof(GemmParams) == {lay.size});", "", "namespace gemm_flags {"]
    for name, (bit, width) in flags.items():
        out.append(f"constexpr uint32_t {name}_shift = {bit};")
        out.append(f"constexpr uint32_t {name} = {(1 << width) - 1}u << {bit};")
    out += ["}  // namespace gemm_flags", "", "}  // namespace deepasm", ""]
    return "\n".join(out)
