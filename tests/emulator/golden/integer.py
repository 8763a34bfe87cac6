"""Integer arithmetic, bit fields, permutations, carry chains."""

from __future__ import annotations

import numpy as np

from .case import alu, rng
from .values import integers, shuffled

N = 192
CLS = {16: "h", 32: "r", 64: "d"}


def _two(width):
    a = integers("a", width, N)
    b = shuffled("b", integers("b", width, N))
    c = shuffled("c", integers("c", width, N))
    b[:40] = a[:40]  # equal operands
    return {k: (CLS[width], v) for k, v in zip("abc", (a, b, c))}


for _w in (16, 32, 64):
    _c = CLS[_w]
    _rows = []
    for _s in ("u", "s"):
        _t = f"{_s}{_w}"
        _rows += [(_c, f"{op}.{_t} {{d}}, {{a}}, {{b}};") for op in ("add", "sub", "min", "max")]
        _rows += [(_c, f"mul.{h}.{_t} {{d}}, {{a}}, {{b}};") for h in ("lo", "hi")]
        _rows += [(_c, f"mad.{h}.{_t} {{d}}, {{a}}, {{b}}, {{c}};") for h in ("lo", "hi")]
        # the most negative value by -1 and division by zero have no defined result
        _safe = f"or.b{_w} {{d}}, {{b}}, 1;\nand.b{_w} {{d}}, {{d}}, {(1 << (_w - 1)) - 1};\n"
        _rows += [(_c, f"{_safe}{op}.{_t} {{d}}, {{a}}, {{d}};") for op in ("div", "rem")]
        if _w < 64:
            _wide = CLS[2 * _w]
            _rows.append((_wide, f"mul.wide.{_t} {{d}}, {{a}}, {{b}};"))
            _rows += [
                ("p", f"setp.{c}.{_t} {{d}}, {{a}}, {{b}};") for c in ("lt", "le", "gt", "ge")
            ]
        _rows.append((_c, f"sad.{_t} {{d}}, {{a}}, {{b}}, {{c}};"))
    _rows += [(_c, f"{op}.s{_w} {{d}}, {{a}};") for op in ("abs", "neg")]
    _rows += [(_c, f"{op}.b{_w} {{d}}, {{a}}, {{b}};") for op in ("and", "or", "xor")]
    _rows += [(_c, f"{op}.b{_w} {{d}}, {{a}};") for op in ("not", "cnot")]
    _rows += [("p", f"setp.{c}.u{_w} {{d}}, {{a}}, {{b}};") for c in ("eq", "ne", "lo", "hs")]
    if _w == 32:
        _rows += [(_c, f"{op}.sat.s32 {{d}}, {{a}}, {{b}};") for op in ("add", "sub")]
        _rows += [
            (_c, f"{op}.{h}.{t} {{d}}, {{a}}, {{b}}{x};")
            for op, x in (("mul24", ""), ("mad24", ", {c}"))
            for h in ("lo", "hi")
            for t in ("u32", "s32")
        ]
        _rows += [
            ("r", "set.lt.u32.s32 {d}, {a}, {b};"),
            ("f", "set.hs.f32.u32 {d}, {a}, {b};"),
            ("r", "slct.b32.s32 {d}, {a}, {b}, {c};"),
        ]
    alu(f"integer {_w} bits", _two(_w), _rows)


# ---------------------------------------------------------------------------- bits
def _bit_operands(width, amounts):
    ops = _two(width)
    r = rng(f"amounts {width}")
    edge = np.array([0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 255, 256, 0x80000001])
    n = np.concatenate([edge, r.integers(0, 72, N - len(edge))]).astype(np.uint64)
    ops["b" if amounts == 1 else "m"] = ("r", shuffled("m", n))
    if amounts > 1:
        ops["n"] = ("r", shuffled("n", n))
    return ops


for _w in (16, 32, 64):
    _c = CLS[_w]
    alu(
        f"shifts of {_w} bits",
        _bit_operands(_w, 1),
        [
            (_c, f"shl.b{_w} {{d}}, {{a}}, {{b}};"),
            (_c, f"shr.u{_w} {{d}}, {{a}}, {{b}};"),
            (_c, f"shr.s{_w} {{d}}, {{a}}, {{b}};"),
        ],
    )

for _w in (32, 64):
    _c = CLS[_w]
    _rows = [("r", f"{op}.b{_w} {{d}}, {{a}};") for op in ("popc", "clz")]
    _rows += [(_c, f"brev.b{_w} {{d}}, {{a}};")]
    _rows += [("r", f"bfind{k}.{s}{_w} {{d}}, {{a}};") for k in ("", ".shiftamt") for s in "us"]
    _rows += [(_c, f"bfe.{s}{_w} {{d}}, {{a}}, {{m}}, {{n}};") for s in "us"]
    _rows += [(_c, f"bfi.b{_w} {{d}}, {{a}}, {{b}}, {{m}}, {{n}};")]
    if _w == 32:
        _rows += [
            ("r", f"shf.{k}.{m}.b32 {{d}}, {{a}}, {{b}}, {{m}};")
            for k in "lr"
            for m in ("wrap", "clamp")
        ]
        _rows += [
            ("r", f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {k:#x};")
            for k in (0x00, 0xFF, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x1B, 0x6A)
        ]
    alu(f"bits of {_w}", _bit_operands(_w, 2), _rows)
alu("bmsk", _bit_operands(32, 2),
    [("r", f"bmsk.{k}.b32 {{d}}, {{m}}, {{n}};") for k in ("clamp", "wrap")],
    refused="bmsk")  # fmt: skip

# selectors: every nibble value in every place, and random ones
_r = rng("prmt")
_sel = np.concatenate([np.arange(16) * 0x1111, np.arange(16) << 4 | 0x7050, [0x3210, 0x7654]])
_sel = np.concatenate([_sel, _r.integers(0, 1 << 16, N - len(_sel))]).astype(np.uint64)
_ab = {k: ("r", shuffled(k, integers("prmt", 32, N))) for k in "ab"}
alu("prmt", {**_ab, "c": ("r", _sel)}, [("r", "prmt.b32 {d}, {a}, {b}, {c};")])
PRMT_MODES = [("r", f"prmt.b32.{m} {{d}}, {{a}}, {{b}}, {{c}};") for m in
              ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")]  # fmt: skip
alu("prmt modes", {**_ab, "c": ("r", _sel)}, PRMT_MODES, refused="prmt")

for _k in ("4a", "2a.lo", "2a.hi"):
    alu(
        f"dot products dp{_k}",
        _two(32),
        [
            ("r", f"dp{_k}.{s}.{t} {{d}}, {{a}}, {{b}}, {{c}};")
            for s in ("u32", "s32")
            for t in ("u32", "s32")
        ],
        refused=None if _k == "4a" else "dp2a",
    )

# ---------------------------------------------------------------------------- carry chains
_CHAINS = {
    "add": "add.cc.u{w} %c0, {{a}}, {{b}};\naddc.cc.u{w} %c1, {{b}}, {{c}};\n"
    "addc.u{w} %c2, {{c}}, 0;\n",
    "sub": "sub.cc.u{w} %c0, {{a}}, {{b}};\nsubc.cc.u{w} %c1, {{b}}, {{c}};\n"
    "subc.u{w} %c2, {{c}}, 0;\n",
    "mad": "mad.lo.cc.u{w} %c0, {{a}}, {{b}}, {{c}};\nmadc.hi.cc.u{w} %c1, {{a}}, {{b}}, {{b}};\n"
    "addc.u{w} %c2, {{a}}, 0;\n",
    "mad signed": "mad.hi.cc.s{w} %c0, {{a}}, {{b}}, {{c}};\nmadc.lo.cc.s{w} %c1, {{a}}, {{b}}, "
    "{{c}};\naddc.u{w} %c2, {{a}}, 0;\n",
}
for _w, _name in ((w, name) for w in (32, 64) for name in _CHAINS):
    _rows = []
    for _text in (_CHAINS[_name],):
        for _k in range(3):
            _body = _text.format(w=_w)
            _rows.append(
                (
                    CLS[_w],
                    f"{{{{\n.reg .b{_w} %c0, %c1, %c2;\n{_body}mov.b{_w} {{d}}, %c{_k};\n}}}}",
                )
            )
    _gap = "narrow64" if _w == 64 and "mad" in _name else None
    alu(f"carry chains {_name} of {_w} bits", _two(_w), _rows, refused=_gap)

# ---------------------------------------------------------------------------- integer conversions
for _w in (16, 32, 64):
    _rows = []
    for _s in ("u", "s"):
        for _src in (8, 16, 32, 64):
            if _src > _w or (_src < _w and (_src, _w) != (8, 16)):
                continue
            for _t in ("u", "s"):
                for _dst in (8, 16, 32, 64):
                    _c = CLS[max(_dst, 16)]
                    _fits = _dst >= _src if _s == _t else _s == "u" and _dst > _src
                    for _sat in ("",) if _fits else ("", ".sat"):
                        _rows.append((_c, f"cvt{_sat}.{_t}{_dst}.{_s}{_src} {{d}}, {{a}};"))
    alu(f"conversions between integers from {_w} bits", {"a": (CLS[_w], integers("cvt", _w, N))},
        _rows)  # fmt: skip
