"""mma.sync on register fragments."""

import numpy as np

from ..codegen.registry import op, rt
from ..errors import EmitError
from ..fragments import a_matrix, b_matrix, c_matrix, c_registers
from .wgmma import rows_of
from .wgmma_run import vreads, vwrites

FLOAT = ("f16", "bf16", "tf32", "e4m3", "e5m2")


def mma_key(ins):
    """(M, N, K, d, a, b, c) of an mma.sync, after checks."""
    parts = ins.parts
    if "sp" in parts or any(x.startswith("sp::") for x in parts):
        raise EmitError("sparse mma is not emulated")
    k = parts.index("aligned")
    shape = parts[k + 1]
    m = int(shape[1:].split("n")[0])
    n = int(shape.split("n")[1].split("k")[0])
    kk = int(shape.split("k")[1])
    if parts[k + 2 : k + 4] != ["row", "col"]:
        raise EmitError(
            f"mma.{shape} with layout .{'.'.join(parts[k + 2 : k + 4])} is not emulated"
        )
    tys = [x for x in parts[k + 4 :] if x not in ("satfinite",)]
    sat = "satfinite" in parts
    if len(tys) != 4:
        raise EmitError("four types are expected")
    d, a, b, c = tys
    ok = {
        "f16": ((16, 8, 8), (16, 8, 16)),
        "bf16": ((16, 8, 8), (16, 8, 16)),
        "tf32": ((16, 8, 4), (16, 8, 8)),
        "e4m3": ((16, 8, 32), (16, 8, 16)),
        "e5m2": ((16, 8, 32), (16, 8, 16)),
        "f64": ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
        "s8": ((8, 8, 16), (16, 8, 16), (16, 8, 32)),
        "u8": ((8, 8, 16), (16, 8, 16), (16, 8, 32)),
    }
    if (m, n, kk) not in ok.get(a, ()):
        raise EmitError(f"mma.{shape} with .{a} operands is not emulated")
    return m, n, kk, d, a, b, c, sat


@rt
def mma_run(f, V, d, a, b, c, reads, key, pc):
    """A run of independent mma.sync: operand row arrays of shape (count, registers).

    ``reads`` holds every row that the run reads.
    """
    m, _n, _k, dt, at, bt, ct, sat = key
    w = f.warp
    if f.n != 32:
        f.run.log.at("divergence", f, pc, f"mma executed by {f.n} of 32 lanes")
    if w.states[reads].any():
        vreads(f, reads.tolist(), pc)
    am, bm = a_matrix(V[a], at, m), b_matrix(V[b], bt)
    if at in ("f16", "bf16", "tf32"):
        r = np.matmul(am, bm)
    else:
        r = np.matmul(am.astype(np.float64), bm.astype(np.float64))
    if dt == "s32":
        r = r.astype(np.int64)
        if c is not None:
            r = r + c_matrix(V[c], m).view(np.int32)
        r = np.clip(r, -(1 << 31), (1 << 31) - 1) if sat else r
        out = c_registers(r.astype(np.int32)).view(np.uint32)
    else:
        r = r.astype(np.float32)
        if c is not None:
            if ct == "f16":
                u = V[c].view(np.uint16).reshape(*c.shape, 32, 2).swapaxes(-1, -2)
                u = np.ascontiguousarray(u).reshape(len(c), -1, 32)
                r = r + c_matrix(u, m).view(np.float16).astype(np.float32)
            else:
                r = r + c_matrix(V[c], m).view(np.float32)
        if dt == "f16":
            h = c_registers(r.astype(np.float16)).view(np.uint16).astype(np.uint32)
            h = h.reshape(len(d), -1, 2, 32)
            out = h[:, :, 0] | (h[:, :, 1] << 16)
        else:
            out = c_registers(r).view(np.uint32)
    if w.states[d].any():
        vwrites(f, d.reshape(-1).tolist(), pc)
    V[d] = out
    f.run.counters.add_bytes("mma_sync", len(d))


@rt
def mma_f64(f, a, b, c, m, pc):
    """mma.sync with f64 operands, in ordinary 64-bit registers; returns the result registers."""

    def stack(x):
        return np.stack([np.full(32, v, np.uint64) if v.__class__ is int else v for v in x])

    r = a_matrix(stack(a), "f64", m) @ b_matrix(stack(b), "f64")
    r = r + c_matrix(stack(c), m).view(np.float64)
    return c_registers(r).view(np.uint64)


def _zero_c(o):
    return o.kind == "vec" and all(x.kind in ("imm", "fimm") for x in o.items)


@op("mma", cls="mma", blocking=None)
def emit_mma(cg, ins, body):
    key = mma_key(ins)
    if key[4] == "f64":
        d, a, b, c = cg.need(4)
        cg.line(f"aligned(f, {cg.pc()})")
        e = ["(" + ", ".join(cg.src(x, "f64") for x in o.items) + ",)" for o in (a, b, c)]
        t = cg.name()
        cg.line(f"{t} = mma_f64(f, {e[0]}, {e[1]}, {e[2]}, {key[0]}, {cg.pc()})")
        for i, x in enumerate(d.items):
            cg.put(x, f"{t}[{i}]")
        return 1
    if ins.pred is not None:
        raise EmitError("a guard predicate on mma is not emulated")
    lists = [[], [], [], []]
    written = set()
    used = 0
    zero = _zero_c(ins.ops[3])
    for x in body:
        if x.op != ins.op or x.pred is not None or _zero_c(x.ops[3]) != zero:
            break
        r = [rows_of(o, "an operand")[1] if not _zero_c(o) else [] for o in x.ops]
        if written & set(r[1] + r[2] + r[3] + r[0]):
            break
        if [len(t) for t in r] != ([len(t[0]) for t in lists] if used else [len(t) for t in r]):
            raise EmitError("operand lists of different lengths")
        written |= set(r[0])
        for t, y in zip(lists, r):
            t.append(y)
        used += 1
    m, n, k, dt, at, _bt, ct, _ = key
    es = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}[at]
    want = [
        m * n // 32 // (2 if dt == "f16" else 1),
        m * k * es // 128,
        n * k * es // 128,
        0 if zero else m * n // 32 // (2 if ct == "f16" else 1),
    ]
    got = [len(t[0]) for t in lists]
    if got != want:
        raise EmitError(f"register lists of {want} registers expected, {got} given")
    if dt == "s32" and at not in ("s8", "u8") or dt not in ("f32", "f16", "s32"):
        raise EmitError(f"result type .{dt} with .{at} is not emulated")
    cname = "None" if zero else cg.const(np.array(lists[3]))
    names = [cg.const(np.array(t)) for t in lists[:3]]
    if zero and any(x.value not in (0, 0.0, ("f32", 0)) for x in ins.ops[3].items):
        raise EmitError("an immediate C operand must be zero")
    reads = cg.const(np.unique(np.concatenate([np.ravel(t) for t in lists[1:]]).astype(np.int64)))
    cg.line(
        f"mma_run(f, V, {names[0]}, {names[1]}, {names[2]}, {cname}, {reads}, {key!r}, {cg.pc()})"
    )
    return used


emit_mma.batched = True
