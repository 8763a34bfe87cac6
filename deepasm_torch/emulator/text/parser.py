"""PTX text to statements: a hand-written scanner, all errors reported in one run.

Traps that shaped it: ``.loc`` and ``.file`` end at the line, not at ``;``; a brace opens a scope
only at the start of a statement; labels end with ``:`` but ``::`` belongs to qualifiers; scopes
redeclare registers and labels; parameter declarations may carry ``.ptr .global .align``.

Device functions are expanded at their calls (`functions`), so recursion is not supported.
"""

import re

from ..errors import EmitError, PtxError
from .declarations import NAME
from .functions import Functions
from .operands import parse_operand, split_top
from .scanner import LINE_DIRECTIVE
from .scope import Scope
from .statements import Entry, Ins, Module, shorten

_LABEL = re.compile(r"([$A-Za-z_%][\w$]*)\s*:(?!:)")
_OPCODE = re.compile(r"[a-z][\w]*(?:(?:\.|::)\w+)*")
_DIRECTIVE = re.compile(r"\.(\w+)")
_LINKAGE = re.compile(r"((?:\.(?:visible|weak|extern|common)\s*)*)\.(entry|func)\b")
_GUARD = re.compile(r"@\s*(!?)\s*([%$A-Za-z_][\w$]*)\s*")
_BODY_SPACE = re.compile(r"\.(shared|local|param|global|const|extern)\b")


class Parser(Functions):
    """Parser of one PTX text; ``parse()`` returns a Module or raises PtxError."""

    def __init__(self, text, name="ptx"):
        super().__init__(text, name)
        self.module = Module()
        self.entry = None
        self.scopes, self.pending = [], []
        self.functions, self.inlining = {}, []

    # ------------------------------------------------------------------ module level
    def parse(self):
        """Parse everything.

        Raises
        ------
        PtxError
            Listing every problem; its ``module`` holds what could be understood.
        """
        bodies = []
        while self.skip_ws():
            start = self.pos
            t = self.text
            if LINE_DIRECTIVE.match(t, start):
                self.line_directive()
                continue
            m = _DIRECTIVE.match(t, start)
            word = m.group(1) if m else None
            if word in ("version", "target", "address_size"):
                self.pos = m.end()
                self.header(word)
            elif word == "section":
                self.pos = t.find("{", start)
                self.match_brace()
            elif word == "pragma":
                self.to_semicolon()
            elif word in ("visible", "weak", "extern", "common", "entry", "func", "alias"):
                entry = self.linkage()
                if entry is not None:
                    bodies.append(entry)
            elif word in ("shared", "global", "const"):
                self.variable(self.to_semicolon(), start, self.module.variables)
            elif word:
                self.error(f"unknown directive .{word}")
                self.pos = m.end()
                self.to_semicolon()
            else:
                self.error(f"unexpected text {t[start : start + 20].split()[0]!r} at module level")
                self.to_semicolon()
        for self.entry, start in bodies:  # after all functions are known
            self.pos, self.loc = start, None
            self.body()
        if self.errors:
            err = PtxError(self.errors, self.name)
            err.module = self.module
            raise err
        return self.module

    def header(self, word):
        """``.version``, ``.target`` (whose options do not matter), ``.address_size``."""
        value = self.word()
        if word == "address_size":
            self.module.address_size = int(value or 64)
            return
        setattr(self.module, word, value)
        while self.skip_ws() and self.text[self.pos] == ",":
            self.pos += 1
            self.word()

    def linkage(self):
        """An entry (returned with the position of its body), a function or a variable."""
        start = self.pos
        m = _LINKAGE.match(self.text, start)
        if not m:
            body = re.sub(r"^\s*(?:\.(?:visible|weak|common)\s*)+", "", self.to_semicolon())
            self.variable(body, start, self.module.variables)
            return None
        self.pos = m.end()
        if m.group(2) == "func":
            self.function(start)
            return None
        self.skip_ws()
        m = NAME.match(self.text, self.pos)
        if not m:
            self.error("entry name expected")
            self.to_semicolon()
            return None
        entry = self.entry = Entry(m.group())
        self.pos = m.end()
        self.skip_ws()
        if self.text[self.pos : self.pos + 1] == "(":
            close = self.text.find(")", self.pos)
            self.parameters(self.text[self.pos + 1 : close], self.pos)
            self.pos = close + 1
        brace = self.text.find("{", self.pos)
        if brace < 0:
            self.error(f"entry {entry.name} has no body")
            self.pos = self.end
            return None
        for d in re.finditer(r"\.(\w+)\s*([0-9][\d,\s]*)?", self.text[self.pos : brace]):
            nums = tuple(int(x) for x in (d.group(2) or "").replace(",", " ").split())
            entry.directives[d.group(1)] = nums
        self.pos = brace
        self.module.entries[entry.name] = entry
        self.match_brace()
        return entry, brace + 1

    # ------------------------------------------------------------------ function body
    def body(self):
        """The statements of ``self.entry``."""
        self.scopes, self.pending = [Scope(self)], []
        self.statements()
        self.resolve_labels()

    def statements(self):
        """Statements up to the brace that closes the innermost scope."""
        depth = len(self.scopes)
        while True:
            if not self.skip_ws():
                self.error(f"entry {self.entry.name}: missing '}}'")
                return
            start = self.pos
            ch = self.text[start]
            if ch == "{":
                self.pos += 1
                self.scopes.append(Scope(self, self.scopes[-1]))
            elif ch == "}":
                self.pos += 1
                self.scopes.pop()
                if len(self.scopes) < depth:
                    return
            elif ch == ";":
                self.pos += 1
            elif ch == ".":
                self.body_directive(start)
            else:
                m = _LABEL.match(self.text, start)
                if m:
                    self.pos = m.end()
                    self.label(m.group(1), start)
                else:
                    self.instruction(start)

    def label(self, name, start=None):
        """Define a label here."""
        if name in self.scopes[-1].labels:
            self.error(f"label {name} is defined twice", start)
        uid = f"{name}@{len(self.entry.body)}"
        self.scopes[-1].labels[name] = uid
        self.entry.body.append(("label", uid))

    def body_directive(self, start):
        """A directive inside a body."""
        t = self.text
        if LINE_DIRECTIVE.match(t, start):
            self.line_directive()
            return
        s = self.to_semicolon()
        if s.startswith(".reg"):
            self.registers(s, start)
            return
        if s.startswith(".branchtargets"):
            self.branch_targets(s)
            return
        if s.startswith((".pragma", ".callprototype")):
            return
        m = _BODY_SPACE.match(s)
        if not m:
            self.error(f"unknown directive {s.split()[0]}", start)
        elif m.group(1) in ("local", "param"):
            self.local(s, start)
        elif m.group(1) in ("shared", "extern"):
            self.variable(s, start, self.entry.shared)
        else:
            self.variable(s, start, self.module.variables)

    def branch_targets(self, s):
        """The table behind ``brx.idx``: it belongs to the label in front of it."""
        names = split_top(s[len(".branchtargets") :].strip())
        if self.entry.body and not isinstance(self.entry.body[-1], Ins):
            uid = self.entry.body[-1][1]
            self.entry.tables[uid] = (names, self.scopes[-1])

    def local(self, s, start):
        """A per-thread variable: ``.local``, or a ``.param`` variable of a call."""
        v = self.declaration(s, start)
        if v is None:
            return
        e = self.entry
        v.offset = -(-e.local_size // v.align) * v.align
        e.local_size = v.offset + v.size
        name = v.name if v.name not in e.locals else f"{v.name}@{len(e.locals)}"
        self.scopes[-1].symbols[v.name] = name
        v.name = name
        e.locals[name] = v

    def instruction(self, start):
        """One instruction, up to its semicolon."""
        body = self.to_semicolon()
        line, col = self.where(start)
        s = body.strip()
        pred, neg = None, False
        scope = self.scopes[-1]
        try:
            if s[0] == "@":
                m = _GUARD.match(s)
                if not m:
                    raise EmitError("cannot parse guard predicate")
                neg = m.group(1) == "!"
                pred = scope.reg(m.group(2))
                if pred is None:
                    raise EmitError(f"predicate {m.group(2)} is not declared")
                if pred.width != 1:
                    raise EmitError(f"guard {m.group(2)} is not a .pred register")
                s = s[m.end() :]
            m = _OPCODE.match(s)
            if not m:
                raise EmitError(f"cannot parse instruction {s[:30]!r}")
            op = m.group()
            rest = s[m.end() :].strip()
            where, text = self.source(line), shorten(" ".join(body.split()))
            if op == "call" or op.startswith("call."):
                self.call(rest, Ins(op, [], pred, neg, line, col, where, text))
                return
            ops = [parse_operand(x, scope) for x in split_top(rest)]
        except EmitError as err:
            self.errors.append((line, col, str(err)))
            return
        if self.inlining and (op == "ret" or op.startswith("ret.")):
            op, ops = "bra", [parse_operand(self.inlining[-1].end_label, scope)]
        ins = Ins(op, ops, pred, neg, line, col, where, text)
        if any(o.kind == "label" for o in ops):
            self.pending.append((ins, scope))
        self.entry.body.append(ins)

    def resolve_labels(self):
        """Connect label operands and branch tables with the labels they name."""
        for ins, scope in self.pending:
            for o in ins.ops:
                if o.kind == "label":
                    o.value = scope.label(o.name)
                    if o.value is None:
                        self.errors.append((ins.line, ins.col, f"{o.name} is not declared"))
        for uid, (names, scope) in self.entry.tables.items():
            self.entry.tables[uid] = [scope.label(n) for n in names]


def parse(text, name="ptx"):
    """Parse PTX text into a Module; raises PtxError listing every problem."""
    return Parser(text, name).parse()
