"""The op inside torch.compile, with one graph for all batch sizes, and inside a CUDA graph.

    python examples/compile_and_graph.py [--backend inductor|aot_eager]

The CUDA-graph part needs a GPU and says so where there is none.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

import deepasm_torch
from deepasm_torch import Activation


class GeluMlp(nn.Module):
    """Two products; bias and activation of the first are part of its kernel."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        gemm = torch.ops.deepasm.gemm
        h = gemm(x, self.up.weight.t(), self.up.bias, activation=Activation.GELU_TANH)
        return gemm(h, self.down.weight.t(), self.down.bias)


def close(result: torch.Tensor, reference: torch.Tensor) -> bool:
    gap = (result.double() - reference.double()).abs().max().item()
    return gap <= 0.02 * reference.double().abs().max().item()


def compiled(model: nn.Module, device: str, backend: str) -> bool:
    """fullgraph=True raises at the first graph break; a counter sees recompilations."""
    graphs = 0

    def counting_backend(graph, inputs):
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    fast = torch.compile(model, backend=counting_backend, fullgraph=True, dynamic=True)
    right = True
    with torch.no_grad():
        for batch in (7, 64, 250):
            x = torch.randn(batch, 64, device=device, dtype=torch.bfloat16)
            right &= close(fast(x), model(x))
    print(f"torch.compile: three batch sizes, {graphs} graph, {'right' if right else 'WRONG'}")
    return right and graphs == 1


def captured(model: nn.Module) -> bool:
    """Capture once, then replay on new contents of the same buffers."""
    deepasm_torch.warmup()  # load the kernels before the capture, where a load may be refused
    x = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            y = model(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        right = close(y, model(x))
    print(f"CUDA graph: replayed on new input, {'right' if right else 'WRONG'}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--backend", default="inductor", help="torch.compile backend")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = GeluMlp(64, 256).to(device, torch.bfloat16)
    right = compiled(model, device, args.backend)
    if device == "cuda":
        right &= captured(model)
    else:
        print("CUDA graph: not exercised, there is no GPU")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
