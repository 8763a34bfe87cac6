"""Hazard reports: what was found, where in the template, by which CTA and warp."""

from .errors import TooManyHazards


class Hazard:
    """One finding.

    Attributes
    ----------
    kind : str
        Short name of the rule, e.g. ``"race-raw"``, ``"uninit-register"``, ``"deadlock"``.
    where : str
        ``path:line`` of the template, or ``ptx:line``.
    line : int
        Line in the PTX text.
    text : str
        The instruction.
    cta, warp : tuple of int or None, int or None
    address : int or None
    message : str
    count : int
        How often the same rule fired at the same instruction.
    """

    __slots__ = ("address", "count", "cta", "kind", "line", "message", "text", "warp", "where")

    def __init__(self, kind, where, line, text, cta, warp, address, message):
        self.kind, self.where, self.line, self.text = kind, where, line, text
        self.cta, self.warp, self.address, self.message = cta, warp, address, message
        self.count = 1

    def __str__(self):
        a = f" at {self.address:#x}" if self.address is not None else ""
        w = f" warp {self.warp}" if self.warp is not None else ""
        c = f" CTA {self.cta}" if self.cta is not None else ""
        n = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.where}: {self.kind}:{c}{w}{a}: {self.message}{n}\n    {self.text}"

    __repr__ = __str__

    def as_dict(self):
        """Plain dict, for JSON."""
        return {k: getattr(self, k) for k in self.__slots__}


class HazardLog:
    """Collects hazards: the first of each (rule, instruction) in full, the rest counted."""

    def __init__(self, program, limit=20, enabled=True):
        self.program, self.limit, self.enabled = program, limit, enabled
        self.items, self.index = [], {}

    def add(self, kind, pc, message, cta=None, warp=None, address=None):
        """Record a finding at instruction index ``pc`` (or None)."""
        key = (kind, pc)
        h = self.index.get(key)
        if h is not None:
            h.count += 1
            if h.count > 10000:
                raise TooManyHazards
            return
        ins = self.program.ins[pc] if pc is not None else None
        h = Hazard(
            kind,
            ins.where if ins else "-",
            ins.line if ins else 0,
            ins.text if ins else "",
            cta,
            warp,
            address,
            message,
        )
        self.index[key] = h
        self.items.append(h)
        if len(self.items) >= self.limit:
            raise TooManyHazards

    def at(self, kind, f, pc, message, address=None):
        """Record a finding of a fragment."""
        self.add(kind, pc, message, f.cta.id3, f.warp.index, address)
