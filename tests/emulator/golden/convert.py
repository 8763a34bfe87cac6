"""Conversions that touch a floating type."""

from __future__ import annotations

import numpy as np

from .case import alu
from .values import floats, integers, shuffled

N = 256
CLS = {"f32": "f", "f64": "g", "f16": "h", "bf16": "h"}
RND = ("rn", "rz", "rm", "rp")
IRND = ("rni", "rzi", "rmi", "rpi")
INTS = [f"{s}{w}" for w in (8, 16, 32, 64) for s in "us"]


def _cls(ty):
    w = int(ty[1:])
    return {8: "r", 16: "h", 32: "r", 64: "d"}[w]


_SRC = {ty: {"a": (CLS[ty], floats("cvt", ty, N))} for ty in CLS}

for _ty in CLS:
    _rows = [(_cls(i), f"cvt.{r}.{i}.{_ty} {{d}}, {{a}};") for i in INTS for r in IRND]
    if _ty == "bf16":  # has no conversions to 8 bits
        _rows = _rows[2 * len(IRND) :]
    if _ty == "f32":
        _rows += [(_cls(i), f"cvt.rni.ftz.{i}.f32 {{d}}, {{a}};") for i in ("s32", "u64")]
        _rows += [(_cls(i), f"cvt.rpi.ftz.{i}.f32 {{d}}, {{a}};") for i in ("s32", "u64")]
    alu(f"{_ty} to integers", _SRC[_ty], _rows)
    # rounding to an integral value in the type itself
    _mods = ("", ".ftz", ".sat") if _ty == "f32" else ("", ".sat") if _ty != "bf16" else ("",)
    alu(
        f"{_ty} to integral values",
        _SRC[_ty],
        [(CLS[_ty], f"cvt.{r}{m}.{_ty}.{_ty} {{d}}, {{a}};") for r in IRND for m in _mods],
    )

_TWO = {"a": _SRC["f32"]["a"], "b": ("f", shuffled("second", floats("cvt b", "f32", N)))}
alu(
    "f32 to shorter floats",
    _TWO,
    [("h", f"cvt.{r}.f16.f32 {{d}}, {{a}};") for r in RND]
    + [("h", f"cvt.{r}.bf16.f32 {{d}}, {{a}};") for r in RND]
    + [
        ("h", f"cvt.{r}{m}.f16.f32 {{d}}, {{a}};")
        for r in ("rn", "rz")
        for m in (".ftz", ".sat", ".ftz.sat", ".relu")
    ]
    + [("h", f"cvt.{r}.relu.bf16.f32 {{d}}, {{a}};") for r in ("rn", "rz")]
    + [
        ("r", f"cvt.{r}{m}.{t}x2.f32 {{d}}, {{a}}, {{b}};")
        for t in ("f16", "bf16")
        for r in ("rn", "rz")
        for m in ("", ".relu")
    ],
)
alu(
    "f32 to tf32",
    _TWO,
    [("r", f"cvt.{r}.tf32.f32 {{d}}, {{a}};") for r in ("rna", "rn", "rz")],
)
alu("f32 to tf32 with relu", _TWO,
    [("r", f"cvt.{r}.relu.tf32.f32 {{d}}, {{a}};") for r in ("rn", "rz")])  # fmt: skip
alu(
    "f32 to shorter floats, saturating",
    _TWO,
    [("r", "cvt.rna.satfinite.tf32.f32 {d}, {a};")]
    + [("r", f"cvt.{r}.satfinite.f16x2.f32 {{d}}, {{a}}, {{b}};") for r in ("rn", "rz")],
)
_HALVES = floats("fp8", "f16", 2 * N)
_PAIRS = {"a": ("r", _HALVES[:N] | shuffled("upper", _HALVES[N:]) << np.uint64(16))}
for _t in ("e4m3x2", "e5m2x2"):
    alu(
        f"to {_t}",
        _TWO,
        [("h", f"cvt.rn.satfinite{m}.{_t}.f32 {{d}}, {{a}}, {{b}};") for m in ("", ".relu")],
    )
    alu(
        f"f16x2 to {_t}",
        _PAIRS,
        [("h", f"cvt.rn.satfinite{m}.{_t}.f16x2 {{d}}, {{a}};") for m in ("", ".relu")],
    )
    _codes = np.arange(256) | np.roll(np.arange(256), 85) << 8
    alu(
        f"every {_t[:4]}",
        {"a": ("h", _codes.astype(np.uint64))},
        [("r", f"cvt.rn{m}.f16x2.{_t} {{d}}, {{a}};") for m in ("", ".relu")],
    )
alu(
    "f32 to f32 and f64",
    _SRC["f32"],
    [
        ("f", "cvt.ftz.f32.f32 {d}, {a};"),
        ("f", "cvt.sat.f32.f32 {d}, {a};"),
        ("f", "cvt.ftz.sat.f32.f32 {d}, {a};"),
        ("g", "cvt.f64.f32 {d}, {a};"),
        ("g", "cvt.ftz.f64.f32 {d}, {a};"),
        ("g", "cvt.sat.f64.f32 {d}, {a};"),
    ],
)
alu(
    "f64 to shorter floats",
    _SRC["f64"],
    [("f", f"cvt.{r}{m}.f32.f64 {{d}}, {{a}};") for r in RND for m in ("", ".ftz", ".sat")]
    + [("h", f"cvt.{r}.f16.f64 {{d}}, {{a}};") for r in RND],
)
alu("f64 to bf16", _SRC["f64"], [("h", f"cvt.{r}.bf16.f64 {{d}}, {{a}};") for r in RND])
alu(
    "f16 to other floats",
    _SRC["f16"],
    [
        ("f", "cvt.f32.f16 {d}, {a};"),
        ("f", "cvt.ftz.f32.f16 {d}, {a};"),
        ("f", "cvt.sat.f32.f16 {d}, {a};"),
        ("g", "cvt.f64.f16 {d}, {a};"),
        ("h", "cvt.sat.f16.f16 {d}, {a};"),
    ],
)
alu("f16 to bf16", _SRC["f16"], [("h", f"cvt.{r}.bf16.f16 {{d}}, {{a}};") for r in RND])
alu(
    "bf16 to other floats",
    _SRC["bf16"],
    [
        ("f", "cvt.f32.bf16 {d}, {a};"),
        ("g", "cvt.f64.bf16 {d}, {a};"),
    ]
    + [("h", f"cvt.{r}.f16.bf16 {{d}}, {{a}};") for r in RND],
)
for _i in INTS:
    _rows = []
    for _f in ("f32", "f16", "f64", "bf16"):
        for _r in RND:
            if (_f, _i[1:]) != ("bf16", "8") and not (
                _f == "f64" and _i[1:] == "64" and _r != "rn"
            ):
                _rows.append((CLS[_f], f"cvt.{_r}.{_f}.{_i} {{d}}, {{a}};"))
    alu(f"{_i} to floats", {"a": (_cls(_i), integers("to float", int(_i[1:]), N))}, _rows)
    alu(f"{_i} to floats, saturating", {"a": (_cls(_i), integers("to float", int(_i[1:]), N))},
        [("f", f"cvt.rn.sat.f32.{_i} {{d}}, {{a}};")])  # fmt: skip
for _i in ("u64", "s64"):
    alu(f"{_i} to f64, directed roundings", {"a": ("d", integers("to float", 64, N))},
        [("g", f"cvt.{r}.f64.{_i} {{d}}, {{a}};") for r in RND[1:]],
        refused="directed rounding")  # fmt: skip
