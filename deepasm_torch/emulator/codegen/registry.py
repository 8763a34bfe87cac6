"""Tables: opcode to emitter, and names that generated code may use."""

import functools

import numpy as np

HANDLERS = {}  # opcode head -> (emit function, class, blocking predicate)


RUNTIME = {"np": np}  # names that generated code may use


BLOCKED, EXITED, SPLIT = -1, -2, -3


def op(*names, cls="alu", blocking=None):
    """Register the emitter of one or more opcode heads (longest dotted match wins)."""

    def deco(fn):
        for n in names:
            HANDLERS[n] = (fn, cls, blocking)
        return fn

    return deco


def rt(fn):
    """Make a function callable from generated code."""
    RUNTIME[fn.__name__] = fn
    return fn


@functools.cache
def find_handler(opcode):
    """Handler record (emitter, counter class, blocking predicate) for an opcode, or None."""
    parts = opcode.split(".")
    for n in range(min(len(parts), 4), 0, -1):
        h = HANDLERS.get(".".join(parts[:n]))
        if h is not None:
            return h
    return None


def is_signed(ty):
    return ty[0] == "s"
