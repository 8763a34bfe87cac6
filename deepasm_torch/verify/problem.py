"""A small GEMM for one kernel: operands in emulated memory, the planner's launch, the answer.

The parameter block, grid and tensor maps come from `planning.plan_gemm`, so the whole path of a
real launch is under test, and the expected output is computed in float64.
"""

from __future__ import annotations

import functools
import math
import zlib
from dataclasses import dataclass

import numpy as np

from .. import planning
from ..codegen import render
from ..emulator import EmulatorError, Memory, Program
from ..emulator.torch_edge import launch_plan
from ..kernels.gemm import KERNELS
from .formats import from_bits, to_bits

SCHEDULES = ("round_robin", "random", "adversarial")
ACTIVATIONS = ("none", "relu", "gelu_tanh", "gelu_erf", "silu")
VARIANTS = {kernel.name: index for index, kernel in enumerate(KERNELS)}
SMEM = {80: 99 * 1024, 90: 227 * 1024}


@dataclass(frozen=True)
class Case:
    """A problem, in the caller's words.

    Parameters
    ----------
    m, n, k : int
    batch : tuple of int
        Batch dimensions of the output.
    shared : str
        "a" or "b": this operand has no batch dimensions; "a0", "b1": it has extent 1 in that one.
    out : str
        "same" (the input type), "bf16", "f16" or "f32".
    bias, c : str or None
        "in" (the input type) or "f32".
    row_bias : bool
        c is a vector along n, broadcast over the rows.
    activation : int
    pitch : int
        Elements added to the output's rows; an odd number rules out tensor stores.
    sms : int
        Streaming multiprocessors of the imagined GPU.
    integers : bool
        Operands from -3 to 3, so that every sum is exact; else normal values.
    """

    m: int
    n: int
    k: int
    batch: tuple = ()
    shared: str = ""
    out: str = "same"
    bias: str | None = None
    c: str | None = None
    row_bias: bool = False
    activation: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    pitch: int = 0
    sms: int = 2
    integers: bool = True

    def batch_of(self, operand: str) -> tuple:
        """Batch dimensions of an operand, "a" or "b"."""
        if not self.shared.startswith(operand):
            return self.batch
        where = self.shared[1:]
        return tuple(1 if str(i) == where else n for i, n in enumerate(self.batch)) if where else ()

    def __str__(self):
        parts = ["x".join(map(str, (*self.batch, self.m, self.n, self.k)))]
        parts += [f"shared {self.shared}"] if self.shared else []
        parts += [f"out {self.out}"] if self.out != "same" else []
        parts += [f"bias {self.bias}"] if self.bias else []
        parts += [f"c {self.c}" + (" row" if self.row_bias else "")] if self.c else []
        parts += [f"alpha {self.alpha:g}"] if self.alpha != 1 else []
        parts += [ACTIVATIONS[self.activation]] if self.activation else []
        parts += [f"pitch +{self.pitch}"] if self.pitch else []
        return " ".join(parts)


@functools.lru_cache(maxsize=4)
def program(name: str, text: str | None = None) -> Program:
    """Compiled kernel with template markers; `text` replaces what the table renders."""
    return Program(text or source(name), name)


@functools.lru_cache(maxsize=128)
def source(name: str) -> str:
    """Rendered PTX of a variant, with markers."""
    return render(KERNELS[VARIANTS[name]], markers=True)


def activate(x, activation):
    """Activation in float64."""
    if activation == 1:
        return np.maximum(x, 0)
    if activation == 2:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if activation == 3:
        import torch

        return 0.5 * x * (1 + torch.erf(torch.from_numpy(x / math.sqrt(2))).numpy())
    if activation == 4:
        return x / (1 + np.exp(-x))
    return x


class Problem:
    """A case laid out for one kernel. Operands are drawn from a seed; padding holds NaN.

    Attributes
    ----------
    plan : planning.GemmPlan
    want : float64 array, shape (*batch, m, n)
    """

    def __init__(self, name: str, case: Case, seed: int = 0):
        self.name, self.case = name, case
        self.kernel = kernel = KERNELS[VARIANTS[name]]
        self.dtype = kernel.dtype
        self.out = self.dtype if case.out == "same" else case.out
        self.rng = np.random.default_rng([seed, VARIANTS[name], zlib.crc32(str(case).encode())])
        self.placed, self.spec = {}, {}
        # a kernel that takes any strides gets either order, by seed
        swap_a, swap_b = (
            major == other or (major == "*" and self.rng.random() < 0.5)
            for major, other in zip(kernel.reads, "mk")
        )
        batch_a, batch_b = (case.batch_of(operand) for operand in "ab")
        a = self._operand("a", batch_a, case.m, case.k, swap_a)
        b = self._operand("b", batch_b, case.k, case.n, swap_b)
        want = case.alpha * np.matmul(a.astype(np.float64), b.astype(np.float64))
        if case.c:
            shape = (case.n,) if case.row_bias else (*case.batch, case.m, case.n)
            c = self._addend("c", shape, case.c)
            want = want + case.beta * c
        if case.bias:
            want = want + self._addend("bias", (case.n,), case.bias)
        self.want = activate(np.broadcast_to(want, (*case.batch, case.m, case.n)), case.activation)
        self.rows, self.pitch = math.prod(case.batch) * case.m, case.n + case.pitch
        self.plan = self._plan()

    # ------------------------------------------------------------------ operands
    def _draw(self, shape):
        if self.case.integers:
            return self.rng.integers(-3, 4, shape).astype(np.float32)
        x = self.rng.standard_normal(shape).astype(np.float32)
        return from_bits(to_bits(x, self.dtype), self.dtype)

    def _operand(self, name, batch, rows, cols, swapped):
        """Draw a matrix and lay it out with padded rows, transposed if the kernel wants it so."""
        x = self._draw((*batch, rows, cols))
        stored = np.swapaxes(x, -1, -2) if swapped else x
        # aligned kernels need rows of whole 16-byte units, the others are given odd ones
        width = (
            stored.shape[-1] + 3 if self.kernel.loads == "any" else -(-stored.shape[-1] // 8) * 8
        )
        full = np.full((*stored.shape[:-1], width), np.nan, np.float32)
        full[..., : stored.shape[-1]] = stored
        strides = [math.prod(full.shape[i + 1 :]) for i in range(full.ndim)]
        if swapped:
            strides[-2:] = strides[:-3:-1]
        self.placed[name] = to_bits(full, self.dtype)
        self.spec[name] = x.shape, strides
        return x

    def _addend(self, name, shape, kind):
        x = self._draw(shape)
        self.placed[name] = to_bits(x, self.dtype if kind == "in" else kind)
        self.spec[name] = shape, None
        return x.astype(np.float64)

    # ------------------------------------------------------------------ launch
    def memory(self):
        """Fresh memory with the operands and an output that nobody has written."""
        memory = Memory()
        at = {name: memory.alloc(name, x) for name, x in self.placed.items()}
        kind = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[self.out]
        size = self.rows * self.pitch * np.dtype(kind).itemsize
        at["out"] = memory.alloc("out", size, dtype=kind)
        return memory, at

    def _plan(self):
        case, tier = self.case, self.kernel.tier
        options = {}
        if case.bias:
            options["bias"] = case.n
            options["bias_dtype"] = self.dtype if case.bias == "in" else case.bias
        if case.c:
            options["c_shape"] = self.spec["c"][0]
            options["c_dtype"] = self.dtype if case.c == "in" else case.c
        shape = (*case.batch, case.m, case.n)
        strides = [
            self.pitch * case.m * math.prod(shape[i + 1 : -2]) for i in range(len(case.batch))
        ]
        plan = planning.plan_gemm(
            *self.spec["a"],
            *self.spec["b"],
            dtype=self.dtype,
            out_dtype=self.out,
            out_shape=shape,
            out_stride=(*strides, self.pitch, 1),
            alpha=case.alpha,
            beta=case.beta,
            activation=case.activation,
            device=planning.DeviceRecord("emulated", (tier // 10, 0), case.sms, SMEM[tier]),
            addresses=self.memory()[1],
            variant=VARIANTS[self.name],
            **options,
        )
        if not plan.native or plan.out_copy or plan.bias_copy or plan.kernel != self.name:
            raise EmulatorError(
                f"verify: {self.name} was not planned for {case}: {plan.route} {plan.reason}"
            )
        return plan

    def run(self, schedule="round_robin", seed=0, text=None, limit=20):
        """Run the plan; `text` replaces the kernel's PTX.

        Returns
        -------
        Verdict
        """
        plan = self.plan
        memory, at = self.memory()
        written = np.zeros((self.rows, self.pitch), bool)
        written[:, : self.case.n] = True
        hazards, counters = [], []
        options = dict(
            schedule=schedule,
            seed=seed,
            outputs={"out": written} if plan.launches == 1 else None,
            limit=limit,
            max_blocks=2_000_000,
        )
        for result in launch_plan(plan, program(self.name, text), memory, at, **options):
            hazards += result.hazards
            counters.append(result.counters)
        got = memory["out"].reshape(self.rows, self.pitch)
        pad = np.ascontiguousarray(got[:, self.case.n :]).reshape(-1).view(np.uint8)
        got = from_bits(got[:, : self.case.n], self.out).reshape(self.want.shape)
        return Verdict(hazards, self._wrong(got), int((pad != 0xFF).sum()), counters)

    def _wrong(self, got):
        """Number of elements that differ from float64 by more than the types explain."""
        with np.errstate(all="ignore"):
            if self.case.integers and self.case.activation < 2:
                expect = from_bits(to_bits(self.want, self.out), self.out)
                return int((got != expect).sum())
            unit = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20}[self.out]
            # cancellation inside the sum is relative to its terms, of size about sqrt(k)
            slack = unit * np.abs(self.want) + 2e-6 * math.sqrt(self.case.k) * 4 + 1e-6
            return int((~(np.abs(got - self.want) <= slack)).sum())


@dataclass(frozen=True)
class Verdict:
    """What one run showed: hazards, wrong elements, padding bytes that were overwritten."""

    hazards: list
    wrong: int
    padding: int
    counters: list

    @property
    def clean(self) -> bool:
        return not self.hazards and not self.wrong and not self.padding

    @property
    def kinds(self) -> list[str]:
        kinds = sorted({h.kind for h in self.hazards})
        kinds += ["wrong result"] if self.wrong else []
        return kinds + (["padding overwritten"] if self.padding else [])

    def report(self) -> str:
        lines = [str(h) for h in self.hazards]
        lines += [f"{self.wrong} elements are wrong"] if self.wrong else []
        lines += [f"{self.padding} bytes between output rows overwritten"] if self.padding else []
        return "\n".join(lines) or "clean"
