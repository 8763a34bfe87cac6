"""Arithmetic on what is known about registers; `values` says what a value is."""

from __future__ import annotations

#: how a value varies: the same in the block, in a warp, thread index + multiple of 32, in any way
BLOCK, WARP, THREAD, LANE = range(4)

UNKNOWN = (None, None, BLOCK, False)
ANY_LANE = (None, None, LANE, False)
_LIMIT = 1 << 32
_COMPARE = {
    "lt": lambda a, b: True if a[1] < b[0] else False if a[0] >= b[1] else None,
    "le": lambda a, b: True if a[1] <= b[0] else False if a[0] > b[1] else None,
}


def constant_of(value) -> int | None:
    """The one number a value can be, or None."""
    return value[0] if value[0] is not None and value[0] == value[1] else None


def constant(n, vary=BLOCK, elect=False):
    return (n, n, vary, elect)


def evaluate(ins, v):
    """Value of an instruction's result from the values of its sources."""
    head, parts = ins.parts[0], ins.parts
    vary = max((x[2] for x in v), default=BLOCK)
    elect = any(x[3] for x in v)
    unknown = (None, None, LANE if vary == THREAD else vary, elect)
    if head in ("mov", "cvta"):
        return v[0] if v and ins.ops[-1].kind not in ("vec", "sym") else unknown
    if head == "cvt":
        narrow = parts[-2:-1] and parts[-2] in ("u8", "s8", "u16", "s16")
        return unknown if narrow or not v else v[0]
    if head == "elect":
        return (None, None, LANE, True)
    if head in ("vote", "activemask", "redux") or (head == "mbarrier" and "wait" in parts[1]):
        return (None, None, WARP, False)
    if head == "shfl":
        one_lane = "idx" in parts and len(v) > 1 and constant_of(v[1]) is not None
        return (None, None, WARP if one_lane else LANE, elect)
    if head in ("atom", "match"):
        return ANY_LANE
    if head in ("bar", "barrier"):
        return UNKNOWN
    if head == "setp":
        return _setp(ins, v, unknown)
    if head == "selp" and len(v) == 3:
        if v[2][0] is not None and v[2][0] == v[2][1]:
            return v[0] if v[2][0] else v[1]
        return unknown
    if parts[-1] == "pred" or any(x[0] is None for x in v) or not v:
        return _partial(head, parts, v, unknown)
    return _integer(head, parts, v, unknown)


def _partial(head, parts, v, unknown):
    """Predicates, and integers with an unknown operand whose alignment still matters."""
    if parts[-1] == "pred":
        known = [x[0] for x in v if x[0] is not None and x[0] == x[1]]
        if head == "and" and 0 in known:
            return (0, 0, unknown[2], unknown[3])
        if head == "or" and 1 in known:
            return (1, 1, unknown[2], unknown[3])
        if head in ("and", "or") and len(known) == len(v):
            return (known[0], known[0], unknown[2], unknown[3])
        if head == "not" and known:
            return (1 - known[0], 1 - known[0], unknown[2], unknown[3])
        return unknown
    if len(v) == 2 and v[0][2] == THREAD and v[0][0] is None:
        exact = v[1][0] if v[1][0] == v[1][1] else None
        if head == "shr" and exact is not None and exact >= 5:
            return (None, None, WARP, unknown[3])
        if head == "and" and exact is not None and exact % 32 == 0:
            return (None, None, WARP, unknown[3])
    return unknown


def _integer(head, parts, v, unknown):
    """Interval arithmetic where every operand has one."""
    elect, a = unknown[3], v[0]
    vary = max(x[2] for x in v)
    if len(v) == 1:
        return unknown
    b = v[1]
    exact = b[0] if b[0] == b[1] else None
    if head == "shr" and exact is not None:
        below = exact >= 5 and vary == THREAD
        return (a[0] >> exact, a[1] >> exact, WARP if below else unknown[2], elect)
    if head == "and" and exact is not None:
        if a[0] == a[1]:
            return (a[0] & exact, a[0] & exact, vary, elect)
        if vary == THREAD:
            if exact % 32 == 0:
                lo, hi = a[0] & exact, a[1] & exact
                fixed = a[0] >> 5 == a[1] >> 5
                return (lo if fixed else 0, hi if fixed else exact, WARP, elect)
            if exact % 32 == 31 and exact & (exact + 1) == 0:
                inside = a[0] & ~exact == a[1] & ~exact
                lo, hi = (a[0] & exact, a[1] & exact) if inside else (0, exact)
                return (lo, hi, THREAD, elect)
        return (0, min(a[1], exact), unknown[2], elect)
    keeps = vary == THREAD and sum(x[2] == THREAD for x in v) == 1
    if head == "add":
        aligned = keeps and all(x[2] == THREAD or (x[0] == x[1] and x[0] % 32 == 0) for x in v)
        return _bounded(a[0] + b[0], a[1] + b[1], THREAD if aligned else unknown[2], elect)
    if head == "sub" and a[0] >= b[1]:
        aligned = keeps and a[2] == THREAD and exact is not None and exact % 32 == 0
        return _bounded(a[0] - b[1], a[1] - b[0], THREAD if aligned else unknown[2], elect)
    if head == "mul" and "hi" not in parts:
        return _bounded(a[0] * b[0], a[1] * b[1], unknown[2], elect)
    if head == "mad" and "hi" not in parts and len(v) == 3:
        c = v[2]
        return _bounded(a[0] * b[0] + c[0], a[1] * b[1] + c[1], unknown[2], elect)
    if head == "shl" and exact is not None and exact < 32:
        return _bounded(a[0] << exact, a[1] << exact, unknown[2], elect)
    if head == "div" and exact:
        below = exact % 32 == 0 and vary == THREAD
        return (a[0] // exact, a[1] // exact, WARP if below else unknown[2], elect)
    if head in ("or", "xor", "rem") and a[0] == a[1] and exact is not None:
        if head == "rem":
            return constant(a[0] % exact, vary, elect) if exact else unknown
        n = a[0] | exact if head == "or" else a[0] ^ exact
        return constant(n, vary, elect)
    if head in ("min", "max"):
        pick = min if head == "min" else max
        return (pick(a[0], b[0]), pick(a[1], b[1]), unknown[2], elect)
    return unknown


def _bounded(lo, hi, vary, elect):
    return (lo, hi, vary, elect) if hi < _LIMIT else (None, None, vary, elect)


def _setp(ins, v, unknown):
    """Comparison: known, or whether all lanes of a warp agree."""
    if len(v) < 2 or ins.parts[-1][0] == "f":
        return unknown
    a, b = v[0], v[1]
    vary = max(x[2] for x in v)
    op = ins.parts[1]
    if vary == THREAD and len(v) == 2:
        exact = b[0] if b[0] == b[1] else None
        ordered = (op in ("lt", "ge", "lo", "hs") and exact is not None and exact % 32 == 0) or (
            op in ("le", "gt", "ls", "hi") and exact is not None and exact % 32 == 31
        )
        vary = WARP if ordered and a[2] == THREAD else LANE
    elif vary == THREAD:
        vary = LANE
    result = None
    if a[0] is not None and b[0] is not None and len(v) == 2:
        base, flip = {
            "eq": ("eq", False), "ne": ("eq", True), "lt": ("lt", False), "lo": ("lt", False),
            "ge": ("lt", True), "hs": ("lt", True), "le": ("le", False), "ls": ("le", False),
            "gt": ("le", True), "hi": ("le", True),
        }.get(op, (None, False))  # fmt: skip
        if base == "eq":
            if a[1] < b[0] or b[1] < a[0]:
                result = False
            elif a[0] == a[1] == b[0] == b[1]:
                result = True
        elif base is not None:
            result = _COMPARE[base](a, b)
        if result is not None:
            return constant(int(result != flip), vary, unknown[3])
    return (None, None, vary, unknown[3])
