"""wgmma: emitters and the issue of one warp."""

from ..codegen.registry import BLOCKED, op
from ..errors import EmitError


def rows_of(o, what):
    """Rows of a register list: a range when contiguous, else a tuple."""
    if o.kind != "vec":
        raise EmitError(f"{what} must be a register list")
    rows = []
    for x in o.items:
        if x.kind != "reg" or x.reg.row is None:
            raise EmitError(f"{what} must hold 32-bit registers")
        rows.append(x.reg.row)
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return f"range({rows[0]}, {rows[0] + len(rows)})", rows
    return repr(tuple(rows)), rows


K_OF = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


def wgmma_blocking(ins):
    return "wait_group" in ins.parts


def wgmma_class(ins):
    return "mma" if "mma_async" in ins.parts else "sync"


@op("wgmma", cls=wgmma_class, blocking=wgmma_blocking)
def emit_wgmma(cg, ins):
    parts = ins.parts
    if ins.pred is not None and "mma_async" in parts:
        raise EmitError("a guard predicate on wgmma is not emulated (use the scale-d operand)")
    p = cg.open_aligned_guard()
    if "fence" in parts:
        cg.line(f"wgmma_fence(f, {cg.pc()})")
    elif "commit_group" in parts:
        cg.line(f"wgmma_commit(f, {cg.pc()})")
    elif "wait_group" in parts:
        n = ins.ops[0].value
        if not 0 <= n <= 7:
            raise EmitError("wait_group takes 0..7")
        cg.line(f"if not wgmma_wait(f, {n}, {cg.pc()}): return {BLOCKED}")
    else:
        emit_mma_async(cg, ins)
    cg.close_guard(p)


def emit_mma_async(cg, ins):
    parts = ins.parts
    k = parts.index("aligned")
    shape = parts[k + 1]
    d_ty, a_ty, b_ty = parts[k + 2 : k + 5]
    if a_ty not in K_OF or b_ty not in K_OF:
        raise EmitError(f"operand types .{a_ty}.{b_ty} are not emulated")
    if not shape.startswith("m64n") or int(shape.split("k")[1]) != K_OF[a_ty]:
        raise EmitError(f"shape .{shape} does not go with .{a_ty}")
    n = int(shape[4:].split("k")[0])
    if n % 8 or not 8 <= n <= 256:
        raise EmitError(f"N {n} is not a multiple of 8 in 8..256")
    if d_ty not in ("f32", "f16", "s32"):
        raise EmitError(f"accumulator type .{d_ty} is not emulated")
    ops = list(ins.ops)
    expr, rows = rows_of(ops[0], "the accumulator")
    want = n // 4 if d_ty == "f16" else n // 2
    if len(rows) != want:
        raise EmitError(f"{want} accumulator registers expected, {len(rows)} given")
    arows = "None"
    a = "None"
    rest = ops[3:]
    if ops[1].kind == "vec":
        _ae, ar = rows_of(ops[1], "the A fragment")
        if len(ar) != 4:
            raise EmitError("the A fragment has 4 registers")
        arows = repr(tuple(ar))
    else:
        a = cg.src(ops[1], "b64")
    b = cg.src(ops[2], "b64")
    sd = "True"
    if rest:
        o = rest.pop(0)
        sd = repr(bool(o.value)) if o.kind == "imm" else cg.src(o, "pred")
    imm = [o.value for o in rest]
    if any(v is None for v in imm):
        raise EmitError("scale and transpose operands must be immediates")
    sa = sb = 1
    ta = tb = False
    if d_ty != "s32":
        if len(imm) < 2:
            raise EmitError("imm-scale-a and imm-scale-b are missing")
        sa, sb = imm[:2]
        if sa not in (1, -1) or sb not in (1, -1):
            raise EmitError(f"input scales must be 1 or -1, {sa} and {sb} given")
        imm = imm[2:]
        if a_ty in ("f16", "bf16"):
            need = 1 if ops[1].kind == "vec" else 2
            if len(imm) != need:
                raise EmitError(f"{need} transpose immediates expected, {len(imm)} given")
            if any(v not in (0, 1) for v in imm):
                raise EmitError("transpose immediates must be 0 or 1")
            tb = bool(imm[-1])
            ta = bool(imm[0]) if need == 2 else False
            imm = []
    if imm:
        raise EmitError("too many operands")
    cg.line(
        f"wgmma_issue(f, {expr}, {n}, {d_ty!r}, {a_ty!r}, {b_ty!r}, {a}, {arows}, {b}, {sd}, "
        f"{sa}, {sb}, {ta}, {tb}, {cg.pc()})"
    )
