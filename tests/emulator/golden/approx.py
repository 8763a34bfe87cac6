"""Approximate functions: within the errors that the PTX ISA states, on grids and at the corners.

The emulator computes to full precision and rounds once, so half a last place (2^-24 of the value)
is added to each bound.
"""

from __future__ import annotations

import numpy as np

from .case import Rule, alu, rng
from .values import BF16, F16, F32, F64, random_bits

N = 512
HALF = 2.0**-24
TINY = 2.0**-149


def f32_bits(x):
    return np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)


def _grid(seed, low, high, corners=F32):
    """Corners, a regular grid, random values in a range, random exponents."""
    r = rng(f"grid {seed}")
    n = N - len(corners)
    grid = f32_bits(np.linspace(low, high, n // 2))
    some = f32_bits(r.uniform(low, high, n // 4))
    rest = n - len(grid) - len(some)
    wild = f32_bits(np.exp2(r.uniform(-126, 127, rest)) * r.choice([1, 1, -1], rest))
    return {"a": ("f", np.concatenate([corners.astype(np.uint64), grid, some, wild]))}


def near(relative=0.0, absolute=0.0, dtype=""):
    half = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, HALF)
    return Rule("near", relative + half, absolute + TINY, dtype)


def _both(op, rule):
    return [("f", f"{op}.approx{m}.f32 {{d}}, {{a}};", rule) for m in ("", ".ftz")]


# two last places are at most 2^-22 of the value, one 2^-23
alu("ex2.approx.f32", _grid("ex2", -8, 8), _both("ex2", near(2.0**-22, 2 * TINY)))
alu("lg2.approx.f32", _grid("lg2", 2.0**-10, 8), _both("lg2", near(2.0**-22, 2.0**-22)))
alu("rcp.approx.f32", _grid("rcp", 0.5, 4), _both("rcp", near(2.0**-23, TINY)))
alu("rsqrt.approx.f32", _grid("rsqrt", 0.25, 8), _both("rsqrt", near(2.0**-22.9)))
alu("sqrt.approx.f32", _grid("sqrt", 0, 8), _both("sqrt", near(2.0**-23, TINY)))
alu(
    "tanh.approx.f32",
    _grid("tanh", -4, 4),
    [("f", "tanh.approx.f32 {d}, {a};", near(2.0**-11))],
)
# the bound of the middle range only: beyond it the argument is reduced with few digits
_TRIG = np.concatenate([F32[:15], F32[[20, 21, 23, 24, 25, 27]]])
_x = {"a": ("f", np.concatenate([_TRIG.astype(np.uint64),
                                 f32_bits(np.linspace(-6.28, 6.28, N - len(_TRIG)))]))}  # fmt: skip
alu("sin.approx.f32", _x, _both("sin", near(0, 2.0**-20.5)))
alu("cos.approx.f32", _x, _both("cos", near(0, 2.0**-20.5)))
_far = np.random.default_rng(5).uniform(-314, 314, N)
alu("sin.approx.f32 up to 100 pi", {"a": ("f", f32_bits(_far))}, _both("sin", near(0, 2.0**-14.7)))
alu("cos.approx.f32 up to 100 pi", {"a": ("f", f32_bits(_far))}, _both("cos", near(0, 2.0**-14.7)))

_r = rng("divisors")
_num = np.concatenate([F32[:32], f32_bits(_r.standard_normal(N - 32) * 8)])
_den = np.concatenate([_r.permutation(F32[:32]), f32_bits(np.exp2(_r.uniform(-20, 20, N - 32)))])
_two = {"a": ("f", _num.astype(np.uint64)), "b": ("f", _den.astype(np.uint64))}
_div = near(2.0**-22, 2 * TINY)
alu("div.full.f32", _two, [("f", f"div.full{m}.f32 {{d}}, {{a}}, {{b}};", _div)
                           for m in ("", ".ftz")])  # fmt: skip
# approx is only specified for divisors of ordinary size
_safe = dict(_two, b=("f", np.where((_den & 0x7F800000) == 0, 0x3F800000, _den).astype(np.uint64)))
_big = (_safe["b"][1] & np.uint64(0x7FFFFFFF)) > 0x7E800000
_safe["b"] = ("f", np.where(_big, np.uint64(0x40400000), _safe["b"][1]))
alu("div.approx.f32", _safe, [("f", f"div.approx{m}.f32 {{d}}, {{a}}, {{b}};", _div)
                              for m in ("", ".ftz")])  # fmt: skip

# ---------------------------------------------------------------------------- 16 bits, f64
_h = np.concatenate([F16, random_bits(rng("f16"), 16, 256 - len(F16))]).astype(np.uint64)
_b = np.concatenate([BF16, random_bits(rng("bf16"), 16, 256 - len(BF16))]).astype(np.uint64)
_RULES = {
    ("ex2.approx", "f16"): near(2.0**-9.9, 2.0**-24, "float16"),
    ("ex2.approx.ftz", "bf16"): near(2.0**-7, 0, "bfloat16"),
    ("tanh.approx", "f16"): near(0, 2.0**-10.987, "float16"),
    ("tanh.approx", "bf16"): near(0, 2.0**-8, "bfloat16"),
}
for (_op, _ty), _rule in _RULES.items():
    _bits = _h if _ty == "f16" else _b
    alu(f"{_op}.{_ty}", {"a": ("h", _bits)}, [("h", f"{_op}.{_ty} {{d}}, {{a}};", _rule)])
    _pair = _bits | np.roll(_bits, 99) << np.uint64(16)
    _head = f"{{{{\n.reg .b32 %t;\n.reg .b16 %u;\n{_op}.{_ty}x2 %t, {{a}};\n"
    _rows = [
        ("h", _head + f"mov.b32 {{{{{x}}}}}, %t;\n}}}}", _rule) for x in ("{d}, %u", "%u, {d}")
    ]
    alu(f"{_op}.{_ty}x2", {"a": ("r", _pair)}, _rows)
_r = rng("f64 approx")
_wide = np.concatenate([F64, (np.exp2(_r.uniform(-300, 300, 256 - len(F64)))).view(np.uint64)])
for _op in ("rcp", "rsqrt"):
    alu(f"{_op}.approx.ftz.f64", {"a": ("g", _wide)},
        [("g", f"{_op}.approx.ftz.f64 {{d}}, {{a}};",
          Rule("near", 2.0**(-23 if _op == "rcp" else -22.9) + 2.0**-20))])  # fmt: skip
