"""Emitters of every asynchronous copy (cp, cp.reduce)."""

from ..codegen.registry import op
from ..errors import EmitError


def _mem64(cg, o):
    if o.kind != "mem":
        raise EmitError("an address in brackets is expected")
    return cg.addr(o)


def _smem(cg, o):
    a = _mem64(cg, o)
    return a


def emit_tensor(cg, ins):
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor."""
    parts = ins.parts
    ops = list(ins.ops)
    hint_ = "L2::cache_hint" in parts
    mode = "im2col" if "im2col" in parts else "tile"
    for x in parts:
        if x.startswith(("tile::", "im2col::", "im2col_no_offs")) and x != "im2col_no_offs":
            raise EmitError(f"mode .{x} is not emulated")
    p = cg.open_guard()
    if "prefetch" in parts:
        cg.line(f"hint(f, {p})")
        cg.close_guard(p)
        return
    dst_shared = next(k for k, x in enumerate(parts) if x.split("::")[0] in ("shared", "global"))
    to_global = parts[dst_shared] == "global"
    if to_global:
        m, s = ops[0], ops[1]
        cs = [cg.src(x, "b32") for x in m.coords.items]
        red = (
            next(
                (
                    x
                    for x in parts[3:]
                    if x in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
                ),
                None,
            )
            if parts[1] == "reduce"
            else None
        )
        cg.line(
            f"tma_store(f, {_mem64(cg, m)}, ({', '.join(cs)},), {_smem(cg, s)}, {red!r}, {p}, "
            f"{cg.pc()})"
        )
        cg.close_guard(p)
        return
    d, m, b = ops[:3]
    rest = ops[3:]
    cs = [cg.src(x, "b32") for x in m.coords.items]
    offs = mask = "None"
    if hint_:
        rest = rest[:-1]
    if rest and rest[0].kind == "vec":
        offs = "(" + ", ".join(cg.src(x, "b16") for x in rest.pop(0).items) + ",)"
    if "multicast::cluster" in parts:
        mask = cg.src(rest.pop(0), "b16")
    if rest:
        raise EmitError("too many operands")
    cg.line(
        f"tma_load(f, {_smem(cg, d)}, {_mem64(cg, m)}, ({', '.join(cs)},), {_smem(cg, b)}, {offs}"
        f", {mask}, {p}, {cg.pc()}, {mode!r})"
    )
    cg.close_guard(p)


TY = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "s32": "int32",
    "u32": "uint32",
    "u64": "uint64",
    "s64": "int64",
    "b32": "uint32",
    "b64": "uint64",
}


def emit_bulk(cg, ins):
    """cp.async.bulk and cp.reduce.async.bulk, 1-D."""
    parts = ins.parts
    ops = list(ins.ops)
    spaces = [x for x in parts if x.split("::")[0] in ("shared", "global")]
    p = cg.open_guard()
    if "prefetch" in parts:
        cg.line(f"hint(f, {p})")
        cg.close_guard(p)
        return
    red = ty = None
    if parts[1] == "reduce":
        red = next(
            x for x in parts[2:] if x in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
        )
        ty = TY[parts[-1]]
    dst, src = (s.split("::")[0] for s in spaces[:2])
    kind = "store" if dst == "global" else "load" if src == "global" else "peer"
    mbar = mask = "None"
    if kind != "store":
        mbar = _smem(cg, ops[3])
        if "multicast::cluster" in parts:
            mask = cg.src(ops[4], "b16")
    cg.line(
        f"bulk_copy(f, {kind!r}, {_smem(cg, ops[0])}, {_smem(cg, ops[1])}, "
        f"{cg.src(ops[2], 'u32')}, {mbar}, {mask}, {red!r}, {ty!r}, {p}, {cg.pc()})"
    )
    cg.close_guard(p)


def cp_blocking(ins):
    return "wait_group" in ins.parts or "wait_all" in ins.parts


def cp_class(ins):
    return (
        "sync"
        if any(x in ins.parts for x in ("commit_group", "wait_group", "wait_all", "mbarrier"))
        else "async"
    )


@op("cp", cls=cp_class, blocking=cp_blocking)
def emit_cp(cg, ins):
    parts = ins.parts
    if "tensor" in parts:
        emit_tensor(cg, ins)
        return
    if "bulk" in parts:
        if "commit_group" in parts:
            p = cg.open_guard()
            cg.line(f"bulk_commit(f, {p}, {cg.pc()})")
            cg.close_guard(p)
        elif "wait_group" in parts:
            (n,) = cg.need(1)
            p = cg.open_guard()
            cg.line(f"bulk_wait(f, {n.value}, {'read' in parts}, {p}, {cg.pc()})")
            cg.close_guard(p)
        else:
            emit_bulk(cg, ins)
        return
    if parts[1] != "async":
        raise EmitError(f"cp.{parts[1]} is not emulated")
    p = cg.open_guard()
    if "commit_group" in parts:
        cg.line(f"cp_commit(f, {cg.pc()})")
    elif "wait_group" in parts or "wait_all" in parts:
        n = 0 if "wait_all" in parts else ins.ops[0].value
        if "wait_all" in parts:
            cg.line(f"cp_commit(f, {cg.pc()})")
        cg.line(f"cp_wait(f, {n}, {cg.pc()})")
    elif "mbarrier" in parts:
        cg.line(f"cp_mbar(f, {_smem(cg, ins.ops[0])}, {'noinc' in parts}, {p}, {cg.pc()})")
    else:
        ops = list(ins.ops)
        if "L2::cache_hint" in parts:
            ops = ops[:-1]
        if ops[2].kind != "imm" or ops[2].value not in (4, 8, 16):
            raise EmitError("the copy size must be 4, 8 or 16")
        n = "None"
        if len(ops) == 4:
            if ops[3].kind == "reg" and ops[3].reg.width == 1:
                n = f"selp(0, {ops[2].value}, {cg.src(ops[3], 'pred')}, 32)"
            else:
                n = cg.src(ops[3], "u32")
        cg.line(
            f"cp_async(f, {_smem32(cg, ops[0])}, {_mem64(cg, ops[1])}, {ops[2].value}, {n}, {p}, "
            f"{cg.pc()})"
        )
    cg.close_guard(p)


def _smem32(cg, o):
    a = _mem64(cg, o)
    return (
        f"narrow32({a})"
        if o.base is not None and o.base.kind == "reg" and (o.base.reg.width == 64)
        else a
    )
