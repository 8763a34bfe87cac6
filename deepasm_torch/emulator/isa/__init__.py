"""The instruction set: emitters, and the functions that their code calls.

Importing the package registers every opcode. A module holds one family; where the work at run time
is more than a line of NumPy, it lives beside the emitters or in a module of its own.
"""

from ..codegen.registry import RUNTIME
from ..memory import GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE
from . import (
    atomics,
    barrier,
    bits,
    bulk,
    carry,
    cluster,
    compare,
    control,
    copies,
    cp_async,
    cvt,
    float_formats,
    floating,
    fp8,
    global_memory,
    int_math,
    integer,
    loads,
    matrix_moves,
    mbarrier,
    mma,
    move,
    other_spaces,
    shared,
    sregs,
    store_async,
    tensor_copy,
    tensormap,
    warp,
    wgmma,
    wgmma_run,
    wmma,
)

RUNTIME.update(
    GLOBAL_BASE=GLOBAL_BASE,
    LOCAL_BASE=LOCAL_BASE,
    PARAM_BASE=PARAM_BASE,
    SHARED_BASE=SHARED_BASE,
)

__all__ = [
    "atomics",
    "barrier",
    "bits",
    "bulk",
    "carry",
    "cluster",
    "compare",
    "control",
    "copies",
    "cp_async",
    "cvt",
    "float_formats",
    "floating",
    "fp8",
    "global_memory",
    "int_math",
    "integer",
    "loads",
    "matrix_moves",
    "mbarrier",
    "mma",
    "move",
    "other_spaces",
    "shared",
    "sregs",
    "store_async",
    "tensor_copy",
    "tensormap",
    "warp",
    "wgmma",
    "wgmma_run",
    "wmma",
]
