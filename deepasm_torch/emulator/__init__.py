"""A NumPy emulator for PTX: runs whole grids on a CPU and reports hazards.

`Program` parses and compiles a PTX text, `launch` runs one of its kernels on a `Memory`, and the
`Result` holds hazards and counters. It does not know which operation a kernel computes.
"""

from .errors import DeviceFault, EmulatorError, HazardError, PtxError
from .hazards import Hazard
from .launch import Result, launch, pack_params
from .memory import Memory
from .program import Program

__all__ = [
    "DeviceFault",
    "EmulatorError",
    "HazardError",
    "Hazard",
    "Memory",
    "Program",
    "PtxError",
    "Result",
    "emulate",
    "launch",
    "pack_params",
]


def __getattr__(name):
    if name == "emulate":  # needs the planner; tools that only run PTX do not
        from .torch_edge import emulate

        return emulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
