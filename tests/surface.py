"""Shared by the tests of the Python surface: inputs, references, recorders, fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import torch
from harness.compare import ACTIVATIONS, ulp
from torch.utils._python_dispatch import TorchDispatchMode

import deepasm_torch

PACKAGE = Path(deepasm_torch.__file__).parent


def assert_near(got, want64, peer):
    """`got` against the float64 truth, allowed twice the worst error of torch's same-dtype `peer`.

    One ulp is taken at the largest true magnitude, so that sums which cancel are not held to a
    precision that no kernel of that dtype has.
    """
    assert got.shape == want64.shape, (got.shape, want64.shape)
    if not got.numel():
        return
    want = want64.detach().double().cpu()
    error = (got.detach().double().cpu() - want).abs().max()
    peer_error = (peer.detach().double().cpu() - want).abs().max()
    allowed = 2 * peer_error + ulp(want.abs().max(), got.dtype)
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


def randn(*shape, device="cpu", dtype=torch.float32, scale=1.0, seed=0, requires_grad=False):
    """Normal numbers of a fixed seed, the same on every device."""
    gen = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    t = (torch.randn(shape, generator=gen) * scale).to(device=device, dtype=dtype)
    return t.requires_grad_(requires_grad)


def leaves(a_shape, b_shape, device="cpu", dtype=torch.float64):
    """a, b and a bias that fits them, all requiring a gradient."""
    bias_shape = (b_shape[-1] if len(b_shape) > 1 else 1,)
    return [
        randn(*shape, device=device, dtype=dtype, seed=i, requires_grad=True)
        for i, shape in enumerate((a_shape, b_shape, bias_shape))
    ]


def reference(a, b, bias=None, c=None, alpha=1.0, beta=1.0, activation=0):
    """What the ops compute, in torch and in the dtype of the operands."""
    z = alpha * torch.matmul(a, b)
    if c is not None:
        z = z + beta * c
    if bias is not None:
        z = z + (bias if b.dim() > 1 else bias.squeeze(-1))
    return ACTIVATIONS[activation](z)


class Recorder(TorchDispatchMode):
    """Records the ops that a block dispatches, those of a backward included."""

    def __init__(self):
        super().__init__()
        self.calls = []  # (op, positional arguments, address of the result)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # Not the result itself: autograd copies a gradient that somebody else holds too.
        ours = func.namespace == "deepasm" and type(result) is torch.Tensor and not result.is_meta
        self.calls.append((func, args, result.data_ptr() if ours else None))
        return result

    def ours(self) -> int:
        return sum(op.namespace == "deepasm" for op, _, _ in self.calls)

    def gemms(self) -> list:
        return [call for call in self.calls if call[0] is torch.ops.deepasm._gemm.default]


def python(code, path=PACKAGE.parent, **env):
    """Run code in a fresh interpreter that imports the package from `path`."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(path).anchor,
        env={**os.environ, "PYTHONPATH": str(path), **env},
    )
