"""Hold a result against float64: exactly for integers, per tile for random data.

The bound for an element is

    2 * (largest error of torch's own kernel in the same tile)
      + one ulp of the output type at the true value
      + 1.13 * 2^-23 * w * (sum of the absolute products and addends of the element)

with w = max(1, sqrt(k) / 8) for float32 outputs and w = 1 for all others; 1.13 is the largest slope
of an activation.  The last term stands for the truncations of the fp32 accumulator.  A float32
output shows them: a random partial sum is about 1 / sqrt(k) of the magnitude, and tensor cores
truncate it k / 16 times, while torch may split a long sum over several accumulators, and in a tile
with a handful of elements, or a sum that cancels, its largest error can be near zero.  In a 16-bit
output the ulp covers them, except where a sum cancels.
Nothing is averaged over the whole matrix, so one wrong tile among thousands shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

ACTIVATIONS = {
    0: lambda x: x,
    1: torch.relu,
    2: lambda x: F.gelu(x, approximate="tanh"),
    3: F.gelu,
    4: F.silu,
}
#: Largest slope of any activation (gelu and silu both stay below).
MAX_SLOPE = 1.13
_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.float64: 52}
_MIN_EXPONENT = {
    torch.bfloat16: -126,
    torch.float16: -14,
    torch.float32: -126,
    torch.float64: -1022,
}


def ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Spacing of `dtype` at |x|, as float64; subnormals included."""
    exponent = torch.frexp(x.double().abs())[1] - 1
    exponent = exponent.masked_fill(x == 0, _MIN_EXPONENT[dtype]).clamp(min=_MIN_EXPONENT[dtype])
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - _MANTISSA[dtype])


def epilogue(product, dtype, *, bias=None, c=None, alpha=1.0, beta=0.0, activation=0):
    """act(alpha * product + beta * c + bias), computed in `dtype`."""
    y = alpha * product.to(dtype)
    if c is not None:
        y = y + beta * c.to(dtype)
    if bias is not None:
        y = y + bias.to(dtype)
    return ACTIVATIONS[activation](y)


def torch_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b by torch's own kernel of this dtype, with its fp32 accumulator left unrounded."""
    matmul = torch.backends.cuda.matmul
    kept = (
        matmul.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = (
        matmul.allow_fp16_reduced_precision_reduction
    ) = False
    try:
        if a.is_cuda:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            a3 = a.expand(*batch, *a.shape[-2:]).reshape(-1, *a.shape[-2:])
            b3 = b.expand(*batch, *b.shape[-2:]).reshape(-1, *b.shape[-2:])
            y = torch.bmm(a3, b3, out_dtype=torch.float32)
            return y.view(*batch, *y.shape[-2:])
        return torch.matmul(a.float(), b.float())
    finally:
        (
            matmul.allow_tf32,
            matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_reduced_precision_reduction,
        ) = kept


@dataclass
class Verdict:
    """What a comparison found."""

    ok: bool
    worst: float  # largest error as a fraction of its bound
    text: str = ""


def _tiles(x: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """Largest element of each tile of x (z, m, n): shape (z, tiles_m, tiles_n)."""
    bm, bn = tile
    _, m, n = x.shape
    x = F.pad(x, (0, -n % bn, 0, -m % bm))
    return x.view(x.shape[0], x.shape[1] // bm, bm, x.shape[2] // bn, bn).amax(dim=(2, 4))


def _report(bad, got, want, tile) -> str:
    """Which tiles are wrong, and a few elements around the first wrong one."""
    bm, bn = tile
    z, i, j = (int(v) for v in bad.nonzero()[0])
    tiles = _tiles(bad.double(), tile)
    lines = [
        (
            f"{int(bad.sum())} of {bad.numel()} elements are wrong, in {int(tiles.sum())} of "
            f"{tiles.numel()} tiles of {bm}x{bn}"
        ),
        (
            f"first bad tile: batch {z}, tile ({i // bm}, {j // bn}); element ({i}, {j}), "
            f"({i % bm}, {j % bn}) inside the tile"
        ),
    ]
    rows, cols = slice(i, i + 3), slice(j, j + 6)
    for name, x in (("got ", got), ("want", want)):
        for r, row in enumerate(x[z, rows, cols].double().tolist()):
            lines.append(
                f"  {name} row {i + r}, from column {j}: " + " ".join(f"{v:.5g}" for v in row)
            )
    return "\n".join(lines)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, *x.shape[-2:])


def exact_verdict(got: torch.Tensor, want64: torch.Tensor, tile: tuple[int, int]) -> Verdict:
    """`got` must be the correctly rounded `want64`, element by element."""
    want = _flat(want64.to(torch.float32).to(got.dtype))
    bad = ~(_flat(got) == want)
    if not bool(bad.any()):
        return Verdict(True, 0.0)
    return Verdict(False, float("inf"), _report(bad, _flat(got), want, tile))


def tile_verdict(got, want64, peer, magnitude, tile: tuple[int, int], k: int = 0) -> Verdict:
    """Per-tile bound of the module docstring.

    Parameters
    ----------
    got : Tensor (..., m, n)
    want64 : Tensor (..., m, n), float64
    peer : Tensor (..., m, n)
        Torch's result, in the dtype of `got`.
    magnitude : Tensor (..., m, n)
        Sum of absolute products and addends, which scales accumulator rounding.
    k : int
        Length of the sum; counts for float32 outputs only.
    """
    got, want64, peer, magnitude = map(_flat, (got, want64, peer, magnitude))
    error = (got.double() - want64).abs()
    peer_tiles = _tiles((peer.double() - want64).abs(), tile)
    peer_error = peer_tiles.repeat_interleave(tile[0], 1).repeat_interleave(tile[1], 2)
    bound = 2 * peer_error[:, : got.shape[1], : got.shape[2]] + ulp(want64, got.dtype)
    truncations = max(1.0, k**0.5 / 8) if got.dtype == torch.float32 else 1.0
    bound += MAX_SLOPE * 2.0**-23 * truncations * magnitude.double()
    bad = ~(error <= bound)
    worst = float((error / bound).nan_to_num(float("inf")).amax()) if bad.numel() else 0.0
    if not bool(bad.any()):
        return Verdict(True, worst)
    text = _report(bad, got, want64, tile) + f"\n  largest error is {worst:.3g} times its bound"
    return Verdict(False, worst, text)
