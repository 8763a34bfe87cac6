"""Scopes of a function body: registers, labels and variables by name."""

import re

_NUMBERED = re.compile(r"(.*?)(\d+)$")


class Scope:
    """Names between a pair of braces; unknown names are looked up in the parent."""

    def __init__(self, parser, parent=None):
        self.parser, self.parent = parser, parent
        self.regs, self.ranges, self.labels, self.symbols = {}, {}, {}, {}
        self.operands = {}  # parsed simple operands by text

    def reg(self, name):
        """Register by name, or None. ``%r<8>`` declares %r0 to %r7, made when first used."""
        s = self
        while s is not None:
            r = s.regs.get(name)
            if r is None and s.ranges:
                r = s._numbered(name)
            if r is not None:
                return r
            s = s.parent
        return None

    def _numbered(self, name):
        m = _NUMBERED.match(name)
        # the numeric suffix may share digits with the prefix: try every split
        for cut in range(m.start(2), len(name)) if m else ():
            rng = self.ranges.get(name[:cut])
            num = name[cut:]
            if rng and int(num) < rng[0] and str(int(num)) == num:
                r = self.regs[name] = self.parser.new_reg(name, rng[1], rng[2])
                return r
        return None

    def symbol(self, name):
        """Unique name of a variable, or None."""
        s = self
        while s is not None:
            if name in s.symbols:
                return s.symbols[name]
            s = s.parent
        e = self.parser.entry
        known = (e.params, e.shared, self.parser.module.variables)
        return name if any(name in t for t in known) else None

    def label(self, name):
        """Unique name of a label, or None."""
        s = self
        while s is not None:
            if name in s.labels:
                return s.labels[name]
            s = s.parent
        return None
