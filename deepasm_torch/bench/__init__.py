"""Benchmarks: measure deepasm's operators beside the libraries they replace.

``timing`` is the measuring core, ``device`` the GPU it drives, ``report`` tables and JSON; one
module per suite (``gemm``, ...) holds the contestants. ``python -m deepasm_torch bench`` runs them.
Nothing here imports torch before a suite starts.
"""
