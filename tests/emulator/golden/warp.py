"""Exchange between lanes: shuffles, votes, matches, reductions, elect, lane masks."""

from __future__ import annotations

import numpy as np

from .case import Case, Field, add, entry, pointers, rng

LANES = 32


def lanes(name, steps, inputs=("x", "y"), setup="", block=32, seed=None):
    """A kernel of one or more warps; every step leaves a value in %r1, which is recorded.

    Inputs are random words per lane in %r10, %r11, ...; %r50 is the lane.
    """
    params, loads = pointers("out", *inputs)
    body = [loads, "mov.u32 %r50, %tid.x;", "mul.wide.u32 %d20, %r50, 4;", "add.u64 %d21, %d1, "
            "%d20;"]  # fmt: skip
    r = rng(seed or name)
    buffers = {"out": np.zeros(len(steps) * block, np.uint32)}
    for k, x in enumerate(inputs):
        body += [f"add.u64 %d22, %d{k + 2}, %d20;", f"ld.global.u32 %r{10 + k}, [%d22];"]
        buffers[x] = r.integers(0, 1 << 32, block, np.uint64).astype(np.uint32)
    body.append(setup)
    fields = []
    for k, (label, step) in enumerate(steps):
        body += [step, f"st.global.u32 [%d21 + {4 * block * k}], %r1;"]
        fields.append(Field(label, "out", 4 * block * k, "uint32", block))
    return add(
        Case(name, entry("\n".join(body), params), buffers, ["out", *inputs], fields, block=block)
    )


MASK = "0xffffffff"
for _mode in ("up", "down", "bfly", "idx"):
    _steps = []
    for _c in (0, 31, 15, 0x1800, 0x181F, 0x1C1F, 0x1E1F, 0x1F1F, 0x101F, 0x1807, 0x031F):
        for _b in (0, 1, 2, 7, 16, 31, 32, 33, 63, 0xFFFFFFFF):
            _text = f"shfl.sync.{_mode}.b32 %r1|%p1, %r10, {_b:#x}, {_c:#x}, {MASK};\n"
            # the predicate in the lowest bit, the value shifted up
            _text += "shl.b32 %r1, %r1, 1;\nselp.u32 %r2, 1, 0, %p1;\nor.b32 %r1, %r1, %r2;"
            _steps.append((f"{_mode} b={_b:#x} c={_c:#x}", _text))
    for _seg in (0, 0x18):
        _c = "and.b32 %r3, %r11, 31;\nand.b32 %r4, %r12, 31;\n" + (
            f"or.b32 %r4, %r4, {_seg << 8};\nshfl.sync.{_mode}.b32 %r1, %r10, %r3, %r4, {MASK};"
        )
        _steps.append((f"{_mode} b and c per lane, segments {_seg:#x}", _c))
    lanes(f"shfl {_mode}", _steps, ("x", "y", "z"))

lanes(
    "shfl by half warps",
    [
        (
            f"{mode} {b}",
            f"""
setp.lt.u32 %p2, %r50, 16;
@%p2 bra low{k};
shfl.sync.{mode}.b32 %r1, %r10, {b}, {0x100F if mode != "up" else 0x1000}, 0xffff0000;
bra join{k};
low{k}:
shfl.sync.{mode}.b32 %r1, %r11, {b}, {0x100F if mode != "up" else 0x1000}, 0x0000ffff;
join{k}:
bar.warp.sync {MASK};
""",
        )
        for k, (mode, b) in enumerate((m, b) for m in ("up", "down", "bfly", "idx") for b in (1, 5))
    ],
)

_VOTES = []
for _k, _test in enumerate(("and.b32 %r2, %r10, 1;", "mov.u32 %r2, 0;", "mov.u32 %r2, 1;",
                            "shr.u32 %r2, %r50, 4;")):  # fmt: skip
    _p = f"{_test}\nsetp.ne.u32 %p1, %r2, 0;\n"
    _VOTES.append((f"ballot {_k}", _p + f"vote.sync.ballot.b32 %r1, %p1, {MASK};"))
    _VOTES.append((f"ballot of not {_k}", _p + f"vote.sync.ballot.b32 %r1, !%p1, {MASK};"))
    for _m in ("any", "all", "uni"):
        _VOTES.append(
            (f"{_m} {_k}", _p + f"vote.sync.{_m}.pred %p2, %p1, {MASK};\nselp.u32 %r1, 1, 0, %p2;")
        )
    _VOTES.append(
        (
            f"ballot of odd lanes {_k}",
            f"""{_p}
and.b32 %r3, %r50, 1;
setp.eq.u32 %p3, %r3, 0;
mov.u32 %r1, 77;
@%p3 bra skip{_k};
vote.sync.ballot.b32 %r1, %p1, 0xaaaaaaaa;
skip{_k}:
bar.warp.sync {MASK};""",
        )
    )
lanes("vote", _VOTES)

_MATCH = []
for _m in (1, 3, 7, 31, 0):
    _v = f"and.b32 %r2, %r10, {_m};\n"
    _wide = _v + "mov.b64 %d5, {%r2, %r2};\n"
    _MATCH.append((f"any b32 mask {_m}", _v + f"match.any.sync.b32 %r1, %r2, {MASK};"))
    _MATCH.append((f"any b64 mask {_m}", _wide + f"match.any.sync.b64 %r1, %d5, {MASK};"))
    for _t, _reg, _pre in (("b32", "%r2", _v), ("b64", "%d5", _wide)):
        _MATCH.append(
            (
                f"all {_t} mask {_m}",
                _pre + f"match.all.sync.{_t} %r1|%p1, {_reg}, {MASK};\nselp.u32 %r3, 0x10000, 0, "
                "%p1;\nxor.b32 %r1, %r1, %r3;",
            )
        )
lanes("match", _MATCH)

_REDUX = [
    (f"{op}.{t}", f"redux.sync.{op}.{t} %r1, %r10, {MASK};")
    for op, ts in (
        ("add", ("u32", "s32")),
        ("min", ("u32", "s32")),
        ("max", ("u32", "s32")),
        ("and", ("b32",)),
        ("or", ("b32",)),
        ("xor", ("b32",)),
    )
    for t in ts
]
lanes("redux", _REDUX)
lanes(
    "redux by half warps",
    [
        (
            label,
            f"setp.lt.u32 %p2, %r50, 16;\n@%p2 bra low{k};\n"
            + text.replace(MASK, "0xffff0000")
            + f"\nbra join{k};\nlow{k}:\n"
            + text.replace(MASK, "0x0000ffff").replace("%r10", "%r11")
            + f"\njoin{k}:\nbar.warp.sync {MASK};",
        )
        for k, (label, text) in enumerate(_REDUX)
    ],
)

_LEAD = "mov.u32 %r1, {x};\n@%p1 add.u32 %r1, %r1, 100;"
lanes(
    "elect and lane registers",
    [
        ("elect of all", f"elect.sync %r2|%p1, {MASK};\n" + _LEAD.format(x="%r2")),
        (
            "elect of the upper half",
            f"setp.lt.u32 %p2, %r50, 20;\nmov.u32 %r1, 55;\n@%p2 bra out0;\n"
            f"elect.sync %r2|%p1, 0xfff00000;\n{_LEAD.format(x='%r2')}\nout0:\n"
            f"bar.warp.sync {MASK};",
        ),
        ("activemask", "activemask.b32 %r1;"),
        *(
            (f"lanemask_{k}", f"mov.u32 %r1, %lanemask_{k};")
            for k in ("eq", "lt", "le", "gt", "ge")
        ),
        ("laneid", "mov.u32 %r1, %laneid;"),
        ("ntid", "mov.u32 %r1, %ntid.x;"),
        ("movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r10;"),
    ],
)
