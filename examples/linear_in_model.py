"""A model of plain nn.Linear layers, trained with deepasm computing every matrix product.

Nothing in the model changes: `override()` sends torch's own calls to `torch.ops.deepasm.gemm`
while the block runs, in the backward pass too. The same training is repeated by torch alone, and
the two loss curves are compared. Runs on a GPU, or on CPU tensors through the reference.

    python examples/linear_in_model.py [--steps N] [--device cpu]
"""

from __future__ import annotations

import argparse
import contextlib
import sys

import torch
from torch import nn

import deepasm_torch


def make_model(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).to(device)


def train(device: str, steps: int, context) -> list[float]:
    """Loss per step; bf16 autocast around float32 parameters, as in a usual training loop."""
    model = make_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    torch.manual_seed(1)
    x = torch.randn(256, 64, device=device)
    target = (x[:, :10] + 0.5 * x[:, 10:20]).argmax(dim=1)
    losses = []
    for _ in range(steps):
        with context(), torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    by_torch = train(args.device, args.steps, contextlib.nullcontext)
    deepasm_torch.reset_fallbacks()
    by_deepasm = train(args.device, args.steps, deepasm_torch.override)

    print(f"{'step':>4}  {'torch':>8}  {'deepasm':>8}")
    for step in range(0, args.steps, max(1, args.steps // 10)):
        print(f"{step:4}  {by_torch[step]:8.4f}  {by_deepasm[step]:8.4f}")

    if args.device == "cuda":
        counts = deepasm_torch.counters()["gemm"]
        print(f"\n{counts['launches']} launches: {counts['kernels']}")
        print(f"computed by torch instead: {deepasm_torch.fallbacks() or 'nothing'}")
    else:
        print("\nOn CPU tensors the reference computed every product; no kernel ran.")

    # Two roundings to bf16 that differ by an ulp send the curves apart slowly, not at once.
    gap = max(abs(x - y) for x, y in zip(by_torch, by_deepasm, strict=True))
    learned = by_deepasm[-1] < by_deepasm[0] - 0.05
    print(f"largest gap between the curves {gap:.4f}, final loss {by_deepasm[-1]:.4f}")
    return 0 if gap < 0.1 and learned else 1


if __name__ == "__main__":
    sys.exit(main())
