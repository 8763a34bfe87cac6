"""Operands of PTX instructions: immediates, registers, vectors, addresses."""

import re

from ..errors import EmitError
from .literals import const_expr, parse_float, parse_int

SPECIAL = re.compile(
    r"%(?:(?:n?tid|n?ctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]"
    r"|laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock_hi|clock64|globaltimer|globaltimer_lo"
    r"|globaltimer_hi|lanemask_(?:eq|le|lt|ge|gt)|cluster_ctarank|cluster_nctarank"
    r"|is_explicit_cluster|dynamic_smem_size|total_smem_size|aggr_smem_size"
    r"|reserved_smem_offset_(?:begin|end|cap)|pm\d+|envreg\d+)$"
)


_WORD = re.compile(r"[%$A-Za-z_][\w$]*$")


class Reg:
    """A virtual register: bits of a width; the opcode decides what they mean."""

    __slots__ = ("index", "kind", "name", "row", "width")

    def __init__(self, index, name, width, kind):
        self.index, self.name, self.width, self.kind = index, name, width, kind
        self.row = None  # row in the fragment's 2-D block, for tensor-core operands

    def __repr__(self):
        return self.name


class Operand:
    """One parsed operand.

    ``kind`` is one of ``reg``, ``imm`` (value: int), ``fimm`` (value: float bits as
    ``(32 or 64, bits)`` or a Python float), ``vec`` (items), ``mem`` (base, offset, coords),
    ``sreg`` (name), ``sym`` (name, offset), ``sink``, ``pair`` (items) and ``label``.
    """

    __slots__ = ("base", "coords", "items", "kind", "name", "neg", "offset", "reg", "value")

    def __init__(self, kind, **kw):
        self.kind = kind
        self.neg = False
        self.reg = self.value = self.items = self.base = self.coords = self.name = None
        self.offset = 0
        for k, v in kw.items():
            setattr(self, k, v)

    def __repr__(self):
        return f"<{self.kind} {self.reg or self.value or self.items or self.name or self.base}>"


def split_top(text):
    """Split at commas outside brackets; return a list of stripped strings."""
    if not text:
        return []
    out, depth, start = [], 0, 0
    for i, ch in enumerate(text):
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
            if depth < 0:
                raise EmitError(f"unbalanced {ch!r}")
        elif ch == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise EmitError("unbalanced bracket")
    out.append(text[start:].strip())
    return out


def parse_operand(text, scope):
    """Parse one operand.

    Parameters
    ----------
    text : str
    scope : Scope
    """
    t = text.strip()
    known = scope.operands.get(t)  # registers and immediates: nothing changes them later
    if known is not None:
        return known
    o = _parse(t, scope)
    if o.kind in ("reg", "imm", "fimm", "sreg") and not o.neg:
        scope.operands[t] = o
    return o


def _parse(t, scope):
    if not t:
        raise EmitError("empty operand")
    c = t[0]
    if c == "{":
        if t[-1] != "}":
            raise EmitError(f"bad vector operand {t!r}")
        return Operand("vec", items=[parse_operand(x, scope) for x in split_top(t[1:-1].strip())])
    if c == "[":
        if t[-1] != "]":
            raise EmitError(f"bad address operand {t!r}")
        parts = split_top(t[1:-1].strip())
        base = _address(parts[0], scope)
        op = Operand("mem", base=base[0], offset=base[1])
        if len(parts) == 2:
            op.coords = parse_operand(parts[1], scope)
        elif len(parts) > 2:
            raise EmitError(f"bad address operand {t!r}")
        return op
    if t == "_":
        return Operand("sink")
    if c == "!":
        op = _parse(t[1:].strip(), scope)
        op.neg = True
        return op
    if "|" in t and c in "%_":
        return Operand("pair", items=[parse_operand(x, scope) for x in t.split("|")])
    v = parse_int(t)
    if v is not None:
        return Operand("imm", value=v)
    f = parse_float(t)
    if f is not None:
        return Operand("fimm", value=f)
    if SPECIAL.match(t):
        return Operand("sreg", name=t)
    if _WORD.match(t):
        reg = scope.reg(t)
        if reg is not None:
            return Operand("reg", reg=reg)
        sym = scope.symbol(t)
        if sym is not None:
            return Operand("sym", name=sym)
        if c == "%":
            raise EmitError(f"register {t} is not declared")
        return Operand("label", name=t)
    e = const_expr(t)
    if e is not None:
        return Operand("imm", value=e)
    base, off = _address(t, scope)
    if base is not None and base.kind == "sym":
        base.offset = off
        return base
    if base is not None and off == 0:
        return base
    raise EmitError(f"cannot parse operand {t!r}")


def _address(text, scope):
    """``base + constant``: return (Operand or None, int)."""
    t = text.strip()
    e = const_expr(t)
    if e is not None:
        return None, e
    m = re.match(r"([%$A-Za-z_][\w$]*)\s*([+-].*)?$", t, re.DOTALL)
    if not m:
        raise EmitError(f"cannot parse address {t!r}")
    name, rest = m.groups()
    off = 0
    if rest:
        off = const_expr(rest if rest[0] == "-" else rest[1:])
        if off is None:
            raise EmitError(f"address offset {rest!r} is not a constant")
    base = parse_operand(name, scope)
    if base.kind not in ("reg", "sym"):
        raise EmitError(f"{name} is not a declared register or variable")
    return base, off
