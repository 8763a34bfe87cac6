"""Tensor stores and reductions, 1-D bulk copies, cp.async."""

from __future__ import annotations

import numpy as np

from . import pieces
from .case import Case, Map, add, entry, pointers, rng, whole
from .copies import ES, pattern
from .values import moderate

OPS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def store_text(rank, size, at, op):
    """Fill the buffer from ``src`` and store one box per CTA at its row of ``where``."""
    head = "cp.async.bulk.tensor" if op is None else "cp.reduce.async.bulk.tensor"
    kind = "" if op is None else f".{op}"
    body = f"""
mov.b64 %d2, m;
cvta.param.u64 %d2, %d2;
ld.param.u64 %d1, [src];
ld.param.u64 %d3, [where];
mov.u32 %r49, %ctaid.x;
mul.wide.u32 %d4, %r49, {4 * rank};
add.u64 %d3, %d3, %d4;
mov.u32 %r2, buf;
mov.u32 %r50, %tid.x;
setp.eq.u32 %p1, %r50, 0;
shl.b32 %r53, %r50, 4;
fill:
cvt.u64.u32 %d31, %r53;
add.u64 %d31, %d1, %d31;
ld.global.v4.u32 {{%r56, %r57, %r58, %r59}}, [%d31];
add.u32 %r54, %r2, %r53;
st.shared.v4.u32 [%r54], {{%r56, %r57, %r58, %r59}};
add.u32 %r53, %r53, 512;
setp.lt.u32 %p9, %r53, {size};
@%p9 bra fill;
fence.proxy.async.shared::cta;
bar.sync 0;
"""
    body += "".join(f"ld.global.u32 %r{30 + k}, [%d3 + {4 * k}];\n" for k in range(rank))
    coords = ", ".join(f"%r{30 + k}" for k in range(rank))
    body += f"""
add.u32 %r3, %r2, {at};
@%p1 {head}.{rank}d.global.shared::cta{kind}.tile.bulk_group [%d2, {{{coords}}}], [%r3];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;
"""
    params = [".align 64 .b8 m[128]", ".u64 src", ".u64 where"]
    return entry(body, params, pieces.SHARED.format(size=size))


def store(name, dtype, dims, box, where, *, op=None, strides=None, at=0, target=None, src=None,
          swizzle=0, fault=False, spill=False):  # fmt: skip
    """A store or reduction at each row of ``where``; boxes must not overlap."""
    es, rank = ES[dtype], len(dims)
    if strides is None:
        strides = [es * int(np.prod(dims[: k + 1])) for k in range(rank - 1)]
    total = strides[-1] * dims[-1] if strides else es * dims[0]
    size = -(-(int(np.prod(box)) * es + at) // 512) * 512
    target = np.full(-(-total // 16) * 16, 0x11, np.uint8) if target is None else target
    src = pattern(size) if src is None else np.resize(src, size)
    record = {"dtype": dtype, "dims": tuple(dims), "strides": tuple(strides), "box": tuple(box)}
    add(
        Case(
            name,
            store_text(rank, size, at, op),
            {"t": target, "src": src, "where": np.array(where, np.int32)},
            [Map("t", {**record, "swizzle": swizzle}), "src", "where"],
            [whole("t", target)],
            grid=len(where),
            fault=fault,
            hazards=frozenset({"tma-spill"} if spill else ()),
        )
    )


for _s in (0, 32, 64, 128):
    _w = (_s or 128) // 2
    store(f"store swizzle {_s}", "bfloat16", (_w + 16, 20), (_w, 8), [(0, 0), (8, 9)], swizzle=_s)
    store(f"store swizzle {_s} at 256", "bfloat16", (_w, 10), (_w, 8), [(0, 1)], at=256,
          swizzle=_s)  # fmt: skip
for _rank in range(1, 6):
    store(f"store rank {_rank}", "uint16", (24, 6, 5, 3, 4)[:_rank], (16, 3, 2, 2, 2)[:_rank],
          [(8, 1, 1, 1, 1)[:_rank]])  # fmt: skip
    store(f"store rank {_rank} clipped", "uint16", (24, 6, 5, 3, 4)[:_rank],
          (16, 3, 2, 2, 2)[:_rank], [(16, 4, 4, 2, 3)[:_rank]])  # fmt: skip
# the innermost dimension clips at 16 bytes, the others exactly
for _ty, _widths in (("bfloat16", (57, 50, 9, 1, 56, 8)), ("float32", (29, 5)), ("uint8", (101,))):
    for _width in _widths:
        _pitch, _es = 128, ES[_ty]
        store(f"store {_ty} width {_width}", _ty, (_width, 4), (128 // _es, 4), [(0, 0)],
              strides=[_pitch], spill=_width * _es % 16 > 0)  # fmt: skip
store("store width 57 swizzle 128", "bfloat16", (57, 4), (64, 4), [(0, 0)], strides=[128],
      swizzle=128, spill=True)  # fmt: skip
store("store outside", "bfloat16", (32, 8), (16, 4), [(32, 0), (0, 8), (64, 100), (16, 6)])
store("fault: store at a negative row", "bfloat16", (32, 8), (16, 4), [(0, -1)], fault=True)
store("fault: store at a negative column", "bfloat16", (32, 8), (16, 4), [(-8, 0)], fault=True)
store("fault: reduce max on u16", "uint16", (32, 8), (16, 4), [(0, 0)], op="max", fault=True)

# ---------------------------------------------------------------------------- reductions
VALID = {
    "add": ("uint32", "int32", "uint64", "int64", "bfloat16", "float16", "float32", "float64"),
    "min": ("uint32", "int32", "uint64", "int64", "bfloat16", "float16"),
    "max": ("uint32", "int32", "uint64", "int64", "bfloat16", "float16"),
    "inc": ("uint32",),
    "dec": ("uint32",),
    "and": ("uint32", "int32", "uint64", "int64"),
    "or": ("uint32", "int32", "uint64", "int64"),
    "xor": ("uint32", "int32", "uint64", "int64"),
}
#: pairs of bits that meet: (old, new)
_ODD = {
    "float32": [(1, 1), (0x80000001, 1), (0x00400000, 0x00400000), (0x7F7FFFFF, 0x7F7FFFFF),
                (0x7F800000, 0xFF800000), (0x7FC12345, 0x3F800000), (0x3F800000, 0xFFC00001),
                (0, 0x80000000), (0x80000000, 0x80000000), (0x3F800000, 0x33800000),
                (0x3F800001, 0x33800000), (0x7F800001, 0)],
    "bfloat16": [(0x4380, 0x3F80), (0x4381, 0x3F80), (1, 1), (0x8001, 1), (0x7F7F, 0x7F7F),
                 (0x7F80, 0xFF80), (0x7FC1, 0x3F80), (0x3F80, 0xFFC1), (0, 0x8000),
                 (0x8000, 0), (0x8000, 0x8000), (0x7F81, 0x7F81)],
    "float16": [(0x6800, 0x3C00), (0x6801, 0x3C00), (1, 1), (0x8001, 1), (0x7BFF, 0x7BFF),
                (0x7C00, 0xFC00), (0x7E01, 0x3C00), (0x3C00, 0xFE01), (0, 0x8000),
                (0x8000, 0), (0x8000, 0x8000), (0x7C01, 0x7C01)],
    "float64": [(1, 1), (0x7FF0 << 48, 0xFFF0 << 48), (0x7FF8000000000001, 0x3FF0 << 48),
                (0, 1 << 63), (0x3FF0 << 48, 0x3CA0 << 48), (0x7FEFFFFFFFFFFFFF,) * 2],
}  # fmt: skip


def operands(dtype, op):
    """Old contents and new values of 128 elements, as bytes."""
    r = rng(f"reduce {dtype}")
    w = 8 * ES[dtype]
    u = {16: np.uint16, 32: np.uint32, 64: np.uint64}[w]
    if dtype in _ODD:
        ty = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}[dtype]
        old, new = (moderate(r, ty, 128).astype(u) for _ in range(2))
        for k, (a, b) in enumerate(_ODD[dtype]):
            old[k], new[k] = a, b
    else:
        old, new = (r.integers(0, 1 << 63, 128, np.uint64).astype(u) for _ in range(2))
        old, new = old << u(1) | u(1), new
        old[::3] = r.integers(0, 9, 43)
        new[::4] = r.integers(0, 9, 32)
        new[5], old[5] = old[5], old[5]
    return old.view(np.uint8), new.view(np.uint8)


for _op, _types in VALID.items():
    for _ty in _types:
        _old, _new = operands(_ty, _op)
        _row = 64 // ES[_ty]
        store(f"reduce {_op} {_ty}", _ty, (_row, 128 // _row), (_row, 128 // _row), [(0, 0)],
              op=_op, target=_old, src=_new)  # fmt: skip
store("reduce add clipped", "bfloat16", (28, 5), (32, 4), [(0, 2)], op="add", strides=[64],
      target=np.full(5 * 32, 0x3F80, np.uint16).view(np.uint8),
      src=np.full(256, 0x4000, np.uint16).view(np.uint8), spill=True)  # fmt: skip
store("reduce max swizzle 64", "float16", (32, 8), (32, 8), [(0, 0)], op="max", swizzle=64,
      target=np.full(256, 0x4000, np.uint16).view(np.uint8))  # fmt: skip


# ---------------------------------------------------------------------------- 1-D bulk copies
def bulk(name, middle, buffers, outputs, size=1024, block=32, **more):
    params, loads = pointers(*buffers)
    body = loads + pieces.start(size) + middle
    add(Case(name, entry(body, params, pieces.SHARED.format(size=size)), buffers, list(buffers),
             [whole(n, buffers[n]) for n in outputs], block=block, **more))  # fmt: skip


_SRC = pattern(2048)
for _n, _to, _from in ((16, 0, 0), (16, 16, 32), (48, 32, 16), (1008, 16, 16), (256, 128, 1024)):
    _out = np.zeros(1024 + 16, np.uint8)
    bulk(
        f"bulk load of {_n} from {_from} to {_to}",
        f"""
mov.u32 %r49, 0;
add.u32 %r3, %r2, {_to};
add.u64 %d10, %d2, {_from};
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {_n};
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d10], {_n}, [%r1];
"""
        + pieces.wait()
        + pieces.dump(1024),
        {"out": _out, "src": _SRC},
        ["out"],
    )
_FILL = """
shl.b32 %r53, %r50, 4;
copyin:
cvt.u64.u32 %d31, %r53;
add.u64 %d31, %d2, %d31;
ld.global.v4.u32 {%r56, %r57, %r58, %r59}, [%d31];
add.u32 %r54, %r2, %r53;
st.shared.v4.u32 [%r54], {%r56, %r57, %r58, %r59};
add.u32 %r53, %r53, 512;
setp.lt.u32 %p9, %r53, 1024;
@%p9 bra copyin;
fence.proxy.async.shared::cta;
bar.sync 0;
"""
_DRAIN = "@%p1 cp.async.bulk.commit_group;\n@%p1 cp.async.bulk.wait_group 0;\n"
for _n, _to, _from in ((16, 16, 0), (96, 0, 16), (1024, 0, 0), (512, 48, 256)):
    bulk(
        f"bulk store of {_n} from {_from} to {_to}",
        _FILL
        + f"""
add.u32 %r3, %r2, {_from};
add.u64 %d10, %d1, {_to};
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d10], [%r3], {_n};
"""
        + _DRAIN,
        {"out": np.full(1040, 0x11, np.uint8), "src": _SRC[:1024]},
        ["out"],
    )
_BULK = {"uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64", "float16": "f16",
         "bfloat16": "bf16", "float32": "f32", "float64": "f64"}  # fmt: skip
for _op, _types in VALID.items():
    for _ty in _types:
        if _op in ("and", "or", "xor"):
            if _ty.startswith("int"):
                continue
            _name = f"b{8 * ES[_ty]}"
        else:
            _name = _BULK[_ty]
        if (_op, _name) == ("add", "s64"):
            continue
        _noftz = ".noftz" if _op == "add" and _name in ("f16", "bf16") else ""
        _old, _new = operands(_ty, _op)
        bulk(
            f"bulk reduce {_op}.{_name}",
            _FILL
            + f"@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{_op}{_noftz}.{_name} "
            + f"[%d1], [%r2], {len(_old)};\n"
            + _DRAIN,
            {"out": _old.copy(), "src": np.resize(_new, 1024)},
            ["out"],
        )

# ---------------------------------------------------------------------------- cp.async
for _size in (4, 8, 16):
    for _cache in ("ca", "cg") if _size == 16 else ("ca",):
        _p, _l = pointers("out", "src", "count")
        _body = f"""
{_l}
mov.u32 %r50, %tid.x;
mov.u32 %r2, buf;
mul.wide.u32 %d20, %r50, 4;
add.u64 %d21, %d3, %d20;
ld.global.u32 %r3, [%d21];
mul.lo.u32 %r4, %r50, {_size};
cvt.u64.u32 %d22, %r4;
add.u64 %d23, %d2, %d22;
add.u32 %r5, %r2, %r4;
cp.async.{_cache}.shared.global [%r5], [%d23], {_size}, %r3;
cp.async.{_cache}.shared.global [%r5 + 512], [%d23 + 16], {_size};
cp.async.commit_group;
setp.lt.u32 %p1, %r50, 20;
@%p1 cp.async.{_cache}.shared.global [%r5 + 1024], [%d23], {_size};
@!%p1 st.shared.u32 [%r5 + 1024], %r50;
cp.async.wait_all;
bar.sync 0;
mul.lo.u32 %r6, %r50, 48;
cvt.u64.u32 %d24, %r6;
add.u64 %d25, %d1, %d24;
add.u32 %r7, %r5, 512;
add.u32 %r8, %r5, 1024;
"""
        _v = {4: "", 8: ".v2", 16: ".v4"}[_size]
        _list = {4: "%r10", 8: "{%r10, %r11}", 16: "{%r10, %r11, %r12, %r13}"}[_size]
        for _k, _reg in enumerate(("%r5", "%r7")):
            _body += f"ld.shared{_v}.u32 {_list}, [{_reg}];\n"
            _body += f"st.global{_v}.u32 [%d25 + {16 * _k}], {_list};\n"
        _body += "ld.shared.u32 %r10, [%r8];\nst.global.u32 [%d25 + 32], %r10;\n"
        _count = (np.arange(32) * 5 % (_size + 1)).astype(np.uint32)
        _out = np.zeros(32 * 48, np.uint8)
        add(
            Case(
                f"cp.async.{_cache} {_size} with zero fill",
                entry(_body, _p, ".shared .align 16 .b8 buf[1536];"),
                {"out": _out, "src": pattern(544), "count": _count},
                ["out", "src", "count"],
                [whole("out", _out)],
            )
        )
