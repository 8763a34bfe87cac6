"""What `make demo` runs: the hand-written PTX at work, on whatever this machine has.

With a CUDA GPU: matrix products by deepasm, torch (cuBLAS) and the Triton baseline, timed in one
process and checked against float64.

Without: the same operator on CPU tensors (its reference path) against float64, the kernel that an
H200 would be given for a few problems, and one kernel assembled by ptxas where that is installed.

Exit status 0 when everything that was tried is right, 1 otherwise.

    python examples/demo.py [--cpu] [--seconds N]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import torch

if importlib.util.find_spec("deepasm_torch") is None:  # a source tree that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import deepasm_torch
from deepasm_torch import cli

#: [BATCHx]MxNxK:layout:dtype for `deepasm bench gemm --shape`; the last one has no 16-byte rows
GPU_SHAPES = (
    "4096x4096x4096:nt:bf16",
    "8192x8192x512:nt:bf16",
    "2048x2048x2048:nn:f16",
    "1024x1024x1024:nt:bf16",
    "16x512x512x512:nn:bf16",
    "2047x2047x2047:nn:bf16",
)

#: (title, M, N, K, operator arguments) for the CPU check
CPU_CASES = (
    ("bf16, as x @ w.t()", 96, 160, 200, {}),
    ("f16 to float32", 65, 33, 129, {"dtype": torch.float16, "out_dtype": torch.float32}),
    ("bf16, bias and gelu", 128, 64, 96, {"bias": True, "activation": 3}),
    ("bf16, batched", 40, 24, 56, {"batch": 3}),
    ("float32", 50, 60, 70, {"dtype": torch.float32}),
)


#: Largest relative (Frobenius) error: half a unit of a 16-bit output, some units of an fp32 sum
LIMITS = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-6}


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    return ((result.double() - reference).norm() / reference.norm()).item()


def on_gpu(seconds: float) -> bool:
    """The comparison of `deepasm bench gemm` on a few shapes."""
    deepasm_torch.warmup()
    limits = ["--regime", "steady", "--budget", str(seconds)]
    _, outcome = cli.run(["bench", "gemm", *limits, "--shape", *GPU_SHAPES])
    print(outcome.text)
    for error in outcome.errors:
        print(f"FAILED: {error}")
    print(
        "\nus: microseconds of deepasm; xPEER: how many times faster than that peer (below 1 is "
        "slower);\nerr: relative error against float64, beside torch's own; fb: calls that torch "
        "had to compute."
    )
    rows = (outcome.data or {}).get("rows", [])
    compared = sorted({peer for row in rows for peer in row["peers_ms"]})
    print(f"\nexercised: the PTX kernels on {torch.cuda.get_device_name()}, beside {compared}")
    if "triton" not in compared:
        print("not exercised: the Triton baseline (Triton is not installed, or failed above)")
    return outcome.exit_code == cli.CLEAN


def on_cpu() -> bool:
    """Operator, planner and assembler without a GPU; each prints its own verdict."""
    print("No CUDA GPU is used: what follows is everything but the kernels themselves.\n")
    right = reference_is_right()
    right &= plans_are_made()
    assembled = assemble_one()
    right &= assembled is not False
    done = ["the operator on CPU tensors, forward and backward", "the planner for an H200"]
    left = ["the kernels on a GPU", "any timing"]
    (left if assembled is None else done).append("assembling a kernel")
    print(f"\nexercised: {'; '.join(done)}")
    print(f"not exercised: {'; '.join(left)}")
    return right


def reference_is_right() -> bool:
    """torch.ops.deepasm.gemm on CPU tensors against float64, and its gradient against torch's."""
    print("torch.ops.deepasm.gemm on CPU tensors, relative error against float64:")
    torch.manual_seed(0)
    right = True
    for title, m, n, k, kwargs in CPU_CASES:
        kwargs = dict(kwargs)
        dtype, batch = kwargs.pop("dtype", torch.bfloat16), kwargs.pop("batch", 0)
        lead = (batch,) if batch else ()
        a = torch.randn(*lead, m, k).to(dtype)
        b = torch.randn(*lead, n, k).to(dtype).mT
        bias = torch.randn(n).to(dtype) if kwargs.pop("bias", False) else None
        result = torch.ops.deepasm.gemm(a, b, bias, **kwargs)
        reference = a.double() @ b.double() + (0 if bias is None else bias.double())
        if kwargs.get("activation"):
            reference = torch.nn.functional.gelu(reference)
        error, limit = relative_error(result, reference), LIMITS[result.dtype]
        right &= error <= limit
        verdict = "ok" if error <= limit else f"WRONG, allowed {limit:.1e}"
        print(f"  {title:22} {m:4} x {n:4} x {k:4}   {error:.1e}   {verdict}")

    x, w = torch.randn(32, 48).bfloat16(), torch.randn(16, 48).bfloat16().requires_grad_()
    torch.ops.deepasm.gemm(x, w.t()).square().sum().backward()
    wide = w.detach().double().requires_grad_()
    (x.double() @ wide.t()).square().sum().backward()
    error = relative_error(w.grad, wide.grad)
    print(
        f"  {'gradient of a weight':22} {'':18}   {error:.1e}   {'ok' if error < 0.02 else 'WRONG'}"
    )
    return right and error < 0.02


def plans_are_made() -> bool:
    """explain() for an H200: tensors on the meta device have shapes and no memory."""
    print("\nWhat an H200 would run (deepasm_torch.explain):")
    right = True
    for m, n, k in ((4096, 4096, 4096), (1024, 1024, 1024), (2047, 2047, 2047)):
        x = torch.empty(m, k, dtype=torch.bfloat16, device="meta")
        w = torch.empty(n, k, dtype=torch.bfloat16, device="meta")
        answer = deepasm_torch.explain("gemm", x, w.t(), device="h200")
        print("  " + str(answer).replace("\n", "\n  "))
        right &= answer.native
    return right


def assemble_one() -> bool | None:
    """Render and assemble the first kernel of the table; None without Jinja2 or ptxas."""
    try:
        from deepasm_torch.codegen import Assembler, AssemblyError, render
    except ImportError as error:
        print(f"\nNo kernel was assembled: {error}; pip install 'deepasm_torch[codegen]'")
        return None
    from deepasm_torch.kernels import ALL

    try:
        assembler = Assembler()
    except FileNotFoundError as error:
        print(f"\nNo kernel was assembled: {error}")
        return None
    kernel = ALL[0]
    target = {80: "sm_80", 90: "sm_90a"}[kernel.tier]
    text = render(kernel)
    try:
        cubin, report = assembler.assemble(text, target, name=kernel.name, max_regs=kernel.max_regs)
    except AssemblyError as error:
        print(f"\nFAILED: {error}")
        return False
    print(
        f"\n{kernel.name}: {len(text.splitlines())} lines of PTX, assembled for {target} by ptxas "
        f"{assembler.version}:\n  {report.registers} registers a thread, {report.spill_bytes} "
        f"bytes spilled, {kernel.smem} bytes of shared memory, {len(cubin)} bytes of machine code"
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU that is there")
    parser.add_argument(
        "--seconds", type=float, default=90, help="how long to measure on a GPU (default 90)"
    )
    args = parser.parse_args()
    print(f"deepasm_torch {deepasm_torch.__version__}, torch {torch.__version__}\n")
    right = on_cpu() if args.cpu or not torch.cuda.is_available() else on_gpu(args.seconds)
    print("\nEverything that was tried is right." if right else "\nSomething above is wrong.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
