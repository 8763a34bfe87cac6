"""Tensor maps: an own 128-byte encoding that kernels can copy around like the real one."""

import struct

from .errors import EmulatorError

MAGIC = 0x50414D44


DTYPES = {  # name -> (code, bytes, float?)
    "uint8": (0, 1, False),
    "uint16": (1, 2, False),
    "uint32": (2, 4, False),
    "int32": (3, 4, False),
    "uint64": (4, 8, False),
    "int64": (5, 8, False),
    "float16": (6, 2, True),
    "float32": (7, 4, True),
    "float64": (8, 8, True),
    "bfloat16": (9, 2, True),
    "float32_ftz": (10, 4, True),
    "tfloat32": (11, 4, True),
    "tfloat32_ftz": (12, 4, True),
}


ALIASES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "half": "float16",
    "f32": "float32",
    "int8": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "f64": "float64",
}


BY_CODE = {v[0]: (k, v[1], v[2]) for k, v in DTYPES.items()}


SPANS = {0: 1 << 20, 32: 32, 64: 64, 128: 128}


_FMT = "<IBBBBBBH Q 5I 4Q 5H 5B 3b3b"


class TensorMap:
    """Decoded map: dims, strides (bytes; the innermost is the element size), box, ..."""

    __slots__ = (
        "base",
        "box",
        "dims",
        "dtype",
        "elem",
        "es",
        "fill",
        "inner_bytes",
        "interleave",
        "is_float",
        "lower",
        "mode",
        "offsets",
        "rank",
        "strides",
        "swizzle",
        "upper",
    )


def _norm(rec):
    r = dict(rec)
    name = str(r["dtype"]).replace("torch.", "")
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        raise EmulatorError(f"tensor map dtype {r['dtype']!r}: use one of {sorted(DTYPES)}")
    r["dtype"] = name
    r.setdefault("swizzle", 0)
    r.setdefault("interleave", 0)
    r.setdefault("fill", "zero")
    r.setdefault("mode", "tile")
    r.setdefault("elem_strides", (1,) * len(r["dims"]))
    return r


def validate(rec):
    """Check a record against the driver's encoding rules; raises EmulatorError naming the field."""
    r = _norm(rec)
    _, es, is_float = DTYPES[r["dtype"]]
    rank = len(r["dims"])

    def bad(msg):
        raise EmulatorError(f"tensor map: {msg}")

    if not 1 <= rank <= 5:
        bad(f"rank {rank} is outside 1..5")
    if len(r["strides"]) != rank - 1:
        bad(f"{rank - 1} strides expected (dimensions 1 and up), {len(r['strides'])} given")
    if r["base"] % 16:
        bad(f"base address {r['base']:#x} is not a multiple of 16")
    for i, s in enumerate(r["strides"]):
        if s % 16 or not 0 <= s < 1 << 40:
            bad(f"stride {s} of dimension {i + 1} is not a multiple of 16 below 2^40")
    for i, d in enumerate(r["dims"]):
        if not 1 <= d <= 1 << 32:
            bad(f"extent {d} of dimension {i} is outside 1..2^32")
    for i, e in enumerate(r["elem_strides"]):
        if not 1 <= e <= 8:
            bad(f"element stride {e} of dimension {i} is outside 1..8")
    if r["swizzle"] not in SPANS:
        bad(f"swizzle {r['swizzle']} is not 0, 32, 64 or 128")
    if r["fill"] == "nan" and not is_float:
        bad(f"NaN fill needs a floating type, not {r['dtype']}")
    if r["mode"] == "tile":
        box = r["box"]
        if len(box) != rank:
            bad(f"box of rank {len(box)} for a tensor of rank {rank}")
        for i, b in enumerate(box):
            if not 1 <= b <= 256:
                bad(f"box extent {b} of dimension {i} is outside 1..256")
        inner = box[0] * es
    else:
        if rank < 3:
            bad("im2col needs rank 3 to 5")
        lim = {3: 32768, 4: 128, 5: 16}[rank]
        for c in list(r["lower"]) + list(r["upper"]):
            if not -lim <= c < lim:
                bad(f"box corner {c} is outside {-lim}..{lim - 1}")
        if len(r["lower"]) != rank - 2 or len(r["upper"]) != rank - 2:
            bad(f"{rank - 2} corner coordinates expected (innermost first)")
        if r["channels"] > 256 or r["pixels"] > 1024:
            bad("im2col boxes hold at most 256 channels and 1024 pixels")
        inner = r["channels"] * es
    if inner % 16 or inner > SPANS[r["swizzle"]]:
        bad(
            f"inner box of {inner} bytes must be a multiple of 16 and at most the swizzle span "
            f"{r['swizzle']}"
        )
    return r


def encode_map(rec):
    """128 bytes for a record (see ``launch``); bytes of the right length pass through."""
    if isinstance(rec, (bytes, bytearray)) and len(rec) == 128:
        return bytes(rec)
    r = validate(rec)
    rank = len(r["dims"])

    def pad(t, n, v):
        return list(t)[:n] + [v] * (n - len(t))

    im = r["mode"] != "tile"
    box = [r["channels"], r["pixels"]] if im else list(r["box"])
    low, up = list(r.get("lower", ())), list(r.get("upper", ()))
    if im and rank == 3:  # 16-bit corners do not fit the bytes: keep them in the unused box slots
        box += [0, low[0] & 0xFFFF, up[0] & 0xFFFF]
        low, up = [0], [0]
    raw = struct.pack(
        _FMT,
        MAGIC,
        rank,
        1 if im else 0,
        r["swizzle"],
        r["interleave"],
        1 if r["fill"] == "nan" else 0,
        DTYPES[r["dtype"]][0],
        0,
        r["base"],
        *[d & 0xFFFFFFFF for d in pad(r["dims"], 5, 0)],
        *pad(r["strides"], 4, 0),
        *pad(box, 5, 0),
        *pad(r["elem_strides"], 5, 1),
        *pad(low, 3, 0),
        *pad(up, 3, 0),
    )
    return raw.ljust(128, b"\0")


def decode_map(raw):
    """TensorMap from its 128 bytes, or None when they hold no map."""
    v = struct.unpack_from(_FMT, raw)
    if v[0] != MAGIC:
        return None
    m = TensorMap()
    m.rank, im, m.swizzle, m.interleave, fill, code = v[1:7]
    m.mode = "im2col" if im else "tile"
    m.dtype, m.es, m.is_float = BY_CODE[code]
    m.fill = "nan" if fill else "zero"
    m.base = v[8]
    m.dims = [d or 1 << 32 for d in v[9 : 9 + m.rank]]
    m.strides = [m.es, *v[14 : 14 + m.rank - 1]]
    box = v[18:23]
    m.elem = list(v[23 : 23 + m.rank])
    m.lower, m.upper = list(v[28:31]), list(v[31:34])
    if im:
        m.box = list(box[:2])
        if m.rank == 3:
            m.lower, m.upper = [[x - 65536 if x & 0x8000 else x] for x in box[3:5]]
    else:
        m.box = list(box[: m.rank])
    m.inner_bytes = m.box[0] * m.es
    m.offsets = {}
    return m


FIELDS = {  # tensormap.replace: field -> (byte offset of element 0, bytes per element)
    "global_address": (12, 8),
    "rank": (4, 1),
    "box_dim": (72, 2),
    "global_dim": (20, 4),
    "global_stride": (40, 8),
    "element_stride": (82, 1),
    "elemtype": (9, 1),
    "interleave_layout": (7, 1),
    "swizzle_mode": (6, 1),
    "fill_mode": (8, 1),
}
