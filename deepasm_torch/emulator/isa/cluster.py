"""Addresses across the CTAs of a cluster: mapa, getctarank, isspacep."""

import numpy as np

from ..codegen.registry import op, rt
from ..values import U
from .other_spaces import window


@rt
def mapa(f, a, rank, wide):
    """Shared address of the same variable in another CTA of the cluster."""
    keep = 0xFFFFFFFF_00FFFFFF if wide else 0x00FFFFFF
    r = rank << 24 if rank.__class__ is int else rank.astype(U[64 if wide else 32]) << 24
    return (a & keep) | r


@op("mapa", cls="alu")
def emit_mapa(cg, ins):
    ty = ins.parts[-1]
    d, a, r = cg.need(3)
    cg.result(d, f"mapa(f, {cg.src(a, ty)}, {cg.src(r, 'u32')}, {ty == 'u64'})")


@rt
def getctarank(a):
    return (a >> 24) & 0xFF if a.__class__ is int else ((a >> 24) & 0xFF).astype(np.uint32)


@op("getctarank", cls="alu")
def emit_getctarank(cg, ins):
    d, a = cg.need(2)
    cg.result(d, f"getctarank({cg.src(a, ins.parts[-1])})")


@op("isspacep", cls="alu")
def emit_isspacep(cg, ins):
    d, a = cg.need(2)
    cg.result(d, f"isspace({cg.src(a, 'u64')}, {ins.parts[1].split('::')[0]!r})")


@rt
def isspace(a, space):
    """Predicate: does a generic address lie in a state space?"""
    if a.__class__ is int:
        return window(a)[0] == space
    return np.array([window(int(x))[0] == space for x in a])
