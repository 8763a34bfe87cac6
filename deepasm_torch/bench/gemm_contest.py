"""One GEMM case made concrete: rotating buffers, contestants, and the float64 reference."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F

from .gemm_cases import Case

ROTATE_BYTES = 288 * 2**20  # well past the L2 of any GPU this runs on
MAX_SETS = 512
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ULP = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24}
ACTIVATE = (
    lambda x: x,
    torch.relu,
    functools.partial(F.gelu, approximate="tanh"),
    F.gelu,
    F.silu,
)


class Buffers:
    """``sets`` copies of a case's tensors; contestants walk over them so that L2 cannot help.

    Attributes
    ----------
    a, b, bias, out : list of Tensor
        ``bias`` holds None where the case has none.
    """

    def __init__(self, case: Case, device: str, rotate_bytes: int = ROTATE_BYTES, seed: int = 0):
        self.case = case
        self.sets = max(1, min(MAX_SETS, math.ceil(rotate_bytes / case.bytes)))
        generator = torch.Generator(device).manual_seed(seed)
        lead = (case.batch,) if case.batch else ()
        dtype = DTYPES[case.dtype]

        def random_sets(*shape: int) -> list[torch.Tensor]:
            # One allocation and one launch; every set starts on a 256-byte boundary.
            count = math.prod(shape)
            pitch = -(-count // 128) * 128
            flat = torch.empty(self.sets, pitch, dtype=dtype, device=device)
            flat.normal_(generator=generator)
            return [flat[i, :count].view(shape) for i in range(self.sets)]

        def operand(rows: int, cols: int, order: str) -> list[torch.Tensor]:
            if order == "n":
                return random_sets(*lead, rows, cols)
            return [t.transpose(-1, -2) for t in random_sets(*lead, cols, rows)]

        self.a = operand(case.m, case.k, case.layout[0])
        self.b = operand(case.k, case.n, case.layout[1])
        self.bias = random_sets(case.n) if case.bias else [None] * self.sets
        out = DTYPES[case.out_dtype]
        self.out = [
            torch.empty(*lead, case.m, case.n, dtype=out, device=device) for _ in range(self.sets)
        ]

    def poison(self) -> None:
        """NaN in the outputs that are going to be checked."""
        self.out[0].fill_(float("nan"))


class Reference:
    """Part of the product of buffer set 0 in float64, and the error of a result against it.

    Large outputs are compared on a sample of rows and columns, always with the first and the last
    ones, where tile tails live. Every element is still checked for having been written.
    """

    def __init__(self, buffers: Buffers, rows: int = 192, cols: int = 384, batches: int = 4):
        case = buffers.case
        rng = random.Random(1)
        device = buffers.a[0].device
        self._rows = _sample(case.m, rows, rng).to(device)
        self._cols = _sample(case.n, cols, rng).to(device)
        a, b, bias = buffers.a[0], buffers.b[0], buffers.bias[0]
        self._batches = None
        if case.batch:
            self._batches = _sample(case.batch, batches, rng).to(device)
            a, b = a[self._batches], b[self._batches]
        left = a.index_select(-2, self._rows).double()
        right = b.index_select(-1, self._cols).double()
        value = left @ right
        if bias is not None:
            value += bias.index_select(0, self._cols).double()
        self.value = ACTIVATE[case.activation](value)
        self._norm = self.value.norm().item()

    def error(self, result: torch.Tensor) -> float:
        """Frobenius error over the reference norm; NaN when something was not written."""
        if not bool(result.isfinite().all()):
            return float("nan")
        if self._batches is not None:
            result = result[self._batches]
        part = result.index_select(-2, self._rows).index_select(-1, self._cols).double()
        return (part - self.value).norm().item() / max(self._norm, 1e-300)


def _sample(size: int, count: int, rng: random.Random) -> torch.Tensor:
    if size <= count:
        return torch.arange(size)
    inner = rng.sample(range(1, size - 1), count - 2)
    return torch.tensor(sorted([0, size - 1, *inner]))


def ours(buffers: Buffers, variant: int | None = None) -> Callable[[int], torch.Tensor]:
    """deepasm's op; with ``variant`` that row of the kernel table, whatever the planner thinks."""
    case, sets = buffers.case, buffers.sets
    ops = torch.ops.deepasm
    if variant is None:
        op, activation = ops.gemm.out, case.activation

        def call(i: int) -> torch.Tensor:
            i %= sets
            op(buffers.a[i], buffers.b[i], buffers.bias[i], activation=activation,
               out=buffers.out[i])  # fmt: skip
            return buffers.out[i]
    else:
        op, activation = ops._gemm.out, case.activation

        def call(i: int) -> torch.Tensor:
            i %= sets
            op(buffers.a[i], buffers.b[i], buffers.bias[i], None, 1.0, 0.0, activation, None,
               variant, out=buffers.out[i])  # fmt: skip
            return buffers.out[i]

    return call


def _linear(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if bias is None:
        return torch.matmul(a, b)
    return torch.matmul(a, b) + bias if b.dim() == 3 else F.linear(a, b.t(), bias)


def cublas(buffers: Buffers) -> Callable[[int], torch.Tensor]:
    """What torch does today: a cuBLAS product, then the activation as a second kernel."""
    case, sets = buffers.case, buffers.sets
    a, b, bias, out = buffers.a, buffers.b, buffers.bias, buffers.out
    activate = ACTIVATE[case.activation]
    wide = case.out_dtype != case.dtype
    if case.activation or (case.bias and (wide or case.batch)):
        dtype = DTYPES[case.out_dtype]

        def call(i: int) -> torch.Tensor:
            i %= sets
            return activate(_linear(a[i], b[i], bias[i])).to(dtype)
    elif case.bias:

        def call(i: int) -> torch.Tensor:
            i %= sets
            return torch.addmm(bias[i], a[i], b[i], out=out[i])
    elif wide:
        aten = torch.ops.aten
        op = aten.bmm.dtype_out if case.batch else aten.mm.dtype_out
        dtype = DTYPES[case.out_dtype]

        def call(i: int) -> torch.Tensor:
            i %= sets
            return op(a[i], b[i], dtype, out=out[i])
    else:
        op = torch.bmm if case.batch else torch.mm

        def call(i: int) -> torch.Tensor:
            i %= sets
            return op(a[i], b[i], out=out[i])

    return call


def cublaslt_fused(buffers: Buffers) -> Callable[[int], torch.Tensor] | None:
    """cuBLASLt's fused bias and activation, which torch reaches for relu and gelu (tanh) only."""
    case, sets = buffers.case, buffers.sets
    if not case.bias or case.batch or case.activation not in (1, 2) or case.out:
        return None
    op, gelu = torch.ops.aten._addmm_activation, case.activation == 2

    def call(i: int) -> torch.Tensor:
        i %= sets
        return op(buffers.bias[i], buffers.a[i], buffers.b[i], use_gelu=gelu)

    return call


def triton(buffers: Buffers) -> Callable[[int], torch.Tensor]:
    """The Triton baseline; raises ImportError without Triton."""
    from deepasm_torch import triton_baseline

    usable, reason = triton_baseline.available()
    if not usable:
        raise ImportError(reason)
    case, sets = buffers.case, buffers.sets
    out_dtype = DTYPES[case.out_dtype]

    def call(i: int) -> torch.Tensor:
        i %= sets
        return triton_baseline.gemm(buffers.a[i], buffers.b[i], buffers.bias[i], case.activation,
                                    out_dtype, out=buffers.out[i])  # fmt: skip

    return call


def triton_choice() -> str:
    """The kernel and tile the Triton baseline ran last."""
    from deepasm_torch import triton_baseline

    return triton_baseline.last_choice()


def compiled(buffers: Buffers, mode: str) -> Callable[[int], torch.Tensor]:
    """torch.compile of the plain composition (``mode`` as torch.compile takes it)."""
    case, sets = buffers.case, buffers.sets
    activate, dtype = ACTIVATE[case.activation], DTYPES[case.out_dtype]

    def plain(a, b, bias):
        return activate(_linear(a, b, bias)).to(dtype)

    function = torch.compile(plain, mode=mode, dynamic=False, fullgraph=True)

    def call(i: int) -> torch.Tensor:
        i %= sets
        return function(buffers.a[i], buffers.b[i], buffers.bias[i])

    return call


def quack(buffers: Buffers) -> Callable[[int], torch.Tensor] | None:
    """QuACK's GEMM when it is installed; plain 2-D products only."""
    case, sets = buffers.case, buffers.sets
    if case.batch or case.bias or case.activation or case.out:
        return None
    from quack.gemm_interface import gemm

    def call(i: int) -> torch.Tensor:
        i %= sets
        return gemm(buffers.a[i], buffers.b[i], out=buffers.out[i])

    return call
