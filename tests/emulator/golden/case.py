"""A micro-kernel as data: PTX text, inputs, launch, outputs and how they must agree.

Nothing here needs a GPU or the emulator: `driver` runs a case on a chip, `emulate` runs it here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

REGISTERS = """.reg .pred %p<10>;
.reg .b16 %h<20>;
.reg .b32 %r<70>;
.reg .b64 %d<40>;
.reg .f32 %f<40>;
.reg .f64 %g<10>;"""
WIDTH = {"p": 32, "h": 16, "r": 32, "f": 32, "d": 64, "g": 64}

#: name -> Case, in the order of recording
CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Rule:
    """How far a recorded value may be from the emulated one.

    kind : "exact" compares bits; "near" compares floats: NaN and infinities must agree, finite
    values must differ by at most ``absolute + relative * |emulated|``. ``dtype`` names the floating
    type where the register class does not (bits of f16 and bf16).
    """

    kind: str = "exact"
    relative: float = 0.0
    absolute: float = 0.0
    dtype: str = ""


EXACT = Rule()


@dataclass(frozen=True)
class Field:
    """A part of an output: ``count`` elements of ``dtype`` at a byte offset."""

    label: str
    output: str
    offset: int
    dtype: str
    count: int
    rule: Rule = EXACT


@dataclass(frozen=True)
class Map:
    """A tensor map over a buffer, passed by value; ``record`` as `deepasm_torch.emulator.launch`
    takes it, without the base address."""

    of: str
    record: dict
    offset: int = 0


@dataclass
class Case:
    """One launch.

    Attributes
    ----------
    buffers : dict of str to array
        Device allocations with their contents before the launch.
    params : list
        A buffer's name (its address), an int, or a `Map`, one per kernel parameter.
    fields : list of Field
        What is compared; the buffers they name are recorded.
    hazards : set of str
        Kinds of report that the emulator may give without being wrong.
    fault : bool
        The chip must end the launch with an error, and the emulator with a ``fault``.
    uniform : str or None
        A text with one value per CTA and the same outputs, for the emulator's scalar paths.
    refused : str or None
        The emulator does not know the instruction: part of the message it gives.
    differs : str or None
        A known difference between chip and emulator, and which of them does what.
    """

    name: str
    text: str
    buffers: dict
    params: list
    fields: list = field(default_factory=list)
    grid: int | tuple = 1
    block: int | tuple = 32
    cluster: int | tuple = 1
    hazards: frozenset = frozenset()
    fault: bool = False
    uniform: str | None = None
    refused: str | None = None
    differs: str | None = None

    @property
    def outputs(self):
        """Names of the recorded buffers."""
        return list(dict.fromkeys(f.output for f in self.fields))

    def fingerprint(self):
        """Hash of everything that decides the outputs: a golden file knows what it recorded."""
        h = hashlib.sha256(self.text.encode())
        for name, data in sorted(self.buffers.items()):
            h.update(name.encode() + np.ascontiguousarray(data).tobytes())
        maps = [repr(sorted(p.record.items())) if isinstance(p, Map) else p for p in self.params]
        h.update(repr((maps, self.grid, self.block, self.cluster)).encode())
        return h.hexdigest()[:16]


def add(case):
    """Register a case."""
    if case.name in CASES:
        raise ValueError(f"two cases are called {case.name!r}")
    CASES[case.name] = case
    return case


def whole(output, data, rule=EXACT, dtype=None):
    """Field that covers a whole buffer."""
    dt = np.dtype(dtype or data.dtype)
    return Field(output, output, 0, dt.name, data.nbytes // dt.itemsize, rule)


def entry(body, params, outside="", directives=""):
    """PTX text of one entry ``k``; ``params`` is a list of ``.param`` items without the keyword."""
    declared = ", ".join(f".param {p}" for p in params)
    return (
        f".version 8.6\n.target sm_90a\n.address_size 64\n{outside}\n"
        f".visible .entry k({declared})\n{directives}\n{{\n{REGISTERS}\n{body}\nret;\n}}\n"
    )


def pointers(*names):
    """Parameters of 64 bits, and loads of them into %d1, %d2, ..."""
    loads = "\n".join(f"ld.param.u64 %d{k}, [{n}];" for k, n in enumerate(names, 1))
    return [f".u64 {n}" for n in names], loads


def rng(name):
    """Generator whose seed is a name: inputs do not depend on the order of the cases."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


# ---------------------------------------------------------------------------- one value per lane
BITS = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def _alu_text(operands, rows, offsets, n, uniform):
    names = list(operands)
    params, loads = pointers("out", *names)
    body = [loads]
    if uniform:
        body.append("mov.u32 %r60, %ctaid.x;")
    else:
        body.append("mov.u32 %r60, %ctaid.x;\nmov.u32 %r61, %ntid.x;\nmov.u32 %r62, %tid.x;")
        body.append("mad.lo.u32 %r60, %r60, %r61, %r62;")
    for w in (16, 32, 64):
        body.append(f"mul.wide.u32 %d{30 + w // 16}, %r60, {w // 8};")
        body.append(f"add.u64 %d{20 + w // 16}, %d1, %d{30 + w // 16};")
    regs = {}
    for k, (letter, (cls, _)) in enumerate(operands.items()):
        regs[letter] = f"%{cls}{k + 2}"
        if cls == "p":
            body.append(f"add.u64 %d30, %d{k + 2}, %d32;\nld.global.b32 %r59, [%d30];")
            body.append(f"setp.ne.u32 {regs[letter]}, %r59, 0;")
            continue
        if cls == "d":  # %d2.. hold the parameters
            regs[letter] = f"%d{k + 10}"
        w = WIDTH[cls]
        body.append(f"add.u64 %d30, %d{k + 2}, %d{30 + w // 16};")
        body.append(f"ld.global.b{w} {regs[letter]}, [%d30];")
    for (cls, code, _), off in zip(rows, offsets):
        d = {"d": "%d15", "r": "%r20", "h": "%h10", "f": "%f10", "g": "%g8", "p": "%p8"}[cls]
        body.append(code.format(d=d, **regs))
        if cls == "p":
            body.append("selp.u32 %r21, 1, 0, %p8;")
            d = "%r21"
        w = WIDTH[cls]
        body.append(f"st.global.b{w} [%d{20 + w // 16} + {off}], {d};")
    return entry("\n".join(body), params)


def alu(name, operands, rows, **more):
    """A case that applies every row to every lane's operands.

    Parameters
    ----------
    operands : dict
        Letter to (register class, bits); all arrays have the same length, a multiple of 32.
    rows : list
        (class of the result, code) or (class, code, Rule); ``{d}`` is the result.
    """
    rows = [(*r, EXACT)[:3] for r in rows]
    n = len(next(iter(operands.values()))[1])
    offsets, at, fields = [], 0, []
    for cls, code, rule in rows:
        offsets.append(at)
        near = {"f": "float32", "g": "float64"}.get(cls) if rule.kind == "near" else None
        dtype = rule.dtype or near or BITS[WIDTH[cls]].__name__
        fields.append(Field(code.replace("\n", " "), "out", at, dtype, n, rule))
        at += n * WIDTH[cls] // 8
    buffers = {"out": np.zeros(at, np.uint8)}
    for letter, (cls, bits) in operands.items():
        buffers[letter] = np.ascontiguousarray(bits).astype(BITS[WIDTH[cls]])
    block = 128 if n % 128 == 0 else 32
    return add(
        Case(
            name,
            _alu_text(operands, rows, offsets, n, False),
            buffers,
            ["out", *operands],
            fields,
            grid=n // block,
            block=block,
            uniform=_alu_text(operands, rows, offsets, n, True),
            **more,
        )
    )
