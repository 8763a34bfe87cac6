"""Which registers an instruction reads and which it writes."""

from __future__ import annotations

#: opcodes without a destination
_NONE = frozenset(
    "bra brx bar barrier ret exit trap brkpt fence membar cp prefetch prefetchu st stmatrix red"
    " setmaxnreg griddepcontrol nanosleep pmevent discard applypriority tensormap wgmma sust sured"
    " stackrestore call".split()
)
#: second parts that make an opcode of the family have no destination
_NONE_PARTS = {
    "mbarrier": ("init", "inval", "expect_tx", "complete_tx"),
    "wmma": ("store",),
    "multimem": ("st", "red"),
    "clusterlaunchcontrol": ("try_cancel",),
}


def registers(operand) -> list:
    """Registers anywhere in an operand."""
    if operand is None:
        return []
    kind = operand.kind
    if kind == "reg":
        return [operand.reg]
    if kind in ("vec", "pair"):
        return [r for item in operand.items for r in registers(item)]
    if kind == "mem":
        return registers(operand.base) + registers(operand.coords)
    return []


def destination(ins):
    """The operand that the instruction writes, or None; wgmma's accumulators count as written."""
    ops = ins.ops
    if not ops:
        return None
    head, parts = ins.parts[0], ins.parts
    if head == "wgmma":
        return ops[0] if len(parts) > 1 and parts[1] == "mma_async" else None
    if head in ("bar", "barrier") and "red" in parts[1:3]:
        return ops[0]
    if head == "tcgen05":
        return ops[0] if parts[1] == "ld" else None
    if head in _NONE or (len(parts) > 1 and parts[1] in _NONE_PARTS.get(head, ())):
        return None
    return ops[0] if ops[0].kind in ("reg", "vec", "pair") else None


def writes(ins) -> list:
    """Registers that the instruction writes."""
    return registers(destination(ins))


def reads(ins) -> list:
    """Registers that the instruction reads, its guard included.

    Accumulators of wgmma are not: with scale-d false it does not read them.
    """
    target = destination(ins)
    out = [ins.pred] if ins.pred is not None else []
    for k, operand in enumerate(ins.ops):
        if k == 0 and operand is target:
            continue
        out += registers(operand)
    return out
