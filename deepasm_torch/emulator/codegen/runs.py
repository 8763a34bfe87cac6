"""Straight-line runs of one opcode, executed as one 2-D NumPy operation.

Registers that hold tensor-core operands, and the results of such runs, are rows of a 2-D block per
warp (`V`); sixty-four conversions of consecutive accumulator registers then cost one call instead
of sixty-four. A run is emitted through the ordinary emitter of its first instruction, whose
operands are replaced by blocks of rows.
"""

from ..text.operands import Operand
from ..text.statements import WIDTH, Ins

TENSOR_OPS = ("wgmma", "mma", "wmma")
FLOATS = {"f32", "f16x2", "bf16x2"}
# heads whose run-time functions work element by element on arrays of any shape
ELEMENTWISE = {
    *("add", "sub", "mul", "fma", "mad", "min", "max", "cvt", "mov", "neg", "abs", "selp"),
    *("ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "sin", "cos", "and", "or", "xor"),
}
SHAPED = {"f16x2", "bf16x2"}  # functions that look at pairs flatten their operands


class RowBlock:
    """Several rows as one operand: stands for a `Reg` while a run is emitted."""

    __slots__ = ("index", "kind", "name", "row", "rows", "width")

    def __init__(self, regs):
        self.rows = [r.row for r in regs]
        self.row = self.rows[0]
        self.index, self.name, self.width, self.kind = None, regs[0].name, 32, regs[0].kind


def elementwise(ins):
    """True when a run of this instruction may become one operation."""
    if ins.pred is not None or ins.parts[0] not in ELEMENTWISE:
        return False
    types = [p for p in ins.parts if p in WIDTH]
    if not types or any(WIDTH[t] not in (1, 32) for t in types if t not in ("f16", "bf16")):
        return False
    if ins.parts[0] == "cvt":
        return len(ins.ops) == 3 and types[0] in SHAPED and types[-1] == "f32"
    return types[-1] not in SHAPED and WIDTH[types[-1]] == 32


def _rowed(o):
    return o.kind == "reg" and o.reg.row is not None


def same_scalar(a, b):
    """True when two operands are the same register outside the block, or the same constant."""
    if a.kind != b.kind or a.neg != b.neg:
        return False
    if a.kind == "reg":
        return a.reg is b.reg
    return a.kind in ("imm", "fimm") and a.value == b.value


def find_run(body):
    """Length of the run that starts a list of instructions, and its operands.

    Returns
    -------
    (int, list of Operand or None)
    """
    first = body[0]
    if not elementwise(first) or not _rowed(first.ops[0]):
        return 1, None
    columns = [[o] for o in first.ops]
    written = {first.ops[0].reg.row}
    n = 1
    for ins in body[1:]:
        if ins.op != first.op or ins.pred is not None or len(ins.ops) != len(first.ops):
            break
        if not _rowed(ins.ops[0]) or ins.ops[0].reg.row in written:
            break
        if any(_rowed(o) and o.reg.row in written for o in ins.ops[1:]):
            break
        if not all(
            (_rowed(a) and _rowed(b)) or (not _rowed(a) and not _rowed(b) and same_scalar(a, b))
            for a, b in zip(first.ops[1:], ins.ops[1:])
        ):
            break
        written.add(ins.ops[0].reg.row)
        for column, o in zip(columns, ins.ops):
            column.append(o)
        n += 1
    if n == 1:
        return 1, None
    ops = []
    for column in columns:
        o = column[0]
        if _rowed(o):
            o = Operand("reg", reg=RowBlock([x.reg for x in column]))
        ops.append(o)
    return n, ops


def _tensor_rows(body, n):
    for ins in body:
        if isinstance(ins, Ins) and ins.parts[0] in TENSOR_OPS:
            for o in ins.ops:
                for x in o.items if o.kind == "vec" else ():
                    if x.kind == "reg" and x.reg.width == 32 and x.reg.row is None:
                        x.reg.row = n
                        n += 1
    return n


def wgmma_rows(body):
    """Rows that some wgmma reads or writes: ordinary accesses to them need a wgmma.fence."""
    return {
        x.reg.row
        for ins in body
        if isinstance(ins, Ins) and ins.op.startswith("wgmma.mma")
        for o in ins.ops
        if o.kind == "vec"
        for x in o.items
        if x.kind == "reg"
    }


def _is_float_run(ins):
    return any(p in FLOATS for p in ins.parts[1:]) and ins.parts[0] not in ("mov", "selp")


def assign_rows(body):
    """Give registers rows of the warp's 2-D block; returns the number of rows.

    Tensor-core operands come first, so that their lists are contiguous; then destinations of runs
    of at least four floating-point instructions. Integer registers stay outside: most are uniform,
    and a Python int is cheaper than a row.
    """
    n = _tensor_rows(body, 0)
    i = 0
    while i < len(body):
        ins = body[i]
        if not isinstance(ins, Ins) or not elementwise(ins) or not _is_float_run(ins):
            i += 1
            continue
        j, seen = i, set()
        while j < len(body) and isinstance(body[j], Ins) and body[j].op == ins.op:
            d = body[j].ops[0]
            if body[j].pred is not None or d.kind != "reg" or d.reg.name in seen:
                break
            seen.add(d.reg.name)
            j += 1
        if j - i >= 4:
            for x in body[i:j]:
                reg = x.ops[0].reg
                if reg.row is None and reg.width == 32:
                    reg.row = n
                    n += 1
        i = max(j, i + 1)
    return n
