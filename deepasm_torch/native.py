"""The committed table of what runs on deepasm's own kernels, and what torch computes instead.

One row per feature, dtype, tier and direction.  A row that says native is a promise that tests hold
the package to: on such a GPU the call raises no fallback counter, launches exactly the kernels it
states and nothing else of ours, and copies no operand behind the caller's back.

`CASES` builds the call of each feature, so that a test runs what the table speaks of::

    for row in native.ROWS:
        call = native.CASES[row.feature](device, row.torch_dtype)
        y = call()                     # forward
        torch.autograd.grad(y, call.leaves, torch.ones_like(y))    # backward
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .checks import Activation

TIERS = (80, 90)
_HALF = ("bfloat16", "float16")
_TORCH = ("float32", "float64")


@dataclass(frozen=True)
class Row:
    """One promise.

    launches : deepasm kernel launches of a native row
    tiers : tier of the kernel of each launch, lowest first; below the row's own tier only where no
        tensor map can describe an operand (a step in both dimensions, no 16-byte alignment)
    others : kernels of torch beside them, at most: activation derivatives, bias sums, conversions
    """

    op: str
    feature: str
    dtype: str
    tier: int
    direction: str  # "forward" or "backward"
    native: bool
    launches: int = 0
    tiers: tuple[int, ...] = ()
    others: int = 0
    note: str = ""

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class Call:
    """A gemm call: operands, and the leaves that its backward row differentiates."""

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None = None
    c: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    activation: int = 0
    out_dtype: torch.dtype | None = None
    leaves: tuple[torch.Tensor, ...] = field(default=(), repr=False)

    def __call__(self) -> torch.Tensor:
        ops = torch.ops.deepasm
        if self.c is None and self.alpha == 1:
            return ops.gemm(
                self.a, self.b, self.bias, activation=self.activation, out_dtype=self.out_dtype
            )
        return ops._addmm(
            self.a,
            self.b,
            self.bias,
            self.c,
            self.alpha,
            self.beta,
            self.activation,
            self.out_dtype,
        )


# M, N and K of the cases: no tile divides them, rows are 16-byte multiples.
_M, _N, _K = 200, 136, 72


def _leaf(*shape, device, dtype):
    return (torch.randn(shape, device=device) / 4).to(dtype).requires_grad_()


def _case(a_shape, b_shape, *, a_view=None, b_view=None, bias=False, bias_dtype=None, c=None, **kw):
    def build(device, dtype) -> Call:
        a = _leaf(*a_shape, device=device, dtype=dtype)
        b = _leaf(*b_shape, device=device, dtype=dtype)
        leaves = [a, b]
        more = {}
        if bias:
            more["bias"] = _leaf(_N, device=device, dtype=bias_dtype or dtype)
            leaves.append(more["bias"])
        if c is not None:
            more["c"] = _leaf(*c, device=device, dtype=dtype)
            leaves.append(more["c"])
        a_used, b_used = (a_view or _same)(a), (b_view or _same)(b)
        return Call(a_used, b_used, leaves=tuple(leaves), **more, **kw)

    return build


def _same(t):
    return t


def _mt(t):
    return t.mT


def _act(activation):
    return _case((_M, _K), (_N, _K), b_view=_mt, bias=True, activation=int(activation))


@dataclass(frozen=True)
class _Feature:
    name: str
    build: Callable
    forward: int = 1  # launches
    backward: int = 2  # launches when all of a, b, bias and c need a gradient
    unmapped: tuple[int, int] = (0, 0)  # forward, backward: launches with operands TMA cannot read
    others: int = 0  # torch kernels in backward
    note: str = ""


_SUM = "the bias gradient is one torch sum"
_RECOMPUTED = "backward recomputes the pre-activation with one more gemm"

_FEATURES = (
    _Feature("nt: b is a transposed weight", _case((_M, _K), (_N, _K), b_view=_mt)),
    _Feature("nn: both row-major", _case((_M, _K), (_K, _N))),
    _Feature("tn: a transposed", _case((_K, _M), (_K, _N), a_view=_mt)),
    _Feature("tt: both transposed", _case((_K, _M), (_N, _K), a_view=_mt, b_view=_mt)),
    _Feature("1-D a", _case((_K,), (_K, _N))),
    _Feature("1-D b", _case((_M, _K), (_K,))),
    _Feature("batch", _case((3, _M, _K), (3, _K, _N))),
    _Feature("batch, one weight", _case((3, _M, _K), (_N, _K), b_view=_mt)),
    _Feature(
        "batch, one a",
        _case((_M, _K), (3, _K, _N)),
        others=2,
        note="the gradient of a is summed over the batch in float32",
    ),
    _Feature(
        "two batch dimensions, broadcast",
        _case((2, 1, _M, _K), (3, _K, _N)),
        others=3,
        note="the gradient of a is summed in float32; the fold of dz for b copies",
    ),
    _Feature(
        "odd sizes",
        _case((67, 45), (45, 33)),
        unmapped=(1, 2),
        note="rows are not 16-byte multiples",
    ),
    _Feature(
        "odd storage offset",
        _case((_M, _K + 1), (_K + 1, _N), a_view=lambda t: t[:, 1:], b_view=lambda t: t[1:]),
        unmapped=(1, 1),
        others=4,
        note="autograd pads the gradient of a slice",
    ),
    _Feature(
        "steps in both dimensions",
        _case((2 * _M, 2 * _K), (_K, _N), a_view=lambda t: t[::2, ::2]),
        unmapped=(1, 1),
        others=4,
        note="autograd pads the gradient of a slice",
    ),
    _Feature("bias", _case((_M, _K), (_N, _K), b_view=_mt, bias=True), others=1, note=_SUM),
    _Feature(
        "float32 bias",
        _case((_M, _K), (_N, _K), b_view=_mt, bias=True, bias_dtype=torch.float32),
        others=1,
        note=_SUM,
    ),
    _Feature("relu", _act(Activation.RELU), others=2, note="the mask comes from the output"),
    _Feature("gelu_tanh", _act(Activation.GELU_TANH), backward=3, others=5, note=_RECOMPUTED),
    _Feature("gelu_erf", _act(Activation.GELU_ERF), backward=3, others=5, note=_RECOMPUTED),
    _Feature("silu", _act(Activation.SILU), backward=3, others=5, note=_RECOMPUTED),
    _Feature(
        "float32 output",
        _case((_M, _K), (_N, _K), b_view=_mt, out_dtype=torch.float32),
        others=1,
        note="the gradient is rounded to the dtype of a and b",
    ),
    _Feature(
        "alpha, beta and c",
        _case((_M, _K), (_K, _N), c=(_M, _N), alpha=0.5, beta=2.0),
        others=1,
        note="the gradient of c is scaled by torch",
    ),
    _Feature("broadcast c", _case((_M, _K), (_K, _N), c=(_M, 1), beta=1.0), others=1),
)

#: feature -> function (device, dtype) that builds its `Call`
CASES = {feature.name: feature.build for feature in _FEATURES}


def _rows():
    for feature in _FEATURES:
        for dtype in _HALF + _TORCH:
            for tier in TIERS:
                for index, direction in enumerate(("forward", "backward")):
                    native = dtype in _HALF
                    launches = getattr(feature, direction) if native else 0
                    lower = feature.unmapped[index] if native else 0
                    tiers = (TIERS[0],) * lower + (tier,) * (launches - lower)
                    others = feature.others if native and direction == "backward" else 0
                    note = feature.note if direction == "backward" or feature.others == 0 else ""
                    yield Row(
                        "gemm",
                        feature.name,
                        dtype,
                        tier,
                        direction,
                        native,
                        launches,
                        tiers,
                        others,
                        note if native else "torch's own kernels, counted as fallbacks",
                    )


#: The table.
ROWS = tuple(_rows())

#: What has no row because no dtype or tier changes it: always torch, or nothing at all.
NOT_NATIVE = {
    "K = 0": "torch fills in the empty sum; not counted as a fallback",
    "no output elements": "nothing is computed",
    "float64 output of 16-bit inputs": "torch",
    "more than 16 dimensions": "torch",
    "a dimension of 2^31 or more": "torch",
    "compute capability below 8.0": "torch",
    "CPU tensors": "the reference in plain torch",
}


def table() -> str:
    """The table as Markdown: a feature per line, native dtypes and launches per direction."""
    lines = [
        "| gemm | bfloat16, float16 (sm80, sm90) | launches forward / backward | float32, float64 |"
        " note |",
        "| --- | --- | --- | --- | --- |",
    ]
    for feature in _FEATURES:
        lines.append(
            f"| {feature.name} | native | {feature.forward} / {feature.backward} | torch |"
            f" {feature.note} |"
        )
    lines += [f"| {name} | - | - | - | {note} |" for name, note in NOT_NATIVE.items()]
    return "\n".join(lines)
