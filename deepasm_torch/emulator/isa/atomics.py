"""atom, red and red.async on every space.

Lanes that meet at one address are applied in lane order. Floating addition rounds to nearest;
f32 additions in global memory flush denormals, in shared memory they do not (PTX ISA).
"""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..global_shadow import Accessor
from ..text.statements import WIDTH
from ..values import S, U
from .access import pattern
from .float_formats import decode, encode, flush32
from .global_memory import global_setup
from .loads import SPACES, addr32
from .other_spaces import shared_offset, window
from .shared import POISON

KINDS = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")


# ---------------------------------------------------------------------------- arithmetic
def combine(kind, ty, old, x, cmp, flush):
    """New contents: unsigned arrays of the type's width in, the same out."""
    w = WIDTH[ty]
    if kind == "exch":
        return x
    if kind == "cas":
        return np.where(old == cmp, x, old).astype(U[w])
    if ty in FLOATS:
        return _combine_float(kind, ty, old, x, flush)
    if kind in ("and", "or", "xor"):
        fn = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind]
        return fn(old, x)
    if kind == "inc":
        return np.where(old >= x, 0, old + U[w](1)).astype(U[w])
    if kind == "dec":
        return np.where((old == 0) | (old > x), x, old - U[w](1)).astype(U[w])
    if kind == "add":
        return old + x
    t = (S if ty[0] == "s" else U)[w]
    return (np.minimum if kind == "min" else np.maximum)(old.view(t), x.view(t)).view(U[w])


def _combine_float(kind, ty, old, x, flush):
    shape = old.shape
    a, b = decode(old, ty), decode(x, ty)
    if flush and ty == "f32":
        a, b = flush32(old).view(np.float32), flush32(x).view(np.float32)
    r = {"add": np.add, "min": np.fmin, "max": np.fmax}[kind](a, b)
    out = np.atleast_1d(np.asarray(encode(r, ty, ftz=flush and ty == "f32"), U[WIDTH[ty]]))
    return out.reshape(shape)


def apply(view, index, kind, ty, x, cmp, flush):
    """Apply one operation per lane to ``view[index]``; returns the old values."""
    if len(np.unique(index)) == len(index):
        old = view[index]
        view[index] = combine(kind, ty, old, x, cmp, flush)
        return old
    old = np.empty_like(x)
    for k, i in enumerate(index.tolist()):
        old[k] = view[i]
        c = None if cmp is None else cmp[k : k + 1]
        view[i] = combine(kind, ty, old[k : k + 1], x[k : k + 1], c, flush)[0]
    return old


# ---------------------------------------------------------------------------- run time
def _active(x, m, w):
    return np.full(int(m.sum()), x, U[w]) if x.__class__ is int else x[m].astype(U[w], copy=False)


@rt
def atomic(f, space, a, vals, cmp, kind, ty, semantics, p, pc):
    """One atomic or reduction; returns the old value of each element (ints or arrays).

    ``vals`` holds one value per vector element; ``semantics`` is (acquire, release).
    """
    if space == "generic":
        lanes = f.lanes(p)
        if not lanes:
            return [POISON[WIDTH[ty] // 8]] * len(vals)
        space, _ = window(a if a.__class__ is int else int(a[lanes[0]]))
        a = shared_offset(a) if space == "shared" else a
    w = WIDTH[ty]
    nb, nv = w // 8, len(vals)
    if a.__class__ is int:
        a = np.full(32, a, np.uint32 if space == "shared" else np.uint64)
    setup = _shared_target if space == "shared" else _global_target
    view, index, m = setup(f, a, nb, nv, kind, semantics, p, pc)
    out = [np.full(32, POISON[nb], U[w]) for _ in vals]
    if view is not None:
        for k, x in enumerate(vals):
            c = None if cmp is None else _active(cmp, m, w)
            flush = space != "shared"
            out[k][m] = apply(view, index + k, kind, ty, _active(x, m, w), c, flush)
    return [x.item(f.lane) for x in out] if f.lane is not None else out


def _shared_target(f, a, nb, nv, kind, semantics, p, pc):
    pat, cta = pattern(f, a, nb, nv, p, pc, f"atomic {kind}")
    if pat is None:
        return None, None, None
    if cta is None:
        f.run.log.at("oob-shared", f, pc, "the lanes of an atomic address several CTAs")
        return None, None, None
    w, sh = f.warp, cta.shadow
    if sh is not None:
        if kind != "exch":
            sh.read(pat.granules, w.agent, w.epoch, w.clock, pc, w.who, strong=True)
        sh.write(pat.granules, w.agent, w.epoch, w.clock, pc, w.who, strong=True)
        for o in set(pat.off.tolist()):
            key = (cta.id3, o)
            f.run.sync.acquire(w, key)
            f.run.sync.release(w, key, semantics[1])
    f.run.counters.shared(pat, "shared_atomic")
    if cta.smem.overlay:
        cta.smem.dirty.append((w.agent, w.epoch, pat.byte_index()))
    return cta.smem.view[nb], pat.index, f.active(p) if pat.mask is None else pat.mask


def _global_target(f, a, nb, nv, kind, semantics, p, pc):
    run, w = f.run, f.warp
    off, m, al = global_setup(f, a, nb * nv, p, pc, f"atomic {kind}")
    if off is None:
        return None, None, None
    run.counters.global_(off, nb * nv, "global_atomic")
    if run.global_shadow is not None:
        places = set(off.tolist())
        for o in places:
            run.sync.acquire(w, o)
        by = Accessor(w, strong=True)
        if kind != "exch" and not run.global_shadow.quiet(al):
            run.global_shadow.read(by, off, nb * nv, pc, al)
        run.global_shadow.write(by, off, nb * nv, pc, al, reduction=True)
        for o in places:
            run.sync.release(w, o, semantics[1])
    run.stored()
    return run.memory.view[nb], off // nb, m


# ---------------------------------------------------------------------------- emitters
def atomic_class(ins):
    """Counter class: by space."""
    space = next((s for s in (p.split("::")[0] for p in ins.parts) if s in SPACES), "generic")
    return f"{ins.parts[0]}.{space}"


def parse_opcode(parts):
    """(space, kind, type, vector length, (acquire, release)) of an atom or red."""
    space, kind, ty, nv, sem = "generic", None, None, 1, "relaxed"
    for p in parts:
        head = p.split("::")[0]
        if head in ("global", "shared"):
            space = head
        elif p in KINDS:
            kind = p
        elif p in WIDTH:
            ty = p
        elif p in ("v2", "v4", "v8"):
            nv = int(p[1])
        elif p in SEMANTICS:
            sem = p
        elif p not in ("cta", "cluster", "gpu", "sys", "noftz") and head != "L2":
            raise EmitError(f"modifier .{p} is not emulated")
    if kind is None or ty is None or ty == "b128":
        raise EmitError("an operation and a type of at most 64 bits are expected")
    if ty in FLOATS and kind not in ("add", "min", "max"):
        raise EmitError(f"operation .{kind} does not exist for .{ty}")
    return space, kind, ty, nv, (sem in ("acquire", "acq_rel"), sem in ("release", "acq_rel"))


@op("atom", "red", cls=atomic_class)
def emit_atomic(cg, ins):
    if ins.parts[1] == "async":
        emit_red_async(cg, ins)
        return
    space, kind, ty, nv, sem = parse_opcode(ins.parts[1:])
    ops = list(ins.ops)
    if any(p.startswith("L2") for p in ins.parts):
        ops.pop()
    has_result = ins.parts[0] == "atom"
    d = ops.pop(0) if has_result else None
    if len(ops) != (3 if kind == "cas" else 2):
        raise EmitError("wrong number of operands")
    p = cg.open_guard()
    a = cg.addr(ops[0])
    if space == "shared":
        a = addr32(ops[0], a)
    values = ops[1].items if ops[1].kind == "vec" else [ops[1]]
    if len(values) != nv:
        raise EmitError(f"{nv} values expected, {len(values)} given")
    cmp = "None"
    if kind == "cas":  # d, [a], compare, value
        cmp, values = cg.src(ops[1], ty), [ops[2]]
    x = ", ".join(cg.src(v, ty) for v in values)
    e = f"atomic(f, {space!r}, {a}, ({x},), {cmp}, {kind!r}, {ty!r}, {sem}, {p}, {cg.pc()})"
    if has_result:
        t = cg.name()
        cg.line(f"{t} = {e}")
        for k, o in enumerate(d.items if d.kind == "vec" else [d]):
            if o.kind != "sink":
                cg.put_wide(o, f"{t}[{k}]", WIDTH[ty], p)
    else:
        cg.line(e)
    cg.close_guard(p)


def emit_red_async(cg, ins):
    """red.async: a reduction in a peer's shared memory that completes bytes on its mbarrier."""
    ty = ins.parts[-1]
    kind = next((p for p in ins.parts if p in KINDS), None)
    if kind is None:
        raise EmitError("an operation is expected")
    a, x, b = cg.need(3)
    p = cg.open_guard()
    cg.line(
        f"store_async(f, {addr32(a, cg.addr(a))}, ({cg.src(x, ty)},), {addr32(b, cg.addr(b))}, "
        f"{WIDTH[ty] // 8}, {(kind, ty)}, {p}, {cg.pc()})"
    )
    cg.close_guard(p)
