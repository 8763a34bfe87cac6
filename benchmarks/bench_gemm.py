"""Matrix products beside cuBLAS and Triton: ``python benchmarks/bench_gemm.py [--quick] [--help]``.

The same as ``deepasm bench gemm``; the code is in ``deepasm_torch/bench/gemm.py``.
"""

import sys

from deepasm_torch.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "gemm", *sys.argv[1:]]))
