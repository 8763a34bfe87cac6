"""Device functions (``.func``): recorded when met, expanded at every call.

The body is parsed again in a scope of its own for each call, with its parameters bound to the
variables or registers of the call. ``ret`` becomes a branch behind the expansion. Recursive and
indirect calls, and functions without a body in the text, are errors.
"""

import re

from ..errors import EmitError
from .declarations import NAME, Declarations
from .operands import Operand, parse_operand, split_top
from .scope import Scope
from .statements import Ins

_CALL = re.compile(
    r"(?:\(([^()]*)\)\s*,\s*)?([%$A-Za-z_][\w$]*)\s*(?:,\s*\(([^()]*)\)\s*)?(,.*)?$", re.DOTALL
)


class Function:
    """A recorded ``.func``: formal results and parameters, position of its body."""

    __slots__ = ("body", "end_label", "name", "params", "results")

    def __init__(self, name, results, params, body):
        self.name, self.results, self.params, self.body = name, results, params, body
        self.end_label = f"$end_of_{name}"


class Functions(Declarations):
    """Parser part that knows functions and calls."""

    def function(self, start):
        """Record a function; the position is behind ``.func``."""
        t = self.text
        self.skip_ws()
        results = ""
        if t.startswith("(", self.pos):
            close = t.find(")", self.pos)
            results, self.pos = t[self.pos + 1 : close], close + 1
            self.skip_ws()
        m = NAME.match(t, self.pos)
        if not m:
            self.error("function name expected")
            self.to_semicolon()
            return
        self.pos = m.end()
        params = ""
        self.skip_ws()
        if t.startswith("(", self.pos):
            close = t.find(")", self.pos)
            params, self.pos = t[self.pos + 1 : close], close + 1
        brace, semi = t.find("{", self.pos), t.find(";", self.pos)
        if brace < 0 or 0 <= semi < brace:  # a declaration
            self.to_semicolon()
            self.functions.setdefault(m.group(), None)
            return
        formal = [self._formals(x, start) for x in (results, params)]
        self.functions[m.group()] = Function(m.group(), *formal, brace + 1)
        self.pos = brace
        self.match_brace()

    def _formals(self, text, pos):
        """Formal parameters: (name, register declaration or None)."""
        out = []
        for item in split_top(text.strip()):
            if not item:
                continue
            if item.lstrip().startswith(".reg"):
                out.append((NAME.search(item.split()[-1]).group(), item))
                continue
            v = self.declaration(item, pos)
            if v is not None:
                out.append((v.name, None))
        return out

    def call(self, text, ins):
        """Expand a call."""
        m = _CALL.match(text)
        if not m or m.group(4):
            raise EmitError("indirect calls are not emulated")
        if ins.pred is not None:
            raise EmitError("a guard predicate on call is not emulated (branch around it)")
        fn = self.functions.get(m.group(2))
        if fn is None:
            raise EmitError(f"function {m.group(2)} has no body in this text")
        if fn in self.inlining:
            raise EmitError(f"{fn.name} calls itself: recursion is not emulated")
        actual = [split_top((m.group(k) or "").strip()) for k in (1, 3)]
        if [len(x) for x in actual] != [len(fn.results), len(fn.params)]:
            raise EmitError(
                f"{fn.name} takes {len(fn.params)} parameters and gives {len(fn.results)} results"
            )
        caller = self.scopes[-1]
        own = Scope(self)  # a function sees the module, not its caller
        back = self._bind(fn, actual, caller, own, ins)
        saved = self.pos, self.scopes, self.loc
        self.inlining.append(fn)
        self.pos, self.scopes = fn.body, [own, Scope(self, own)]
        self.statements()
        self.inlining.pop()
        self.pos, self.scopes, self.loc = saved[0], [own], saved[2]
        self.label(fn.end_label)
        self.scopes = saved[1]
        for dst, src in back:
            self._move(dst, src, ins)

    def _bind(self, fn, actual, caller, own, ins):
        """Bind actual to formal parameters; returns the moves to make after the call."""
        back = []
        groups = ((fn.results, actual[0], True), (fn.params, actual[1], False))
        for formals, given, is_result in groups:
            for (name, reg), text in zip(formals, given):
                if reg is None:
                    sym = caller.symbol(text)
                    if sym is None:
                        raise EmitError(f"{text} is not a .param variable")
                    own.symbols[name] = sym
                    continue
                scopes, self.scopes = self.scopes, [own]
                self.registers(reg, ins.line)
                self.scopes = scopes
                formal = Operand("reg", reg=own.reg(name))
                value = parse_operand(text, caller)
                if is_result:
                    back.append((value, formal))
                else:
                    self._move(formal, value, ins)
        return back

    def _move(self, dst, src, ins):
        op = f"mov.b{dst.reg.width}" if dst.reg.width > 1 else "mov.pred"
        made = Ins(op, [dst, src], None, False, ins.line, ins.col, ins.where, ins.text)
        self.entry.body.append(made)
