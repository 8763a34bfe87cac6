"""What a parsed PTX text consists of: instructions, variables, entries, modules."""

import re

#: bits of each fundamental type
WIDTH = {
    "pred": 1,
    **dict.fromkeys(("b8", "u8", "s8"), 8),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 16),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 32),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 64),
    "b128": 128,
}


def shorten(text, limit=160):
    """Instruction text for messages: long register lists are cut."""
    text = re.sub(r"\{([^{},]+),[^{}]{60,},([^{},]+)\}", r"{\1, ...,\2}", text)
    return text if len(text) <= limit else text[:limit] + " ..."


class Ins:
    """One instruction.

    Attributes
    ----------
    op : str
        Full opcode; ``parts`` is it split at dots.
    pred, neg : Reg or None, bool
        Guard predicate and whether it is negated.
    ops : list of Operand
    line, col : int
        Position in the PTX text.
    where : str
        Template ``path:line`` if the text carries markers or ``.loc``, else ``ptx:line``.
    """

    __slots__ = ("col", "idx", "line", "neg", "op", "ops", "parts", "pred", "text", "where")

    def __init__(self, op, ops, pred, neg, line, col, where, text):
        self.op, self.ops, self.pred, self.neg = op, ops, pred, neg
        self.parts = op.split(".")
        self.line, self.col, self.where, self.text = line, col, where, text
        self.idx = -1


class Variable:
    """A module- or function-level variable (``.shared``, ``.global``, ``.const``, ``.param``)."""

    def __init__(self, space, name, align, size, init=None, extern=False):
        self.space, self.name, self.align, self.size = space, name, align, size
        self.init, self.extern = init, extern
        self.offset = None


class Entry:
    """A kernel: parameters, directives, statements (``("label", name)`` or ``Ins``)."""

    def __init__(self, name):
        self.name = name
        self.params = {}
        self.param_size = 0
        self.directives = {}
        self.body = []
        self.regs = []
        self.shared = {}
        self.locals = {}
        self.local_size = 0
        self.tables = {}  # label of a .branchtargets directive -> labels


class Module:
    """Parsed PTX text: ``version``, ``target``, ``entries`` and ``variables``."""

    def __init__(self):
        self.version, self.target, self.address_size = None, None, 64
        self.entries, self.variables = {}, {}
