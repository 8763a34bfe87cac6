"""FLOP formulas for torch.utils.flop_counter: 2 * M * N * K per product of a batch.

The counter's module imports Triton where there is one, which costs more than this whole package,
so the formulas are registered when somebody else imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from math import prod

_COUNTER = "torch.utils.flop_counter"


def gemm_flops(a_shape, b_shape, *args, out_shape=None, **kwargs) -> int:
    """Multiplications and additions of `a @ b`; bias, activation and addends are not counted.

    Parameters
    ----------
    a_shape : sequence of int, (K,) or (..., M, K)
    b_shape : sequence of int, (K,) or (..., K, N)
    """
    import torch

    rows = a_shape[-2] if len(a_shape) > 1 else 1
    columns = b_shape[-1] if len(b_shape) > 1 else 1
    batch = torch.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    return 2 * prod(batch) * rows * columns * a_shape[-1]


def register() -> None:
    """Register the formulas for every gemm op; does nothing the second time."""
    import torch

    counter = sys.modules[_COUNTER]
    for name in ("gemm", "_gemm", "_gemm_grad", "_addmm"):
        packet = getattr(torch.ops.deepasm, name, None)
        if packet is not None and packet not in counter.flop_registry:
            counter.register_flop_formula(packet)(gemm_flops)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `register` once the counter's module has been executed, then leaves sys.meta_path."""

    def find_spec(self, fullname, path, target=None):
        if fullname != _COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                register()

            spec.loader.exec_module = exec_module
        return spec


def register_when_imported() -> None:
    if _COUNTER in sys.modules:
        register()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
