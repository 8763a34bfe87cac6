"""Small PTX kernels for the emulator's tests: build the text, run it, make buggy and clean twins.

Texts register themselves in `TEXTS`, so that one test can hand every one of them to ptxas.
"""

from __future__ import annotations

import numpy as np

from deepasm_torch import emulator
from deepasm_torch.emulator.program import load
from deepasm_torch.emulator.tensormap import encode_map

#: name -> PTX text of every kernel the tests run
TEXTS: dict[str, str] = {}

REGISTERS = """.reg .pred %p<9>;
.reg .b16 %h<19>;
.reg .b32 %r<60>;
.reg .b64 %d<30>;
.reg .f32 %f<40>;
.reg .f64 %g<9>;"""


def kernel(name, body, params="", target="sm_90a", outside="", directives="", version="8.6"):
    """PTX text of one entry ``k``; parameters are declared as ``.param`` items."""
    text = (
        f".version {version}\n.target {target}\n.address_size 64\n{outside}\n"
        f".visible .entry k({params})\n{directives}\n{{\n{REGISTERS}\n{body}\nret;\n}}\n"
    )
    TEXTS[name] = text
    return text


def pointers(*names):
    """Declaration of 64-bit parameters, and loads of them into %d1, %d2, ..."""
    params = ", ".join(f".param .u64 {n}" for n in names)
    loads = "\n".join(f"ld.param.u64 %d{k}, [{n}];" for k, n in enumerate(names, 1))
    return params, loads


def run(text, args=(), grid=1, block=32, **options):
    """Run entry ``k``. Arrays become allocations a0, a1, ...; results are in ``result.arrays``.

    An int wrapped in a tuple, ``(nbytes,)``, is an uninitialised allocation; a dict is a tensor
    map over allocation ``of`` (``dtype``, ``dims``, ``strides``, ``box``, ...), passed by value or,
    with ``place="global"``, by address.
    """
    mem = emulator.Memory()
    values = []
    for k, x in enumerate(args):
        if isinstance(x, np.ndarray):
            x = mem.alloc(f"a{k}", x)
        elif isinstance(x, tuple):
            x = mem.alloc(f"a{k}", x[0])
        elif isinstance(x, dict):
            rec = {n: v for n, v in x.items() if n not in ("of", "place")}
            raw = encode_map({**rec, "base": mem.address(f"a{x['of']}")})
            in_memory = x.get("place") == "global"
            x = mem.alloc(f"a{k}", np.frombuffer(raw, np.uint8)) if in_memory else raw
        values.append(x)
    res = emulator.launch(load(text), None, grid, block, values, memory=mem, **options)
    res.arrays = [mem[f"a{k}"] if f"a{k}" in mem else None for k in range(len(args))]
    return res


def twins(name, source, **options):
    """Buggy and clean variant of a body, and the line where the report must point.

    Lines marked ``//bug`` are only in the buggy text, ``//clean`` only in the clean one; ``//here``
    marks the reported instruction.
    """
    lines = source.strip("\n").split("\n")
    bug = "\n".join(x for x in lines if "//clean" not in x)
    clean = "\n".join(x for x in lines if "//bug" not in x)
    bug = kernel(f"{name} (bug)", bug, **options)
    clean = kernel(f"{name} (clean)", clean, **options)
    here = [k for k, x in enumerate(bug.split("\n"), 1) if "//here" in x]
    return bug, clean, here


def bits(*values):
    """float32 values as uint32 bits."""
    return np.array(values, np.float32).view(np.uint32)
