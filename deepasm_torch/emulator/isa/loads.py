"""ld, ldu, st and cache hints: emitters."""

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..text.statements import WIDTH
from ..values import S, U

SPACES = ("global", "shared", "param", "local", "const")
STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")
HINTS = {
    *STRONG,
    *("weak", "nc", "cta", "cluster", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt"),
    "entry",
}


def _access(cg, ins):
    """(space, type, vector length) of a load or store."""
    space, ty, nv = "generic", None, 1
    for part in ins.parts[1:]:
        head = part.split("::")[0]
        if part in WIDTH:
            ty = part
        elif part in ("v2", "v4", "v8"):
            nv = int(part[1])
        elif head in SPACES:
            space = "global" if head == "const" else head
        elif head in ("L1", "L2", "level", "unified") or head in HINTS:
            continue
        else:
            raise EmitError(f"modifier .{part} is not emulated")
    if ty is None or ty == "pred":
        raise EmitError("a type suffix is missing")
    if ty == "b128":
        raise EmitError("128-bit types are not emulated (use a vector of .b64)")
    return space, ty, nv


@rt
def sext(x, w, wd):
    """Sign-extend a w-bit value to wd bits."""
    if x.__class__ is int:
        return (x - (1 << w) if x >> (w - 1) else x) & ((1 << wd) - 1)
    return x.astype(U[w]).view(S[w]).astype(S[wd]).view(U[wd])


def is_strong(ins):
    """True for accesses that other threads may race with on purpose."""
    return any(p in STRONG for p in ins.parts)


def ld_class(ins):
    space = next(
        (p.split("::")[0] for p in ins.parts[1:] if p.split("::")[0] in SPACES),
        "generic",
    )
    return "ld." + space


def st_class(ins):
    return ld_class(ins).replace("ld.", "st.")


@op("ld", "ldu", cls=ld_class)
def emit_ld(cg, ins):
    space, ty, nv = _access(cg, ins)
    if ins.parts[0] == "ldu":
        space = "global"
    w = WIDTH[ty]
    nb = w // 8
    d, a = cg.need(2, 3)[:2]
    outs = d.items if d.kind == "vec" else [d]
    if len(outs) != nv:
        raise EmitError(f"{nv} destinations expected, {len(outs)} given")
    if space == "param" and a.base is not None and a.base.name in cg.entry.locals:
        space = "local"  # a parameter of an expanded call
    if space == "param" and (a.base is None or a.base.kind == "sym"):
        if a.base is None:
            raise EmitError("a parameter name is expected")
        v = cg.entry.params.get(a.base.name)
        if v is None:
            raise EmitError(f"{a.base.name} is not a parameter")
        if a.offset + nb * nv > v.size or a.offset < 0:
            raise EmitError(f"reads past the end of parameter {v.name} ({v.size} bytes)")
        off = v.offset + a.offset
        p = cg.open_guard()
        for k, o in enumerate(outs):
            _result(cg, o, f"ld_param(f, {off + k * nb}, {nb})", ty, w, p)
        cg.close_guard(p)
        return
    p = cg.open_guard()
    addr = cg.addr(a)
    t = cg.name()
    fn = {
        "global": "ld_global",
        "shared": "ld_shared",
        "param": "ld_param_at",
        "local": "ld_local",
        "generic": "ld_generic",
    }[space]
    if space == "param":
        cg.line(f"{t} = {fn}(f, {addr}, {nb}, {nv})")
    else:
        if space == "shared":
            addr = addr32(a, addr)
        tail = "" if space == "local" else f", {is_strong(ins)}"
        cg.line(f"{t} = {fn}(f, {addr}, {nb}, {nv}, {p}, {cg.pc()}{tail})")
    for k, o in enumerate(outs):
        if o.kind != "sink":
            _result(cg, o, f"{t}[{k}]", ty, w, p)
    cg.close_guard(p)


def addr32(a, addr):
    """Shared addresses may sit in 64-bit registers: cut to 32 bits."""
    if a.base is not None and a.base.kind == "reg" and a.base.reg.width == 64:
        return f"narrow32({addr})"
    return addr


def _result(cg, o, expr, ty, w, p):
    if o.kind == "reg" and o.reg.width > w and ty[0] == "s":
        cg.put(o, f"sext({expr}, {w}, {o.reg.width})", p)
    else:
        cg.put_wide(o, expr, w, p)


@op("st", cls=st_class)
def emit_st(cg, ins):
    space, ty, nv = _access(cg, ins)
    w = WIDTH[ty]
    ops = cg.need(2, 3)
    a, s = ops[:2]
    srcs = s.items if s.kind == "vec" else [s]
    if len(srcs) != nv:
        raise EmitError(f"{nv} values expected, {len(srcs)} given")
    p = cg.open_guard()
    addr = cg.addr(a)
    vals = [cg.src(o, ty if ty != "b128" else "b64") for o in srcs]
    if space == "param" and a.base is not None and a.base.name in cg.entry.locals:
        space = "local"
    fn = {
        "global": "st_global",
        "shared": "st_shared",
        "local": "st_local",
        "generic": "st_generic",
    }.get(space)
    if fn is None:
        raise EmitError(f"a store to .{space} is not possible")
    if space == "shared":
        addr = addr32(a, addr)
    tail = "" if space == "local" else f", {is_strong(ins)}"
    if space in ("global", "generic"):
        tail += f", {'release' in ins.parts}"
    cg.line(f"{fn}(f, {addr}, ({', '.join(vals)},), {w // 8}, {p}, {cg.pc()}{tail})")
    cg.close_guard(p)


@op("prefetch", "prefetchu", "applypriority", "discard", "createpolicy", cls="mem.hint")
def emit_hint(cg, ins):
    if ins.parts[0] == "createpolicy":
        d = cg.need(1, 3)[0]
        cg.result(d, "0")
        return
    p = cg.open_guard()
    cg.line(f"hint(f, {p})")
    cg.close_guard(p)


@rt
def hint(f, p):
    """Cache hints change no state."""
