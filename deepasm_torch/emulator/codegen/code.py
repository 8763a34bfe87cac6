"""The emission state: operands to Python expressions, guarded writes, checks."""

import re

from ..errors import EmitError
from ..text.literals import float_bits
from ..text.statements import WIDTH


class Code:
    """Emission state of one entry.

    Attributes
    ----------
    lines : list of str
        Python source; ``line_ins[i]`` is the instruction that source line ``i`` belongs to.
    ins : Ins
        The instruction being emitted.
    """

    def __init__(self, entry, module, fenced=frozenset()):
        self.entry, self.module, self.fenced = entry, module, fenced
        self.lines, self.line_ins = [], []
        self.ins = None
        self.indent = 1
        self.errors = []
        self.tmp = 0
        self.block_of, self.block_index = {}, 0
        self.consts = {}

    # ------------------------------------------------------------------ blocks
    def open_block(self, index, first):
        """Start the function of a block."""
        self.block_index, self.ins, self.indent, self.tmp = index, first, 0, 0
        self.line(f"def b{index}(f):")
        self.line("    R = f.R; V = f.V; S = f.S")

    def close_block(self, falls):
        """End it; ``falls``: control reaches the next block."""
        self.indent = 1
        if falls:
            self.line(f"return {self.block_index + 1}")

    def take(self):
        """Source and instruction of each line of the finished block."""
        source, line_ins = "\n".join(self.lines), self.line_ins
        self.lines, self.line_ins = [], []
        return source, line_ins

    def const(self, value):
        """Name of a constant object that generated code can use."""
        n = f"C{len(self.consts)}"
        self.consts[n] = value
        return n

    # ------------------------------------------------------------------ emission primitives
    def line(self, text):
        self.lines.append("    " * self.indent + text)
        self.line_ins.append(self.ins)

    def name(self):
        self.tmp += 1
        return f"t{self.tmp}"

    def let(self, expr):
        """Bind an expression to a fresh local and return its name (names pass through)."""
        if re.fullmatch(r"\w+", expr):
            return expr
        n = self.name()
        self.line(f"{n} = {expr}")
        return n

    def pc(self):
        return self.ins.idx

    # ------------------------------------------------------------------ operands
    def reg(self, r):
        """Expression that reads a register."""
        if r.row is None:
            return f"R[{r.index}]"
        rows = getattr(r, "rows", None)
        if rows is None:
            self.line(f"if S[{r.row}]: vread(f, {r.row}, {self.pc()})")
            return f"V[{r.row}]"
        return f"V[{self.rows('read', rows)}]"

    def rows(self, what, rows):
        """Check several rows before they are read or written; returns an index expression."""
        a, b = rows[0], rows[-1] + 1
        if rows == list(range(a, b)):
            self.line(f"if any(S[{a}:{b}]): v{what}s(f, range({a}, {b}), {self.pc()})")
            return f"{a}:{b}"
        c = self.const(rows)
        self.line(f"v{what}s(f, {c}, {self.pc()})")
        return c

    def src(self, o, ty):
        """Expression for a source operand read as a PTX type; bits, masked to the type's width."""
        w = WIDTH[ty]
        if o.kind == "reg":
            e = self.reg(o.reg)
            if o.reg.width == 1:
                if w != 1:
                    raise EmitError(f"predicate {o.reg.name} used as .{ty}")
                return f"pnot({e})" if o.neg else e
            if w == 1:
                raise EmitError(f"{o.reg.name} is not a predicate")
            if o.reg.width < w and not (w == 128):
                raise EmitError(f"{o.reg.name} is {o.reg.width} bits wide, .{ty} needs {w}")
            if o.reg.width > w:
                return f"narrow{max(w, 8)}({e})"
            return e
        if o.kind == "imm":
            if w == 1:
                return repr(bool(o.value) != o.neg)
            if ty == "f32":
                return str(float_bits(float(o.value), 32))
            if ty == "f64":
                return str(float_bits(float(o.value), 64))
            return str(o.value & ((1 << w) - 1))
        if o.kind == "fimm":
            if ty in ("f32", "f64", "f16"):
                return str(float_bits(o.value, w))
            if ty in ("b32", "u32", "s32"):
                return str(float_bits(o.value, 32))
            if ty in ("b64", "u64", "s64"):
                return str(float_bits(o.value, 64))
            raise EmitError(f"floating literal where .{ty} is expected")
        if o.kind == "sreg":
            return f"sreg(f, {o.name!r})"
        if o.kind == "sym":
            return self.symbol(o)
        raise EmitError(f"{o.kind} operand where a .{ty} value is expected")

    def symbol(self, o):
        """Address of a variable, in its own space (parameters: the parameter window)."""
        e, n = self.entry, o.name
        if n in e.params:
            return f"(PARAM_BASE + {e.params[n].offset + o.offset})"
        v = e.shared.get(n) or self.module.variables.get(n)
        if v is not None and v.space == "shared":
            return f"(f.cta.sym[{n!r}] + {o.offset})"
        if n in e.locals:
            return f"{e.locals[n].offset + o.offset}"
        if v is not None:
            return f"(f.run.sym[{n!r}] + {o.offset})"
        raise EmitError(f"{n} is not declared")

    def addr(self, o, width=None):
        """Address expression of a memory operand."""
        if o.kind != "mem":
            raise EmitError("an address in brackets is expected")
        if o.base is None:
            return str(o.offset)
        if o.base.kind == "sym":
            o.base.offset = o.offset
            return self.symbol(o.base)
        e = self.reg(o.base.reg)
        if o.offset == 0:
            return e
        w = o.base.reg.width
        if o.offset > 0:
            return f"({e} + {o.offset})"
        return f"addoff({e}, {o.offset}, {w})"

    # ------------------------------------------------------------------ predicates and results
    def guard(self):
        """Expression of the guard predicate: 'True' or a local holding bool or array."""
        i = self.ins
        if i.pred is None:
            return "True"
        e = f"R[{i.pred.index}]"
        if i.neg:
            e = f"pnot({e})"
        n = self.name()
        self.line(f"{n} = {e}")
        return n

    def open_guard(self):
        """Start ``if p is not False:`` when guarded; returns the predicate expression."""
        p = self.guard()
        if p != "True":
            self.line(f"if {p} is not False:")
            self.indent += 1
        return p

    def open_aligned_guard(self):
        """Like ``open_guard``, for instructions that all lanes execute or none."""
        p = self.guard()
        if p != "True":
            self.line(f"{p} = settle(f, {p})")
            self.line(f"if {p} is not False:")
            self.indent += 1
        return p

    def close_guard(self, p):
        if p != "True":
            self.line("pass")
            self.indent -= 1

    def put(self, o, expr, p="True", width=None):
        """Write an expression to a destination operand under predicate ``p``."""
        if o.kind == "sink":
            self.line(expr)
            return
        if o.kind != "reg":
            raise EmitError("the destination must be a register")
        r = o.reg
        w = width or r.width
        if r.row is not None:
            self.put_row(r, expr, p)
            return
        if p == "True":
            self.line(f"R[{r.index}] = {expr}")
        elif w == 1:
            self.line(f"R[{r.index}] = selp1({p}, {expr}, R[{r.index}])")
        else:
            t = self.let(expr)
            self.line(f"R[{r.index}] = {t} if {p} is True else sel{w}({p}, {t}, R[{r.index}])")

    def put_row(self, r, expr, p):
        """Write one or several rows of the warp's block."""
        rows = getattr(r, "rows", None)
        if rows is None:
            self.line(f"if S[{r.row}]: vwrite(f, {r.row}, {self.pc()})")
            idx = str(r.row)
        else:
            expr = self.let(expr)
            idx = self.rows("write", rows)
        if r.row in self.fenced:
            self.line("f.warp.touched = True")
        key = f"slice({idx.replace(':', ', ')})" if ":" in idx else idx
        if p != "True":
            self.line(f"vset(f, V, {key}, {expr}, {p})")
            return
        n = self.let(expr)
        self.line(f"if f.full: V[{idx}] = {n}")
        self.line(f"else: vset(f, V, {key}, {n}, True)")

    def put_rows(self, outs, expr, p):
        """Write a 2-D array to registers that all live in the warp's block."""
        from .runs import RowBlock

        self.put_row(RowBlock([o.reg for o in outs]), expr, p)

    def alu(self, o, expr, ty, mask=True):
        """Result of integer arithmetic: masked when uniform, then written under the guard."""
        w = WIDTH[ty]
        if not mask:
            self.result(o, expr)
            return
        p = self.open_guard()
        n = self.name()
        self.line(f"{n} = {expr}")
        self.line(f"if {n}.__class__ is int: {n} &= {(1 << w) - 1}")
        self.put_wide(o, n, w, p)
        self.close_guard(p)

    def result(self, o, expr, w=None):
        """Guarded write of an expression that already has the right width."""
        p = self.open_guard()
        if w is None:
            self.put(o, expr, p)
        else:
            self.put_wide(o, expr, w, p)
        self.close_guard(p)

    def put_wide(self, o, expr, w, p):
        """Write a w-bit result to a register that may be wider (loads, cvt)."""
        if o.kind == "reg" and o.reg.width > w:
            expr = f"widen{o.reg.width}({expr})"
        elif o.kind == "reg" and o.reg.width < w:
            raise EmitError(f"{o.reg.name} is too narrow for a {w}-bit result")
        self.put(o, expr, p)

    def need(self, n, m=None):
        """Check the operand count."""
        k = len(self.ins.ops)
        if not n <= k <= (n if m is None else m):
            raise EmitError(
                f"{self.ins.op} takes {n if m is None else f'{n} to {m}'} operands, {k} given"
            )
        return self.ins.ops

    def types(self):
        """Type suffixes of the opcode, in order."""
        return [p for p in self.ins.parts if p in WIDTH and p != "pred" or p == "pred"]

    def mods(self, *known):
        """Check that every part after the head is a type or one of ``known``."""
        for p in self.ins.parts[1:]:
            if p not in WIDTH and p not in known:
                raise EmitError(f"modifier .{p} of {self.ins.parts[0]} is not emulated")
