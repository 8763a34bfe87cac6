"""Runs a case in the emulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepasm_torch import emulator
from deepasm_torch.emulator.program import load
from deepasm_torch.emulator.tensormap import encode_map

from .case import Map


@dataclass
class Outcome:
    """Outputs by name; ``problem`` is the report of what the case does not allow, or ""."""

    outputs: dict
    problem: str
    faulted: bool


def emulate(case, schedule="round_robin", uniform=False):
    """Run a case; with ``uniform`` its text of one value per CTA."""
    mem = emulator.Memory()
    address = {name: mem.alloc(name, data) for name, data in case.buffers.items()}
    values = []
    for p in case.params:
        if isinstance(p, str):
            values.append(address[p])
        elif isinstance(p, Map):
            values.append(encode_map({**p.record, "base": address[p.of] + p.offset}))
        else:
            values.append(p)
    grid, block = case.grid, case.block
    if uniform:
        grid, block = grid * block, 32
    res = emulator.launch(
        load(case.uniform if uniform else case.text, case.name),
        None,
        grid,
        block,
        values,
        cluster=case.cluster,
        memory=mem,
        schedule=schedule,
        limit=1000,
    )
    kinds = {h.kind for h in res.hazards}
    faulted = "fault" in kinds
    allowed = case.hazards | ({"fault"} if case.fault else set())
    if uniform:  # every lane of a CTA writes the same value, and only one of them matters
        allowed = allowed | {"race-global"}
    bad = [str(h) for h in res.hazards if h.kind not in allowed]
    if not mem.red_zones_intact():
        bad.append("bytes outside every buffer were written")
    outputs = {n: np.array(mem[n]).reshape(-1).view(np.uint8) for n in case.outputs}
    return Outcome(outputs, "\n".join(bad), faulted)
