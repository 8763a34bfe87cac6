"""Atomics and reductions: every operation and type, old values, denormals, NaN."""

from __future__ import annotations

import numpy as np

from .case import WIDTH, Case, Field, add, entry, pointers, rng
from .values import integers, moderate, pairs, shuffled

N = 256
CLS = {"u32": "r", "s32": "r", "b32": "r", "f32": "f", "u64": "d", "s64": "d", "b64": "d"}
CLS |= {"f64": "g", "f16x2": "r", "bf16x2": "r", "f16": "h", "bf16": "h", "b16": "h"}
GLOBAL = [
    *(("add", t) for t in ("u32", "s32", "u64", "f32", "f64")),
    *(("add.noftz", t) for t in ("f16", "bf16", "f16x2", "bf16x2")),
    *((op, t) for op in ("min", "max") for t in ("u32", "s32", "u64", "s64")),
    *((op, t) for op in ("and", "or", "xor") for t in ("b32", "b64")),
    *((op, "u32") for op in ("inc", "dec")),
    *((op, t) for op in ("exch", "cas") for t in ("b32", "b64")),
    ("cas", "b16"),
]


def _values(ty):
    """Old contents, operand, comparand: corners and random bits of the type."""
    w = WIDTH[CLS[ty]]
    if ty in ("f32", "f64"):
        a, b = pairs(f"atom {ty}", ty, N, 12)
    elif ty.startswith(("f16", "bf16")):
        t = ty.removesuffix("x2")
        a, b = pairs(f"atom {t}", t, N, 12)
        if ty.endswith("x2"):
            a, b = (x | np.roll(x, 41) << np.uint64(16) for x in (a, b))
    else:
        a, b = integers("atom a", w, N), shuffled("atom b", integers("atom b", w, N))
        b[::5] = a[::5]
    c = np.where(rng(f"cas {ty}").integers(0, 2, N) > 0, a, b)
    u = {16: np.uint16, 32: np.uint32, 64: np.uint64}[w]
    return tuple(x.astype(u) for x in (a, b, c))


def one_each(space, op, ty):
    """Each thread has an element of its own: the old value and the new contents."""
    cls, w = CLS[ty], WIDTH[CLS[ty]]
    nb = w // 8
    x, v, c, o = (f"%{cls}{k + 5 if cls == 'd' else k}" for k in (11, 12, 13, 14))
    if cls in "g":
        x, v, c, o = "%g1", "%g2", "%g3", "%g4"
    params, loads = pointers("mem", "old", "value", "compare")
    at = "[%d10]" if space == "global" else "[%r51]"
    extra = f"{c}, {v}" if op == "cas" else v
    body = f"""
{loads}
mov.u32 %r50, %tid.x;
mul.wide.u32 %d20, %r50, {nb};
add.u64 %d10, %d1, %d20;
add.u64 %d11, %d2, %d20;
add.u64 %d12, %d3, %d20;
add.u64 %d13, %d4, %d20;
ld.global.b{w} {v}, [%d12];
ld.global.b{w} {c}, [%d13];
"""
    atom = f"atom.{space}.{op}.{ty} {o}, {at}, {extra};\n"
    if space == "shared":
        body += f"mov.u32 %r51, buf;\nmad.lo.u32 %r51, %r50, {nb}, %r51;\n"
        body += f"ld.global.b{w} {x}, [%d10];\nst.shared.b{w} [%r51], {x};\nbar.sync 0;\n"
        body += f"{atom}bar.sync 0;\nld.shared.b{w} {x}, [%r51];\nst.global.b{w} [%d10], {x};\n"
    else:
        body += atom
    body += f"st.global.b{w} [%d11], {o};"
    a, b, c = _values(ty)
    add(
        Case(
            f"atom.{space}.{op}.{ty}",
            entry(body, params, ".shared .align 16 .b8 buf[2048];" if space == "shared" else ""),
            {"mem": a, "old": np.zeros_like(a), "value": b, "compare": c},
            ["mem", "old", "value", "compare"],
            [Field(n, n, 0, a.dtype.name, N) for n in ("mem", "old")],
            block=N,
        )
    )


for _op, _ty in GLOBAL:
    one_each("global", _op, _ty)
    if "noftz" not in _op:
        one_each("shared", _op, _ty)

# ---------------------------------------------------------------------------- one address
ALL = [x for x in GLOBAL if x[0] not in ("exch", "cas") and x[1] not in ("f16", "bf16")]


def all_on_one(space):
    """All threads meet at one address of each operation; only orders that do not matter."""
    steps, mem, value = [], [], []
    r = rng(f"meet {space}")
    for op, ty in ALL:
        if space == "shared" and "noftz" in op:
            continue
        cls, w = CLS[ty], WIDTH[CLS[ty]]
        k = len(mem)
        reg = {"d": "%d15", "g": "%g1", "f": "%f1", "r": "%r11"}[cls]
        if "f" in ty:  # whole numbers, so that the order of the additions does not matter
            x = r.integers(-4, 5, 64).astype(float)
            bits = x.view(np.uint64) if ty == "f64" else x.astype(np.float32).view(np.uint32)
            if ty in ("f16x2", "bf16x2"):
                h = x.astype(np.float16).view(np.uint16) if ty == "f16x2" else bits >> 16
                bits = h.astype(np.uint64) | h[::-1].astype(np.uint64) << np.uint64(16)
            start = 0
        else:
            bits = integers(f"meet {op}", w, 64)
            start = int(bits[7])
            if op in ("inc", "dec"):
                bits, start = np.full(64, 9), 3
        mem.append(start)
        value.append(bits.astype(np.uint64))
        steps.append(f"ld.global.b{w} {reg}, [%d12 + {512 * k}];")
        where = f"[%r51 + {8 * k}]" if space == "shared" else f"[%d1 + {8 * k}]"
        steps.append(f"red.{space}.{op}.{ty} {where}, {reg};")
    n = len(mem)
    params, loads = pointers("mem", "value")
    head = f"{loads}\nmov.u32 %r50, %tid.x;\nmul.wide.u32 %d20, %r50, 8;\n"
    head += "add.u64 %d12, %d2, %d20;\nadd.u64 %d10, %d1, %d20;\n"
    tail = ""
    if space == "shared":
        head += "mov.u32 %r51, buf;\nshl.b32 %r52, %r50, 3;\nadd.u32 %r52, %r51, %r52;\n"
        head += f"setp.lt.u32 %p1, %r50, {n};\n@%p1 ld.global.b64 %d16, [%d10];\n"
        head += "@%p1 st.shared.b64 [%r52], %d16;\nbar.sync 0;\n"
        tail = "\nbar.sync 0;\n@%p1 ld.shared.b64 %d16, [%r52];\n@%p1 st.global.b64 [%d10], %d16;"
    mem = np.array(mem, np.uint64)
    add(
        Case(
            f"red.{space} of 64 threads on one address",
            entry(head + "\n".join(steps) + tail, params,
                  ".shared .align 16 .b8 buf[1024];" if space == "shared" else ""),
            {"mem": mem, "value": np.stack(value)},
            ["mem", "value"],
            [Field("mem", "mem", 0, "uint64", n)],
            block=64,
        )
    )  # fmt: skip


all_on_one("global")
all_on_one("shared")

# ---------------------------------------------------------------------------- vectors
VECTORS = [
    ("add", "v2", "f32", 2), ("add", "v4", "f32", 4),
    ("add.noftz", "v2", "f16x2", 2), ("add.noftz", "v4", "bf16x2", 4),
    ("min.noftz", "v2", "f16x2", 2), ("max.noftz", "v4", "bf16x2", 4),
]  # fmt: skip
for _op, _v, _ty, _n in VECTORS:
    _reg = "f" if _ty == "f32" else "r"
    _list = ", ".join(f"%{_reg}{k + 1}" for k in range(_n))
    _params, _loads = pointers("mem", "value")
    _load = "b32"
    _body = f"""
{_loads}
mov.u32 %r50, %tid.x;
mul.wide.u32 %d20, %r50, {4 * _n};
add.u64 %d10, %d1, %d20;
add.u64 %d11, %d2, %d20;
ld.global.{_v}.b32 {{{_list}}}, [%d11];
red.global.{_op}.{_v}.{_ty} [%d10], {{{_list}}};
"""
    _r = rng(f"vector {_op} {_ty}")
    if _ty == "f32":
        _a, _b = pairs("red vector", "f32", 32 * _n, 8 if _n == 4 else 4)
    else:
        _t = _ty[:-2]
        _a, _b = (
            moderate(_r, _t, 32 * _n).astype(np.uint64)
            | moderate(_r, _t, 32 * _n).astype(np.uint64) << np.uint64(16)
            for _ in range(2)
        )
    _a, _b = _a.astype(np.uint32), _b.astype(np.uint32)
    add(
        Case(f"red.global.{_op}.{_v}.{_ty}", entry(_body, _params), {"mem": _a, "value": _b},
             ["mem", "value"], [Field("mem", "mem", 0, "uint32", len(_a))])
    )  # fmt: skip
