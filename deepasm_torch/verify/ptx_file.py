"""`deepasm emulate FILE.ptx`: run anybody's PTX kernel on NumPy arrays, with hazard checks."""

from __future__ import annotations

import re
from pathlib import Path

from ..cli import CannotRun, Outcome
from ..emulator.scheduler import POLICIES

INTEGERS = {f"{kind}{bits}": (kind, bits) for kind in "usb" for bits in (8, 16, 32, 64)}
FLOATS = ("f16", "bf16", "f32", "f64")
ARG_HELP = (
    "one per kernel parameter, by its name or in their order: NAME=npy:FILE, zeros:f32:1024, "
    "random:f32:64x64, empty:f32:1024 (uninitialised), or a scalar such as u32:5, f32:0.5"
)


def configure(parser) -> None:
    parser.add_argument("file", help="PTX text")
    parser.add_argument("--entry", help="kernel name, when the file has several")
    parser.add_argument("--grid", default="1", metavar="X[,Y,Z]", help="CTAs (default 1)")
    parser.add_argument(
        "--block", metavar="X[,Y,Z]", help="threads (default: the kernel's .reqntid)"
    )
    parser.add_argument("--cluster", default="1", metavar="X[,Y,Z]", help="CTAs of a cluster")
    parser.add_argument("--smem", type=int, default=0, help="dynamic shared memory, bytes")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help=ARG_HELP)
    parser.add_argument(
        "--out", action="append", default=[], metavar="NAME=FILE.npy",
        help="save an array argument after the run (bf16 as float32)",
    )  # fmt: skip
    parser.add_argument("--schedule", choices=sorted(POLICIES), default="round_robin")
    parser.add_argument("--seed", type=int, default=0, help="of random arrays and schedules")
    parser.add_argument("--no-hazards", action="store_true", help="skip the race detector")


def execute(args) -> Outcome:
    from ..emulator import EmulatorError, Memory, Program, launch

    path = Path(args.file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"emulate: cannot read {args.file}: {error}") from error
    try:
        program = Program(text, path.name)
        entry = program.entry(args.entry)
        memory = Memory()
        kinds, params = _arguments(args.arg, entry.entry.params, memory, args.seed)
        saved = [_out(item, kinds) for item in args.out]
        block = args.block or ",".join(map(str, entry.entry.directives.get("reqntid", ())))
        if not block:
            raise CannotRun("emulate: --block is missing, and the kernel has no .reqntid")
        result = launch(
            program,
            args.entry,
            _dims("--grid", args.grid),
            _dims("--block", block),
            params,
            smem=args.smem,
            cluster=_dims("--cluster", args.cluster),
            memory=memory,
            schedule=args.schedule,
            seed=args.seed,
            hazards=not args.no_hazards,
        )
    except EmulatorError as error:
        raise CannotRun(f"emulate: {error}") from error
    for name, file in saved:
        _save(file, memory[name], kinds[name])
    counters = result.counters.as_dict()
    data = {
        "entry": entry.name,
        "hazards": [h.as_dict() for h in result.hazards],
        "counters": counters,
        "saved": {name: file for name, file in saved},
    }
    lines = [result.report(), *_counter_lines(counters)]
    lines += [f"saved {name} to {file}" for name, file in saved]
    errors = [f"{len(result.hazards)} hazards in {entry.name}"] if result.hazards else []
    return Outcome(data, "\n".join(lines), errors)


def _dims(option, text) -> tuple:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){0,2}", text):
        raise CannotRun(f"emulate: {option} is {text!r}, expected X, X,Y or X,Y,Z, at least 1 each")
    return tuple(int(x) for x in text.split(","))


# ---------------------------------------------------------------------- arguments
def _arguments(items, declared, memory, seed):
    """Allocate and pack arguments.

    Returns
    -------
    (dict, list)
        Type of each array by argument name; values in the order of the parameters.
    """
    import numpy as np

    given = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name or name in given:
            what = "twice" if name in given else "without NAME=VALUE"
            raise CannotRun(f"emulate: --arg {item!r} is given {what}; expected {ARG_HELP}")
        given[name] = value
    names = list(declared)
    order = names if set(given) == set(names) else list(given)
    if len(order) != len(names):
        raise CannotRun(
            f"emulate: {len(given)} --arg given, the kernel has {len(names)} parameters: "
            f"{', '.join(names) or 'none'}"
        )
    rng = np.random.default_rng(seed)
    kinds, params = {}, []
    for name in order:
        array, scalar, kind = _value(name, given[name], rng)
        if array is None:
            params.append(scalar)
            continue
        kinds[name] = kind
        if isinstance(array, tuple):  # uninitialised: size in bytes, dtype
            params.append(memory.alloc(name, array[0], dtype=array[1]))
        else:
            params.append(memory.alloc(name, array))
    for name, value in zip(order, params):
        size = declared[names[order.index(name)]].size
        if isinstance(value, bytes) and len(value) != size:
            raise CannotRun(f"emulate: {name} has {len(value)} bytes, the parameter {size}")
        if name in kinds and size != 8:
            raise CannotRun(
                f"emulate: {name} is an array, but the parameter holds {size} bytes and no pointer"
            )
    return kinds, params


def _value(name, text, rng):
    """(array, scalar bytes, type) of one argument; one of the first two is None."""
    import numpy as np

    head, _, rest = text.partition(":")
    if head == "npy":
        try:
            array = np.load(rest, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CannotRun(f"emulate: {name}: cannot load {rest!r}: {error}") from error
        return array, None, "npy"
    if head in ("zeros", "random", "empty"):
        kind, _, shape = rest.partition(":")
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
            raise CannotRun(f"emulate: {name}: shape {shape!r} of {text!r} is not like 64x64")
        dims = tuple(int(x) for x in shape.split("x"))
        dtype = _dtype(name, kind)
        if head == "empty":
            return (int(np.prod(dims)) * dtype.itemsize, dtype), None, kind
        if head == "zeros":
            return np.zeros(dims, dtype), None, kind
        return _random(kind, dims, dtype, rng), None, kind
    return None, _scalar(name, head, rest), head


def _dtype(name, kind):
    import numpy as np

    if kind in INTEGERS:
        sign, bits = INTEGERS[kind]
        return np.dtype(f"{'int' if sign == 's' else 'uint'}{bits}")
    if kind in FLOATS:
        return np.dtype("uint16" if kind == "bf16" else f"float{kind[1:]}")
    known = ", ".join([*FLOATS, *INTEGERS])
    raise CannotRun(f"emulate: {name}: unknown type {kind!r}; known: {known}")


def _random(kind, dims, dtype, rng):
    """Normal values, or small integers."""
    if kind in INTEGERS:
        low = -8 if INTEGERS[kind][0] == "s" else 0
        return rng.integers(low, 9, dims).astype(dtype)
    return _from_float(kind, rng.standard_normal(dims), dtype)


def _from_float(kind, x, dtype):
    from .formats import to_bits

    return to_bits(x, "bf16") if kind == "bf16" else x.astype(dtype)


def _scalar(name, kind, text) -> bytes:
    import numpy as np

    dtype = _dtype(name, kind)
    try:
        if kind in INTEGERS:
            value = int(text, 0) & ((1 << 8 * dtype.itemsize) - 1)
            return value.to_bytes(dtype.itemsize, "little")
        return _from_float(kind, np.array([float(text)]), dtype).tobytes()
    except ValueError as error:
        raise CannotRun(f"emulate: {name}: {text!r} is no {kind} value") from error


def _out(item, kinds) -> tuple:
    name, _, file = item.partition("=")
    if name not in kinds or not file:
        arrays = ", ".join(kinds) or "none"
        raise CannotRun(f"emulate: --out {item!r}: expected NAME=FILE.npy; arrays: {arrays}")
    return name, file


def _save(file, array, kind) -> None:
    import numpy as np

    from .formats import from_bits

    try:
        np.save(file, from_bits(array, "bf16") if kind == "bf16" else array)
    except OSError as error:
        raise CannotRun(f"emulate: cannot write {file}: {error}") from error


def _counter_lines(counters) -> list[str]:
    shared, memory = counters["shared"], counters["global"]
    classes = ", ".join(f"{k} {v}" for k, v in counters["instructions"].items())
    paths = ", ".join(f"{k} {v}" for k, v in counters["bytes"].items())
    return [
        f"warp instructions {counters['total']} ({classes})",
        f"active lanes {counters['warp_efficiency']:.1%}",
        f"shared memory: {shared['requests']} requests, {shared['wavefronts']} wavefronts "
        f"(ideal {shared['ideal']})",
        f"global memory: {memory['requests']} requests, {memory['sectors']} sectors "
        f"(ideal {memory['ideal']})",
        f"bytes: {paths or 'none'}",
    ]
