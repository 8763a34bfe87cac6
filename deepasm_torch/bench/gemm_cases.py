"""The GEMM benchmark's cases, as data: sizes, layouts, types, and what is asked of them."""

from __future__ import annotations

import dataclasses
import re

ACTIVATIONS = ("none", "relu", "gelu_tanh", "gelu_erf", "silu")
SIZES = {"bf16": 2, "f16": 2, "f32": 4}


@dataclasses.dataclass(frozen=True)
class Case:
    """``act(A @ B + bias)``.

    Attributes
    ----------
    m, n, k : int
    layout : str
        A then B as torch sees them, "n" row-major and "t" transposed: "nt" is ``x @ w.T``.
    dtype, out : str
        "bf16" or "f16"; the output's type, the inputs' by default ("f32" is the other choice).
    batch : int
        0 for a plain matrix product, else a batched one.
    bias : bool
    activation : int
        Index into ``ACTIVATIONS``.
    targets : dict
        Least steady speed relative to a peer, checked by ``--check``. Keyed by
        ``(ours or contestant, peer)``.
    quick : bool
        Part of ``--quick``.
    """

    family: str
    m: int
    n: int
    k: int
    layout: str = "nt"
    dtype: str = "bf16"
    out: str = ""
    batch: int = 0
    bias: bool = False
    activation: int = 0
    targets: tuple[tuple[str, str, float], ...] = ()
    quick: bool = False

    @property
    def out_dtype(self) -> str:
        return self.out or self.dtype

    @property
    def name(self) -> str:
        text = f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype}"
        if self.batch:
            text = f"{self.batch}x " + text
        if self.out:
            text += f"->{self.out}"
        if self.bias:
            text += " +bias"
        if self.activation:
            text += f" {ACTIVATIONS[self.activation]}"
        return text

    @property
    def flops(self) -> float:
        return 2.0 * max(1, self.batch) * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The fewest bytes device memory has to move: inputs read once, the output written once."""
        inputs = (self.m * self.k + self.k * self.n) * SIZES[self.dtype]
        output = self.m * self.n * SIZES[self.out_dtype]
        return max(1, self.batch) * (inputs + output)


def _target(ratio: float, *more: tuple[str, str, float]):
    return (("deepasm", "cublas", ratio), *more)


SQUARE = (
    Case("square", 1024, 1024, 1024, targets=_target(1.03), quick=True),
    Case("square", 2048, 2048, 2048, targets=_target(1.03), quick=True),
    Case(
        "square", 4096, 4096, 4096, quick=True,
        targets=_target(1.02, ("triton", "cublas", 0.88)),
    ),
    Case("square", 8192, 8192, 8192, targets=_target(1.02), quick=True),
)  # fmt: skip
LLM = (
    Case("llm", 8192, 4096, 14336, targets=_target(1.00), quick=True),
    Case("llm", 8192, 8192, 512, targets=_target(1.15), quick=True),
    Case("llm", 4096, 6144, 4096),
    Case("llm", 4096, 28672, 4096),
    Case("llm", 4096, 2112, 7168, quick=True),
    Case("llm", 4096, 24576, 1536),
    Case("llm", 4096, 32768, 512),
    Case("llm", 4096, 7168, 2048),
    Case("llm", 4096, 576, 7168),
)
LAYOUTS = (
    Case("layout", 4096, 4096, 4096, "nn", quick=True),
    Case("layout", 4096, 4096, 4096, "tn"),
    Case("layout", 4096, 4096, 4096, "tt"),
    Case("layout", 4096, 4096, 2048, "nn"),
    Case("layout", 8192, 4096, 28672, "nn"),
    Case("layout", 28672, 4096, 8192, "tn", quick=True),
    Case("layout", 2048, 2048, 2048, "tn"),
    Case("layout", 1024, 1024, 1024, "nn"),
)
ODD = (
    Case("odd", 9477, 1152, 588, quick=True),
    Case("odd", 8193, 2501, 5008),
    Case("odd", 2056, 2056, 2056),
    Case("odd", 2047, 2047, 2047, "nn", quick=True),
    Case("odd", 4096, 50257, 768),
    Case("odd", 1000, 1000, 1000),
    Case("odd", 1752, 4720, 584, "nn"),
    Case("odd", 4096, 1000, 2048),
    Case("odd", 19, 100, 100000, "tn"),
)
SKINNY = (
    *(Case("skinny", m, 4096, 4096, quick=m == 16) for m in (1, 16, 64, 128)),
    *(Case("skinny", m, 28672, 4096) for m in (1, 16, 64, 128)),
    *(Case("skinny", m, 4096, 14336) for m in (1, 16, 64, 128)),
    Case("skinny", 256, 1000, 2048),
    Case("skinny", 16384, 256, 64),
    Case("skinny", 512, 512, 65536),
)
BATCHED = (
    Case("batched", 128, 128, 128, "nn", batch=8),
    Case("batched", 256, 256, 256, "nn", batch=32),
    Case("batched", 512, 512, 512, "nn", batch=16, quick=True),
    Case("batched", 1024, 1024, 1024, "nn", batch=8),
    Case("batched", 1024, 1024, 64, "nt", batch=64),
    Case("batched", 1024, 64, 1024, "nn", batch=64),
)
TYPES = (
    Case("type", 4096, 4096, 4096, dtype="f16", quick=True),
    Case("type", 8192, 8192, 512, "nn", dtype="f16"),
    Case("type", 2048, 2048, 8192, dtype="f16"),
    Case("type", 4096, 4096, 4096, out="f32", quick=True),
    Case("type", 4096, 256, 7168, out="f32"),
)
EPILOGUES = (
    Case("epilogue", 8192, 4096, 4096, bias=True),
    Case("epilogue", 8192, 3072, 768, bias=True, activation=3, quick=True),
    Case("epilogue", 4096, 4096, 4096, bias=True, activation=2),
    Case("epilogue", 8192, 14336, 4096, activation=4),
    Case("epilogue", 2048, 2048, 2048, activation=1),
)

CASES: tuple[Case, ...] = (
    *SQUARE, *LLM, *LAYOUTS, *ODD, *SKINNY, *BATCHED, *TYPES, *EPILOGUES,
)  # fmt: skip


def select(patterns: list[str], quick: bool = False) -> list[Case]:
    """Cases whose family equals, or whose name contains, one of the patterns (all without any).

    Raises
    ------
    ValueError
        When a pattern matches nothing.
    """
    chosen = [case for case in CASES if case.quick] if quick else list(CASES)
    if not patterns:
        return chosen
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in CASES):
            families = ", ".join(dict.fromkeys(case.family for case in CASES))
            raise ValueError(
                f"--cases {pattern!r} matches nothing; give a family ({families}), a part of a "
                'case\'s name such as "4096x4096x4096 nt"; --shape takes cases of your own'
            )
    return [case for case in chosen if any(_matches(case, pattern) for pattern in patterns)]


def own_shape(text: str) -> Case:
    """A case from the command line: "4096x4096x64", "4096x4096x64:nn", "8x512x512x64:nn:f16".

    Four sizes are a batch and three. Raises ValueError for anything else.
    """
    found = re.fullmatch(
        r"(?:(\d+)x)?(\d+)x(\d+)x(\d+)(?::(nn|nt|tn|tt))?(?::(bf16|f16))?(?:->(f32))?", text
    )
    if not found:
        raise ValueError(
            f"--shape {text!r}: write [BATCHx]MxNxK[:nn|nt|tn|tt][:bf16|f16][->f32], "
            "such as 4096x4096x64:nn"
        )
    batch, m, n, k = (int(size or 0) for size in found.groups()[:4])
    layout, dtype, out = found.groups()[4:]
    return Case(
        "own", m, n, k, layout or "nt", dtype or "bf16", out=out or "", batch=batch,
    )  # fmt: skip


def _matches(case: Case, pattern: str) -> bool:
    return pattern == case.family or pattern in case.name
