"""Tensor cores: mma.sync and wgmma (types, majorness, swizzle, descriptors).

Small integers are exact, whatever order the hardware adds in; random values have a tolerance. The
operands are shared-memory images and register fragments full of random elements: a wrong layout
anywhere changes the sums, so nothing has to be laid out here.
"""

from __future__ import annotations

import numpy as np

from .case import EXACT, Case, Rule, add, entry, pointers, rng, whole

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f64": 8, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1}
SMALL = {  # bits of -3..3
    "f16": np.array([0xC200, 0xC000, 0xBC00, 0, 0x3C00, 0x4000, 0x4200], np.uint16),
    "bf16": np.array([0xC040, 0xC000, 0xBF80, 0, 0x3F80, 0x4000, 0x4040], np.uint16),
    "tf32": np.arange(-3, 4).astype(np.float32).view(np.uint32),
    "f64": np.arange(-3, 4).astype(np.float64).view(np.uint64),
    "s8": np.arange(-3, 4).astype(np.int8).view(np.uint8),
    "u8": np.array([0, 1, 2, 3, 100, 200, 255], np.uint8),
    "e4m3": np.array([0xC4, 0xC0, 0xB8, 0, 0x38, 0x40, 0x44], np.uint8),
    "e5m2": np.array([0xC2, 0xC0, 0xBC, 0, 0x3C, 0x40, 0x42], np.uint8),
}
#: what a sum of up to 64 products of values below 4 may differ by: registers, and the short
#: accumulator of the 8-bit types
TOLERANCE = {"f16": 0.06, "f32": 2.0**-14, "f32 of 8 bits": 2.0**-4, "f64": 2.0**-44}


def elements(r, ty, count, exact):
    """Random elements of an operand, as bytes."""
    if exact or ty in ("s8", "u8"):
        if ty == "s8" and not exact:
            return r.integers(0, 256, count).astype(np.uint8)
        return r.choice(SMALL[ty], count).view(np.uint8)
    x = np.clip(r.standard_normal(count), -3.9, 3.9)
    if ty == "f16":
        return x.astype(np.float16).view(np.uint8)
    if ty == "bf16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if ty == "tf32":
        return (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.uint8)
    if ty == "f64":
        return x.view(np.uint8)
    # up to 3.75 in e4m3, 3.5 in e5m2, both signs
    top = 0x48 if ty == "e4m3" else 0x44
    return (r.integers(0, top, count) | r.integers(0, 2, count) << 7).astype(np.uint8)


def _rule(dt, ty, exact):
    if exact or dt == "s32":
        return EXACT, None
    key = "f32 of 8 bits" if dt == "f32" and BYTES[ty] == 1 else dt
    # the result may be 200 when the products cancel little: a last place of it counts too
    rel = {"f16": 2.0**-9, "f32": 2.0**-20, "f32 of 8 bits": 2.0**-10, "f64": 2.0**-50}[key]
    name = {"f16": "float16", "f32": "float32", "f64": "float64"}[dt]
    return Rule("near", rel, TOLERANCE[key]), name


# ---------------------------------------------------------------------------- mma.sync
MMA = [
    ("m16n8k16", "f32", "bf16", "bf16"), ("m16n8k8", "f32", "bf16", "bf16"),
    ("m16n8k16", "f32", "f16", "f16"), ("m16n8k8", "f32", "f16", "f16"),
    ("m16n8k16", "f16", "f16", "f16"), ("m16n8k8", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "tf32", "tf32"), ("m16n8k4", "f32", "tf32", "tf32"),
    ("m16n8k32", "s32", "s8", "s8"), ("m16n8k32", "s32", "u8", "s8"),
    ("m16n8k32", "s32", "s8", "u8"), ("m16n8k32", "s32", "u8", "u8"),
    ("m16n8k16", "s32", "s8", "s8"), ("m8n8k16", "s32", "s8", "u8"),
    ("m16n8k32", "f32", "e4m3", "e4m3"), ("m16n8k32", "f32", "e5m2", "e5m2"),
    ("m16n8k32", "f32", "e4m3", "e5m2"),
    ("m8n8k4", "f64", "f64", "f64"), ("m16n8k4", "f64", "f64", "f64"),
    ("m16n8k8", "f64", "f64", "f64"), ("m16n8k16", "f64", "f64", "f64"),
]  # fmt: skip


def mma(shape, dt, at, bt, exact, satfinite=False):
    """One mma.sync on random fragments, added to a random C."""
    m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    wide = 8 if at == "f64" else 4
    na, nb = m * k * BYTES[at] // 32 // wide, k * 8 * BYTES[bt] // 32 // wide
    nc = m // 4 // (2 if dt == "f16" else 1)
    kind = {"f64": "f64", "f32": "f32"}.get(dt, "b32")
    operand = "f64" if at == "f64" else "b32"
    params, loads = pointers("a", "b", "c")
    body = [loads, "mov.u32 %r50, %tid.x;", f".reg .{operand} %oa<16>, %ob<16>;"]
    body[2] = f".reg .{operand} %oa<16>;\n.reg .{operand} %ob<16>;\n.reg .{kind} %oc<16>;"
    for which, name, n in (("1", "oa", na), ("2", "ob", nb), ("3", "oc", nc)):
        body += [f"mul.wide.u32 %d20, %r50, {n * wide};", f"add.u64 %d20, %d{which}, %d20;"]
        body += [f"ld.global.b{8 * wide} %{name}{i}, [%d20 + {i * wide}];" for i in range(n)]
    a, b, c = (
        "{" + ", ".join(f"%{x}{i}" for i in range(n)) + "}"
        for x, n in (("oa", na), ("ob", nb), ("oc", nc))
    )
    sat = ".satfinite" if satfinite else ""
    body.append(f"mma.sync.aligned.{shape}.row.col{sat}.{dt}.{at}.{bt}.{dt} {c}, {a}, {b}, {c};")
    body += [f"st.global.b{8 * wide} [%d20 + {i * wide}], %oc{i};" for i in range(nc)]
    name = f"mma {shape} {dt} {at} {bt}{sat} {'integers' if exact else 'random'}"
    r = rng(name)
    if dt == "s32":
        old = r.integers(-1000, 1000, 32 * nc).astype(np.int32)
        if satfinite:
            old = r.choice([2**31 - 5, -(2**31) + 5], 32 * nc).astype(np.int32)
    else:
        old = elements(r, "tf32" if dt == "f32" else dt, 32 * m // 4, exact)
    rule, dtype = _rule(dt, at, exact)
    c = np.ascontiguousarray(old).view(np.uint8)
    buffers = {
        "a": elements(r, at, 32 * na * wide // BYTES[at], exact),
        "b": elements(r, bt, 32 * nb * wide // BYTES[bt], exact),
        "c": c,
    }
    add(Case(name, entry("\n".join(body), params), buffers, ["a", "b", "c"],
             [whole("c", c, rule, dtype or "uint32")]))  # fmt: skip


for _shape, _dt, _a, _b in MMA:
    mma(_shape, _dt, _a, _b, True)
    if _dt != "s32" or _a == "s8" == _b:
        mma(_shape, _dt, _a, _b, False)
mma("m16n8k32", "s32", "s8", "s8", True, satfinite=True)


# ---------------------------------------------------------------------------- wgmma
IMAGE = 32768
K_OF = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


def descriptor(lbo, sbo, mode, base=0):
    """Matrix descriptor without its start address; offsets in bytes, mode 0 none, 1 128B, ..."""
    return (lbo >> 4 & 0x3FFF) << 16 | (sbo >> 4 & 0x3FFF) << 32 | base << 49 | mode << 62


def wgmma(name, n, dt, at, bt=None, *, da, db, a=0, b=8192, tail=None, steps=((0, 0),),
          fragment=False, accumulate=False, exact=True, negate=(1, 1), trans=(0, 0)):  # fmt: skip
    """wgmma on a shared-memory image.

    Parameters
    ----------
    da, db : int
        Descriptors of A and B; ``a``, ``b`` are the byte offsets of the operands in the image.
    steps : list of (int, int)
        Byte advance of A and of B for each wgmma of the group.
    fragment : bool
        A comes from registers.
    accumulate : bool
        The first one adds to accumulators that hold small values; otherwise scale-d is false.
    """
    bt = bt or at
    regs = n // 2 // (2 if dt == "f16" else 1)
    acc = "{" + ", ".join(f"%acc{i}" for i in range(regs)) + "}"
    kind = "f32" if dt == "f32" else "b32"
    params, loads = pointers("image", "frag", "c")
    body = [
        f".reg .{kind} %acc<{regs}>;",
        loads,
        f"""
mov.u32 %r50, %tid.x;
mov.u32 %r1, buf;
shl.b32 %r2, %r50, 4;
fill:
cvt.u64.u32 %d20, %r2;
add.u64 %d20, %d1, %d20;
ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d20];
add.u32 %r3, %r1, %r2;
st.shared.v4.b32 [%r3], {{%r10, %r11, %r12, %r13}};
add.u32 %r2, %r2, 2048;
setp.lt.u32 %p1, %r2, {IMAGE};
@%p1 bra fill;
fence.proxy.async.shared::cta;
bar.sync 0;
mul.wide.u32 %d21, %r50, 16;
add.u64 %d21, %d2, %d21;
ld.global.v4.b32 {{%r14, %r15, %r16, %r17}}, [%d21];
mul.wide.u32 %d22, %r50, {regs * 4};
add.u64 %d22, %d3, %d22;
setp.ne.u32 %p2, %r50, %r50;
""",
    ]
    body += [f"ld.global.b32 %acc{i}, [%d22 + {4 * i}];" for i in range(regs)]
    for k, (sa, sb) in enumerate(steps):  # descriptors first: nothing between fence and wgmma
        for what, base, off, reg in ((da, a, sa, 10 + 2 * k), (db, b, sb, 11 + 2 * k)):
            body.append(f"add.u32 %r4, %r1, {base + off};\nshr.u32 %r4, %r4, 4;")
            body.append("and.b32 %r4, %r4, 0x3fff;\ncvt.u64.u32 %d30, %r4;")
            body.append(f"mov.u64 %d31, {what:#x};\nor.b64 %d{reg}, %d30, %d31;")
    body.append("wgmma.fence.sync.aligned;")
    for k in range(len(steps)):
        scale = "1" if accumulate or k else "%p2"
        if dt == "s32":
            more = ""
        else:
            more = f", {negate[0]}, {negate[1]}"
            if at in ("f16", "bf16"):
                more += f", {trans[1]}" if fragment else f", {trans[0]}, {trans[1]}"
        left = "{%r14, %r15, %r16, %r17}" if fragment else f"%d{10 + 2 * k}"
        body.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{K_OF[at]}.{dt}.{at}.{bt} {acc}, {left}, "
            f"%d{11 + 2 * k}, {scale}{more};"
        )
    body += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    body += [f"st.global.b32 [%d22 + {4 * i}], %acc{i};" for i in range(regs)]
    full = f"wgmma {name} m64n{n} {dt} {at} {bt}{'' if exact else ' random'}"
    r = rng(full)
    image = elements(r, at, IMAGE // BYTES[at], exact)
    half = elements(r, bt, (IMAGE - b) // BYTES[bt], exact)
    image[b:] = half
    if accumulate:
        ty = {"f32": "tf32", "f16": "f16"}.get(dt)
        c = elements(r, ty, 64 * n, True) if ty else r.integers(-9, 9, 64 * n).astype(np.int32)
    else:  # NaN everywhere: a false scale-d must not read them
        c = np.full(64 * n * (2 if dt == "f16" else 4), 0xFF, np.uint8)
    c = np.ascontiguousarray(c).view(np.uint8)
    frag = elements(r, at, 2048 // BYTES[at], exact)
    rule, dtype = _rule(dt, at, exact)
    add(Case(full, entry("\n".join(body), params, ".shared .align 1024 .b8 buf[32768];"),
             {"image": image, "frag": frag, "c": c}, ["image", "frag", "c"],
             [whole("c", c, rule, dtype or "uint32")], block=128))  # fmt: skip


_K32 = descriptor(0, 256, 3)
TYPES = [
    (8, "f32", "bf16"), (24, "f32", "f16"), (16, "f16", "f16"), (16, "f32", "tf32"),
    (24, "s32", "s8"), (16, "s32", "u8"), (32, "f32", "e4m3"), (16, "f32", "e5m2"),
    (16, "f16", "e4m3"), (16, "f16", "e5m2"),
]  # fmt: skip
for _n, _dt, _ty in TYPES:
    wgmma("K-major 32B", _n, _dt, _ty, da=_K32, db=_K32)
    wgmma("K-major 32B added", 16, _dt, _ty, da=_K32, db=_K32, accumulate=True)
    wgmma("A in registers", 16, _dt, _ty, da=0, db=_K32, fragment=True)
    wgmma("K-major 32B", 16, _dt, _ty, da=_K32, db=_K32, exact=False)
for _a, _b, _dt in (("e4m3", "e5m2", "f32"), ("e5m2", "e4m3", "f16"), ("s8", "u8", "s32"),
                    ("u8", "s8", "s32")):  # fmt: skip
    wgmma("K-major 32B", 16, _dt, _a, _b, da=_K32, db=_K32)
for _neg in ((-1, 1), (1, -1), (-1, -1)):
    wgmma(f"negated {_neg}", 8, "f32", "bf16", da=_K32, db=_K32, negate=_neg, accumulate=True)
for _n in (40, 96, 256):
    wgmma("wide", _n, "f32", "bf16", da=_K32, db=_K32)

# majorness x swizzle, as the tiles of a 64-deep k block (32 and 16 deep in the narrow modes)
MODES = {128: 1, 64: 2, 32: 3, 0: 0}


def layout(major, swizzle, rows):
    """(descriptor, byte advance per k16) of a 16-bit operand tile of ``rows`` rows."""
    span = swizzle or 128
    depth = span // 2 if swizzle else 64  # k elements of the tile
    if major == "k":
        if swizzle:
            return descriptor(16, 8 * span, MODES[swizzle]), 32
        return descriptor(rows * 16, 128, 0), 2 * rows * 16
    if swizzle:
        return descriptor(depth * span, 8 * span, MODES[swizzle]), 16 * span
    return descriptor(128, depth * 16, 0), 256


for _s in (128, 64, 32, 0):
    for _ma in "km":
        for _mb in "km":
            _n = 72 if (_s, _ma) == (128, "k") else 48
            (_da, _sa), (_db, _sb) = layout(_ma, _s, 64), layout(_mb, _s, _n)
            _count = {128: 4, 64: 2, 32: 1, 0: 4}[_s]
            wgmma(
                f"{_ma}-{_mb}-major {_s}B", _n, "f32", "bf16" if _s else "f16", da=_da, db=_db,
                steps=[(_sa * k, _sb * k) for k in range(_count)],
                trans=(int(_ma == "m"), int(_mb == "m")), b=12288 if _s else 16384,
            )  # fmt: skip
# descriptors off the beaten path: the fields mean the same for every value
_K128 = descriptor(16, 1024, 1)
for _row in (1, 2, 4, 8):
    wgmma(f"A starts at row {_row}", 8, "f32", "bf16", da=_K128, db=_K128, a=128 * _row, b=16384)
    wgmma(f"B starts at row {_row}", 8, "f32", "bf16", da=_K128, db=_K128, b=16384 + 128 * _row)
for _sbo in (128, 512, 2048):
    wgmma(f"SBO {_sbo}", 16, "f32", "bf16", da=_K128, db=descriptor(16, _sbo, 1), b=16384)
for _lbo in (0, 4096, 262128):
    wgmma(f"LBO {_lbo} of a K-major tile", 8, "f32", "bf16", da=_K128, db=descriptor(_lbo, 1024, 1))
for _lbo in (1024, 4096, 8192):
    wgmma(f"LBO {_lbo} of an MN-major tile", 72, "f32", "bf16", da=_K128,
          db=descriptor(_lbo, 1024, 1), b=16384, trans=(0, 1))  # fmt: skip
for _lbo, _sbo in ((128, 256), (256, 128), (1024, 512)):
    wgmma(f"no swizzle, LBO {_lbo}, SBO {_sbo}", 24, "f32", "f16", da=descriptor(_lbo, _sbo, 0),
          db=descriptor(_lbo, _sbo, 0), b=16384)  # fmt: skip
wgmma("64B A and 128B B", 16, "f32", "bf16", da=descriptor(16, 512, 2), db=_K128, b=16384)
wgmma("A at 16 bytes", 8, "f32", "bf16", da=_K128, db=_K128, a=32 + 128, b=16384)
