"""Floating arithmetic: roundings, denormals, NaN, signed zeros."""

from __future__ import annotations

from .case import alu
from .values import pairs, triples

CLS = {"f32": "f", "f64": "g", "f16": "h", "bf16": "h"}
RND = ("rn", "rz", "rm", "rp")


def _ops(cls, arrays):
    return {k: (cls, v) for k, v in zip("abc", arrays)}


_AB = _ops("f", pairs("f32", "f32", 512))
_ABC = _ops("f", triples("f32", "f32", 512))
for _ftz in ("", ".ftz"):
    _x = _ftz or " kept"
    alu(
        f"add sub mul f32, denormals{_x}",
        _AB,
        [
            ("f", f"{op}.{r}{_ftz}{s}.f32 {{d}}, {{a}}, {{b}};")
            for op in ("add", "sub", "mul")
            for r in RND
            for s in ("", ".sat")
            if not s or r in ("rn", "rz")
        ],
    )
    alu(
        f"fma f32, denormals{_x}",
        _ABC,
        [
            ("f", f"fma.{r}{_ftz}{s}.f32 {{d}}, {{a}}, {{b}}, {{c}};")
            for r in RND
            for s in ("", ".sat")
            if not s or r == "rn"
        ],
    )
    alu(
        f"div sqrt rcp f32, denormals{_x}",
        _AB,
        [("f", f"div.{r}{_ftz}.f32 {{d}}, {{a}}, {{b}};") for r in RND]
        + [("f", f"{op}.{r}{_ftz}.f32 {{d}}, {{a}};") for op in ("sqrt", "rcp") for r in RND],
    )
    alu(
        f"min max compare f32, denormals{_x}",
        _AB,
        [
            ("f", f"{op}{_ftz}{k}.f32 {{d}}, {{a}}, {{b}};")
            for op in ("min", "max")
            for k in ("", ".NaN")
        ]
        + [("f", f"{op}{_ftz}.f32 {{d}}, {{a}};") for op in ("abs", "neg")]
        + [
            ("p", f"setp.{c}{_ftz}.f32 {{d}}, {{a}}, {{b}};")
            for c in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu")
            + ("num", "nan")
        ],
    )

alu(
    "classes and signs f32",
    _AB,
    [
        ("p", f"testp.{k}.f32 {{d}}, {{a}};")
        for k in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    ]
    + [
        ("f", "copysign.f32 {d}, {a}, {b};"),
        ("f", "add.f32 {d}, {a}, {b};"),
        ("f", "sub.f32 {d}, {a}, {b};"),
        ("f", "mul.f32 {d}, {a}, {b};"),
        ("r", "set.ltu.u32.f32 {d}, {a}, {b};"),
        ("f", "slct.f32.f32 {d}, {a}, {b}, {b};"),
        ("f", "slct.ftz.f32.f32 {d}, {a}, {b}, {b};"),
    ],
)
alu("min max xorsign f32", _AB,
    [("f", f"{op}{k}.xorsign.abs.f32 {{d}}, {{a}}, {{b}};") for op in ("min", "max")
     for k in ("", ".NaN")], refused="xorsign")  # fmt: skip

# ---------------------------------------------------------------------------- f64
_AB = _ops("g", pairs("f64", "f64", 384, 14))
_ABC = _ops("g", triples("f64", "f64", 256))
alu(
    "arithmetic f64",
    _AB,
    [
        ("g", f"{op}.{r}.f64 {{d}}, {{a}}, {{b}};")
        for op in ("add", "sub", "mul")
        for r in RND
    ]
    + [("g", "div.rn.f64 {d}, {a}, {b};")]
    + [("g", f"{op}.rn.f64 {{d}}, {{a}};") for op in ("sqrt", "rcp")]
    + [("g", f"{op}.f64 {{d}}, {{a}}, {{b}};") for op in ("min", "max")]
    + [("g", f"{op}.f64 {{d}}, {{a}};") for op in ("abs", "neg")]
    + [("p", f"setp.{c}.f64 {{d}}, {{a}}, {{b}};") for c in ("lt", "equ", "ne", "nan")]
    + [("p", f"testp.{k}.f64 {{d}}, {{a}};") for k in ("normal", "subnormal", "notanumber")]
    + [("g", "copysign.f64 {d}, {a}, {b};")],
)  # fmt: skip
alu("fma f64", _ABC, [("g", f"fma.{r}.f64 {{d}}, {{a}}, {{b}}, {{c}};") for r in RND])
for _op in ("div.{r}.f64 {{d}}, {{a}}, {{b}};", "sqrt.{r}.f64 {{d}}, {{a}};",
            "rcp.{r}.f64 {{d}}, {{a}};"):  # fmt: skip
    alu(f"{_op[:4].rstrip('.')} f64, directed roundings", _AB,
        [("g", _op.format(r=r)) for r in RND[1:]],
        refused="directed rounding" if _op.startswith("div") else None)  # fmt: skip

# ---------------------------------------------------------------------------- 16 bits
for _ty in ("f16", "bf16"):
    for _pair in ("", "x2"):
        _cls = "r" if _pair else "h"
        _two, _three = pairs(_ty, _ty, 256, 12), triples(_ty, _ty, 256)
        if _pair:  # a second, shifted copy in the upper half
            _two, _three = (
                tuple((x << 16) | (x.take(range(37, 37 + len(x)), mode="wrap")) for x in t)
                for t in (_two, _three)
            )
        _t = _ty + _pair
        _rows = [
            (_cls, f"{op}{k}.{_t} {{d}}, {{a}}, {{b}};")
            for op in ("min", "max")
            for k in ("", ".NaN")
        ]
        _rows += [(_cls, f"{op}.{_t} {{d}}, {{a}};") for op in ("neg", "abs")]
        _rows += [(_cls, f"{op}.rn.{_t} {{d}}, {{a}}, {{b}};") for op in ("add", "sub", "mul")]
        if _ty == "f16":
            _rows += [
                (_cls, f"{op}{m}.{_t} {{d}}, {{a}}, {{b}};")
                for op in ("add", "sub", "mul")
                for m in (".ftz", ".sat", ".ftz.sat")
            ]
            _rows += [(_cls, f"{op}.ftz.{_t} {{d}}, {{a}}, {{b}};") for op in ("min", "max")]
        if not _pair:
            _rows += [
                ("p", f"setp.{c}.{_ty} {{d}}, {{a}}, {{b}};")
                for c in ("lt", "equ", "ne", "nan", "geu")
            ]
        alu(f"arithmetic {_t}", _ops(_cls, _two), _rows)
        alu(
            f"fma {_t}",
            _ops(_cls, _three),
            [
                (_cls, f"fma.rn{m}.{_t} {{d}}, {{a}}, {{b}}, {{c}};")
                for m in (("", ".ftz", ".sat", ".relu") if _ty == "f16" else ("", ".relu"))
            ],
        )
