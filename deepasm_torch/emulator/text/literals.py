"""Integer and floating literals and constant expressions of PTX."""

import ast
import operator
import re
import struct

from ..errors import EmitError

_OPS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def parse_int(text):
    """Integer literal of PTX (decimal, hex, octal, binary, U suffix, sign) or None."""
    t = text.replace(" ", "")
    sign = 1
    while t[:1] in ("-", "+"):
        sign, t = (-sign if t[0] == "-" else sign), t[1:]
    inv = t[:1] == "~"
    if inv:
        t = t[1:]
    t = t.rstrip("Uu") if t[:2].lower() != "0f" else t
    if not t or not t[0].isdigit():
        return None
    try:
        if t[:2] in ("0x", "0X"):
            v = int(t, 16)
        elif t[:2] in ("0b", "0B"):
            v = int(t, 2)
        elif t[0] == "0" and t.isdigit() and len(t) > 1:
            v = int(t, 8)
        else:
            v = int(t)
    except ValueError:
        return None
    v = ~v if inv else v
    return sign * v


def parse_float(text):
    """Floating literal: ``("f32", bits)``, ``("f64", bits)``, a Python float, or None."""
    t = text.strip()
    neg = t.startswith("-")
    b = t.lstrip("+-").strip()
    if b[:2] in ("0f", "0F") and len(b) == 10:
        return ("f32", int.from_bytes(bytes.fromhex(b[2:]), "big") ^ (0x80000000 if neg else 0))
    if b[:2] in ("0d", "0D") and len(b) == 18:
        return ("f64", int.from_bytes(bytes.fromhex(b[2:]), "big") ^ (1 << 63 if neg else 0))
    if re.fullmatch(r"\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+", b):
        return -float(b) if neg else float(b)
    return None


def const_expr(text):
    """Value of an integer constant expression such as ``(64*8)+16``, or None."""
    if not re.fullmatch(r"[\s0-9a-fA-FxXuU()+\-*/%<>&|^~]+", text) or re.search(
        r"(?<!\w)[A-Za-z]", text
    ):
        return None
    try:
        tree = ast.parse(re.sub(r"(?<=[0-9a-fA-F])[uU]\b", "", text.strip()), mode="eval").body
    except SyntaxError:
        return None

    def ev(n):
        if isinstance(n, ast.Constant) and isinstance(n.value, int):
            return n.value
        if isinstance(n, ast.BinOp) and type(n.op) in _OPS:
            return _OPS[type(n.op)](ev(n.left), ev(n.right))
        if isinstance(n, ast.UnaryOp):
            v = ev(n.operand)
            return -v if isinstance(n.op, ast.USub) else ~v if isinstance(n.op, ast.Invert) else v
        raise EmitError(f"constant expression {text!r}")

    return ev(tree)


def float_bits(value, width):
    """Bits of a floating literal at a width of 16 (f16), 32 or 64."""
    if isinstance(value, tuple):
        kind, bits = value
        if (kind == "f32") == (width == 32):
            return bits
        val = (
            struct.unpack("<f", struct.pack("<I", bits))[0]
            if kind == "f32"
            else (struct.unpack("<d", struct.pack("<Q", bits))[0])
        )
    else:
        val = value
    if width == 32:
        try:
            return struct.unpack("<I", struct.pack("<f", val))[0]
        except OverflowError:
            return 0x7F800000 if val > 0 else 0xFF800000
    if width == 64:
        return struct.unpack("<Q", struct.pack("<d", val))[0]
    if width == 16:
        return struct.unpack("<H", struct.pack("<e", val))[0]
    raise EmitError(f"floating literal where {width} bits are expected")
