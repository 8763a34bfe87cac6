"""The copy engine: tensor copies by map, 1-D bulk copies, reductions.

Rules measured on an H200: loads fill out-of-range elements (zero, or 0x7ff7 in every 16 bits);
stores clip the innermost dimension at 16-byte chunks and outer dimensions exactly; the innermost
coordinate must lie on the 16-byte grid; negative store coordinates fault; the swizzle is a
function of the absolute shared address; a load always counts its full box bytes.
"""

import numpy as np

from .isa.control import fault
from .memory import GLOBAL_BASE, PARAM_BASE, SHARED_BASE
from .tensormap import decode_map
from .values import bf16_to_f32, round_bf16

_CACHE = {}


def swizzle(addr, mode):
    """XOR pattern on absolute shared addresses (array of 16-byte aligned offsets)."""
    if mode == 128:
        return addr ^ ((addr >> 3) & 0x70)
    if mode == 64:
        return addr ^ ((addr >> 3) & 0x30)
    if mode == 32:
        return addr ^ ((addr >> 3) & 0x10)
    return addr


def read_map(f, a, pc):
    """Tensor map at a generic address."""
    run = f.run
    if a >= GLOBAL_BASE:
        if not run.memory.inside(a, a + 128):
            run.log.at("oob-global", f, pc, f"tensor map: {run.memory.describe(a)}", a)
            return None
        raw = run.memory.bytes[a - GLOBAL_BASE : a - GLOBAL_BASE + 128].tobytes()
        if run.maps:
            check_use(f, a, pc)
    elif a >= PARAM_BASE:
        raw = run.param_bytes[a - PARAM_BASE : a - PARAM_BASE + 128].tobytes()
    elif a >= SHARED_BASE:
        o = (a - SHARED_BASE) & 0xFFFFFF
        raw = f.cta.smem.bytes[o : o + 128].tobytes()
    else:
        raw = b""
    if len(raw) < 128 or a % 64:
        run.log.at("tensor-map", f, pc, "no 64-byte aligned tensor map at this address", a)
        return None
    m = _CACHE.get(raw)
    if m is None:
        m = decode_map(raw)
        if m is None:
            run.log.at("tensor-map", f, pc, "these 128 bytes are not a tensor map", a)
            return None
        _CACHE[raw] = m
    return m


def check_use(f, a, pc):
    """The map at global address ``a`` is about to be used: was a change of it published?"""
    state = f.run.maps.get(a - GLOBAL_BASE)
    if state is None:
        return
    if not state[1] or f.cta.acquired_maps.get(a - GLOBAL_BASE) != state[0]:
        what = "acquired by this CTA" if state[1] else "released"
        text = f"this kernel changed the tensor map, and it was not {what} (fence.proxy.tensormap)"
        f.run.log.at("missing-tensormap-fence", f, pc, text, a)


def coords_ok(f, m, c, store, pc):
    """Report coordinates that fault on the device."""
    if len(c) != m.rank:
        fault(f, pc, f"{len(c)} coordinates for a tensor map of rank {m.rank}")
    if c[0] * m.es % 16:
        fault(
            f,
            pc,
            f"innermost coordinate {c[0]} x {m.es} bytes is not a multiple of 16 (an illegal"
            " instruction on the device)",
        )
    if store and min(c) < 0:
        fault(
            f,
            pc,
            f"negative coordinate in a store or reduction {c} (an illegal instruction on "
            "the device)",
        )


def box_layout(m):
    """Offsets of a box's 16-byte chunks inside shared memory, in box order (outermost slowest)."""
    n = 1
    for b in m.box[1:] if m.mode == "tile" else [m.box[1]]:
        n *= b
    return n, m.inner_bytes // 16


def box_rows(m, c, offs=None):
    """Global byte offset of each row of a box, and whether the row is inside the tensor.

    Returns
    -------
    addr, inside : int64 and bool arrays, one per row (all dimensions but the innermost)
    """
    if m.mode == "im2col":
        return im2col_rows(m, c, offs)
    addr = np.zeros(1, np.int64)
    ok = np.ones(1, bool)
    for d in range(1, m.rank):
        i = c[d] + np.arange(m.box[d]) * m.elem[d]
        good = (i >= 0) & (i < m.dims[d])
        addr = ((i * m.strides[d])[:, None] + addr).reshape(-1)
        ok = (good[:, None] & ok).reshape(-1)
    return addr, ok


def im2col_rows(m, c, offs):
    """Rows of an im2col box: pixels walk the corner box of an image, then the next image."""
    nd = m.rank - 2
    size = [m.dims[1 + k] for k in range(nd)]
    lo = m.lower[:nd]
    hi = [size[k] - 1 + m.upper[k] for k in range(nd)]
    span = [(hi[k] - lo[k]) // m.elem[1 + k] + 1 for k in range(nd)]
    start = 0
    mult = 1
    for k in range(nd):
        start += (c[1 + k] - lo[k]) // m.elem[1 + k] * mult
        mult *= span[k]
    t = start + np.arange(m.box[1])
    img = c[-1] + t // mult
    t = t % mult
    addr = img * m.strides[-1]
    ok = (img >= 0) & (img < m.dims[-1])
    for k in range(nd):
        p = lo[k] + t % span[k] * m.elem[1 + k] + offs[k]
        t = t // span[k]
        ok = ok & (p >= 0) & (p < size[k])
        addr = addr + p * m.strides[1 + k]
    return addr, ok


class Box:
    """A fetched box.

    Attributes
    ----------
    data : uint8 array (rows, inner bytes), out-of-range elements filled
    offsets, nbytes : int64 array or None, int
        Arena offset and length of each row that was read from memory.
    outside : int
        An address the map reaches outside its allocation, or 0.
    """

    __slots__ = ("data", "nbytes", "offsets", "outside")

    def __init__(self, data, offsets=None, nbytes=0, outside=0):
        self.data, self.offsets, self.nbytes, self.outside = data, offsets, nbytes, outside


def fetch_box(mem, m, c, offs):
    """Fetch a box at coordinates ``c`` (and im2col offsets ``offs``); returns a `Box`."""
    rows, ok = box_rows(m, c, offs)
    ib = m.inner_bytes
    first = c[0] * m.es
    width = m.dims[0] * m.es
    out = np.zeros((len(rows), ib), np.uint8)
    if m.fill == "nan":
        out.view(np.uint16)[:] = 0x7FF7
    lo, hi = max(0, -first), min(ib, width - first)
    if hi <= lo or not ok.any():
        return Box(out)
    good = rows[ok] + (m.base - GLOBAL_BASE + first + lo)
    n = hi - lo
    top, bot = int(good.max()) + n, int(good.min())
    if bot < 0 or top > len(mem.bytes) or not mem.inside(bot + GLOBAL_BASE, top + GLOBAL_BASE):
        return Box(out, outside=top - 1 + GLOBAL_BASE)
    s = np.lib.stride_tricks.sliding_window_view(mem.bytes, n)[good]
    if len(good) == len(rows):
        out[:, lo:hi] = s
    else:
        out[ok, lo:hi] = s
    return Box(out, good, n)


def chunk_index(m, dst, rows):
    """16-byte chunk indices in shared memory for each (row, chunk) of a box at offset ``dst``."""
    key = (dst, rows)
    idx = m.offsets.get(key)
    if idx is None:
        per = m.inner_bytes // 16
        pitch = m.inner_bytes
        lin = dst + (np.arange(rows) * pitch)[:, None] + np.arange(per) * 16
        idx = m.offsets[key] = swizzle(lin, m.swizzle).reshape(-1) >> 4
    return idx


def store_box(mem, m, c, data, op):
    """Write (or reduce) a box to global memory.

    ``data`` is (rows, inner_bytes). The innermost dimension is clipped at the 16-byte chunk that
    holds the last element, as on the device.

    Returns
    -------
    (kind, message, offsets, nbytes)
        A hazard (kind is None when there is none), and the arena offset and length of each row
        that was written.
    """
    rows, ok = box_rows(m, c)
    first = c[0] * m.es
    width = m.dims[0] * m.es
    n = min(m.inner_bytes, -(-width // 16) * 16 - first)
    if n <= 0 or not ok.any():
        return None, "", None, 0
    good = rows[ok] + (m.base - GLOBAL_BASE + first)
    bot, top = int(good.min()), int(good.max()) + n
    if not mem.inside(bot + GLOBAL_BASE, top + GLOBAL_BASE):
        text = f"box outside the allocation: {mem.describe(top - 1 + GLOBAL_BASE)}"
        return "oob-global", text, good, n
    kind, text = None, ""
    spill = first + n - width
    if spill > 0:
        kind = "tma-spill"
        text = (
            f"the store clips at 16 bytes and writes {spill} bytes past the row's {width} bytes "
            f"(row pitch {m.strides[1] if m.rank > 1 else width})"
        )
    idx = good[:, None] + np.arange(n)
    src = data[ok][:, :n]
    if op is not None:
        src = reduce_bytes(mem.bytes[idx], np.ascontiguousarray(src), m.dtype, op)
    mem.bytes[idx] = src
    return kind, text, good, n


def reduce_bytes(old, new, dtype, op):
    """Element-wise reduction of byte arrays (rows, n) holding ``dtype``."""
    shape = old.shape
    if dtype in ("bfloat16", "float16"):
        if dtype == "bfloat16":
            a, b = bf16_to_f32(old.view(np.uint16)), bf16_to_f32(new.view(np.uint16))
        else:
            a, b = (x.view(np.float16).astype(np.float32) for x in (old, new))
        r = {"add": np.add, "min": np.fmin, "max": np.fmax}[op](a, b).astype(np.float32)
        if dtype == "bfloat16":
            r = round_bf16(np.ascontiguousarray(r))
        else:
            r = r.astype(np.float16)
        return np.ascontiguousarray(r).view(np.uint8).reshape(shape)
    t = {
        "float32": np.float32,
        "float64": np.float64,
        "int32": np.int32,
        "uint32": np.uint32,
        "uint64": np.uint64,
        "int64": np.int64,
        "uint8": np.uint8,
        "uint16": np.uint16,
        "float32_ftz": np.float32,
    }[dtype]
    a, b = old.view(t), new.view(t)
    if op == "inc":
        r = np.where(a >= b, 0, a + 1).astype(t)
    elif op == "dec":
        r = np.where((a == 0) | (a > b), b, a - 1).astype(t)
    else:
        r = {
            "add": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }[op](a, b)
    return r.view(np.uint8).reshape(shape)
