"""The launch of a kernel: what a user calls."""

import struct

import numpy as np

from .errors import DeviceFault, EmulatorError, TooManyHazards
from .memory import Memory
from .run import Config, Run
from .scheduler import POLICIES
from .tensormap import encode_map


class Result:
    """What a launch returns.

    Attributes
    ----------
    hazards : list of Hazard
    counters : Counters
    memory : Memory
    ok : bool
        No hazard was found.
    """

    def __init__(self, hazards, counters, memory):
        self.hazards, self.counters, self.memory = hazards, counters, memory

    @property
    def ok(self):
        return not self.hazards

    def report(self):
        """All hazards as text."""
        return "\n".join(map(str, self.hazards)) or "no hazards"


def pack_params(entry, values):
    """Parameter block from a list of values, laid out as the entry declares them.

    Integers fill the declared size, floats become f32 or f64 by size, bytes are copied.
    """
    out = bytearray(entry.param_size)
    names = list(entry.params.values())
    if len(values) != len(names):
        raise EmulatorError(f"{entry.name} takes {len(names)} parameters, {len(values)} given")
    for v, x in zip(names, values):
        if isinstance(x, (bytes, bytearray)):
            raw = bytes(x)
        elif isinstance(x, (float, np.floating)):
            raw = struct.pack("<f" if v.size == 4 else "<d", x)
        else:
            raw = (int(x) & ((1 << 8 * v.size) - 1)).to_bytes(v.size, "little")
        if len(raw) > v.size:
            raise EmulatorError(f"parameter {v.name} holds {v.size} bytes, {len(raw)} given")
        out[v.offset : v.offset + len(raw)] = raw
    return bytes(out)


def _dim3(x):
    t = (x,) if isinstance(x, int) else tuple(int(v) for v in x)
    return t + (1,) * (3 - len(t))


def launch(
    program,
    entry,
    grid,
    block,
    params,
    smem=0,
    cluster=1,
    memory=None,
    tensor_maps=None,
    schedule="round_robin",
    seed=0,
    hazards=True,
    max_resident=132,
    limit=20,
    programmatic=False,
    outputs=None,
    max_blocks=20_000_000,
):
    """Run a kernel.

    Parameters
    ----------
    program : Program
    entry : str or None
        Kernel name; None when the text has one entry.
    grid, block : int or tuple of int
    params : bytes or list
        The parameter block as the driver would get it, or one value per declared parameter
        (ints, floats, bytes). Device pointers come from ``Memory.alloc``.
    smem : int
        Dynamic shared memory in bytes.
    cluster : int or tuple of int
    memory : Memory
        Global memory; results are read back from it.
    tensor_maps : dict, optional
        Parameter offset (bytes) to a tensor-map record: dict with ``dtype`` (NumPy name, or
        "bfloat16"), ``dims`` and ``box`` (innermost first), ``strides`` (bytes, rank - 1 of them),
        ``base`` (device address), ``swizzle`` (0, 32, 64, 128), and optionally ``interleave``,
        ``elem_strides``, ``fill`` ("zero" or "nan"), ``mode`` ("tile" or "im2col") with
        ``lower``, ``upper``, ``channels``, ``pixels``.
    schedule : {"round_robin", "random", "adversarial"}
    seed : int
    hazards : bool
        Run the race detector (the cheap checks always run).
    max_resident : int
        CTAs that run at the same time.
    limit : int
        Distinct hazards after which the launch stops.
    programmatic : bool or collection of str
        The launch carries the programmatic stream serialization attribute: global memory (or the
        named allocations) may not be touched before ``griddepcontrol.wait``.
    outputs : dict, optional
        Allocation name to a boolean mask of its elements, or None for all: each of these elements
        must be written exactly once.
    max_blocks : int
        Basic blocks after which the launch is taken for an endless loop.

    Returns
    -------
    Result

    Raises
    ------
    EmulatorError
        For a bad launch configuration or something the emulator cannot run.
    """
    e = program.entry(entry)
    memory = memory if memory is not None else Memory()
    cluster = _dim3(cluster)
    grid, block = _dim3(grid), _dim3(block)
    if any(g % c for g, c in zip(grid, cluster)):
        raise EmulatorError(f"grid {grid} is not a multiple of the cluster {cluster}")
    if block[0] * block[1] * block[2] > 1024:
        raise EmulatorError(f"block {block} has more than 1024 threads")
    if not isinstance(params, (bytes, bytearray)):
        params = pack_params(e.entry, list(params))
    if len(params) < e.entry.param_size:
        raise EmulatorError(
            f"{e.name} takes {e.entry.param_size} bytes of parameters, {len(params)} given"
        )
    raw = bytearray(params)
    for off, rec in (tensor_maps or {}).items():
        raw[off : off + 128] = encode_map(rec)
    if schedule not in POLICIES:
        raise EmulatorError(f"schedule {schedule!r}: choose one of {sorted(POLICIES)}")
    for name in outputs or {}:
        if name not in memory:
            raise EmulatorError(f"outputs names {name!r}, which is not an allocation")
    config = Config(
        grid,
        block,
        cluster,
        smem,
        POLICIES[schedule](seed),
        hazards,
        max_resident,
        limit,
        None if not programmatic else True if programmatic is True else set(programmatic),
        dict(outputs or {}),
        max_blocks,
    )
    run = Run(e, config, bytes(raw), memory)
    with np.errstate(all="ignore"):
        try:
            run.start()
            run.loop()
        except (TooManyHazards, DeviceFault):
            pass
    return Result(run.log.items, run.counters, memory)
