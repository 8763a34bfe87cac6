"""Turns an entry into one Python function per basic block.

Values are polymorphic: a warp-uniform value is a Python int (bool for predicates), a per-lane
value a NumPy array of the register's width (uint16/32/64, bool). The same generated line serves
both, so most of a GEMM kernel, which is uniform, runs as plain Python integer arithmetic.

Blocks end at labels, branches and before instructions that can block; such an instruction opens
its own block, so that re-executing the block after a wake-up repeats nothing but the wait. Code is
generated for every block at load time, so that every unknown instruction is reported at once, but
handed to Python's compiler only when a block first runs: most epilogue variants never do.
"""

from ..errors import EmitError, PtxError
from ..text.statements import Ins
from .code import Code
from .registry import RUNTIME, find_handler
from .runs import assign_rows, find_run, wgmma_rows

ENDS = ("bra", "ret", "exit", "brx", "trap")


class Block:
    """A basic block: first instruction, count, and static counts by instruction class."""

    __slots__ = ("classes", "first", "fn", "index", "line_ins", "n", "program", "source")

    def __init__(self, program, index, body):
        self.program, self.index = program, index
        self.first, self.n = body[0].idx, len(body)
        self.classes = {}
        self.source = self.line_ins = None
        self.fn = self._compile

    def _compile(self, f):
        """First execution: compile, replace ``fn``, run."""
        code = compile(self.source, self.filename, "exec")
        exec(code, self.program.env)  # noqa: S102 - our own source
        self.fn = self.program.env[f"b{self.index}"]
        return self.fn(f)

    @property
    def filename(self):
        """Name of the block in tracebacks."""
        return f"<{self.program.name}:{self.index}>"


class Compiled:
    """An executable entry: blocks, instruction list and register widths."""

    def __init__(self, entry, module):
        self.entry, self.module, self.name = entry, module, entry.name
        self.blocks, self.ins = [], []
        self.rows = 0
        self.env = dict(RUNTIME)
        self.patterns = {}  # shared-memory size -> address patterns seen (isa.access)

    @property
    def source(self):
        """Generated Python of all blocks."""
        return "\n".join(b.source for b in self.blocks)

    def instruction_at(self, filename, lineno):
        """Instruction behind a line of generated code, or None."""
        head, _, k = filename.rpartition(":")
        if head != f"<{self.name}":
            return None
        return self.blocks[int(k[:-1])].line_ins[lineno - 1]


def split_blocks(entry):
    """Cut the body into blocks; returns (list of instruction lists, label -> block index)."""
    blocks, labels, cur = [], {}, []
    for it in entry.body:
        if not isinstance(it, Ins):
            if cur:
                blocks.append(cur)
                cur = []
            labels[it[1]] = len(blocks)
            continue
        h = find_handler(it.op)
        if cur and h is not None and h[2] is not None and h[2](it):
            blocks.append(cur)
            cur = []
        cur.append(it)
        if it.parts[0] in ENDS:
            blocks.append(cur)
            cur = []
    if cur:
        blocks.append(cur)
    return blocks, labels


def _with_final_ret(body):
    """The end of a kernel's text is a ret, written or not."""
    last = next((x for x in reversed(body) if isinstance(x, Ins)), None)
    ends = bool(body) and body[-1] is last and last.parts[0] in ENDS and last.pred is None
    if ends or last is None:
        return
    body.append(Ins("ret", [], None, False, last.line, last.col, last.where, "ret;"))


def _emit(cg, body, i):
    """Emit the instruction at ``i`` of a block (or the run it starts); returns how many."""
    ins = body[i]
    cg.ins, cg.indent = ins, 1
    h = find_handler(ins.op)
    if h is None:
        cg.errors.append((ins.line, ins.col, f"opcode {ins.op} is not emulated"))
        return 1
    try:
        if getattr(h[0], "batched", False):
            return h[0](cg, ins, body[i:])
        n, ops = find_run(body[i:])
        if n > 1:
            own, ins.ops = ins.ops, ops
            try:
                h[0](cg, ins)
            finally:
                ins.ops = own
        else:
            h[0](cg, ins)
        return n
    except EmitError as err:
        cg.errors.append((ins.line, ins.col, f"{ins.op}: {err}"))
    except (KeyError, IndexError, AttributeError, ValueError, TypeError) as err:
        cg.errors.append((ins.line, ins.col, f"{ins.op}: operands not understood ({err!r})"))
    return 1


def _count(blk, instructions):
    for x in instructions:
        h = find_handler(x.op)
        if h is not None:
            c = h[1](x) if callable(h[1]) else h[1]
            blk.classes[c] = blk.classes.get(c, 0) + 1


def compile_entry(entry, module, name="ptx"):
    """Generate the block functions of an entry.

    Raises
    ------
    PtxError
        With one line per unsupported instruction or operand.
    """
    out = Compiled(entry, module)
    _with_final_ret(entry.body)
    out.rows = assign_rows(entry.body)
    out.row_names = {r.row: r.name for r in entry.regs if r.row is not None}
    cg = Code(entry, module, wgmma_rows(entry.body))
    blocks, cg.block_of = split_blocks(entry)
    for body in blocks:
        for x in body:
            x.idx = len(out.ins)
            out.ins.append(x)
    for k, body in enumerate(blocks):
        blk = Block(out, k, body)
        out.blocks.append(blk)
        cg.open_block(k, body[0])
        i = 0
        while i < len(body):
            used = _emit(cg, body, i)
            _count(blk, body[i : i + used])
            i += used
        last = body[-1]
        cg.close_block(falls=not (last.parts[0] in ENDS and last.pred is None))
        blk.source, blk.line_ins = cg.take()
    if cg.errors:
        raise PtxError(cg.errors, name)
    out.env.update(cg.consts)
    out.widths = [r.width for r in entry.regs]
    return out
