"""Launch a rendered GEMM kernel in the emulator: parameter block, tensor maps, operands.

Uses nothing of the extension: the block is packed from `kernels.params`, so that what is tested
here is the PTX and the emulator.
"""

from __future__ import annotations

import functools
import struct

import numpy as np

from deepasm_torch import emulator
from deepasm_torch.codegen import render
from deepasm_torch.kernels import params

NP = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
KIND = {"ptr": "<Q", "s64": "<q", "f32": "<f", "u32": "<I", "div": "<II"}


@functools.cache
def program(kernel, edit=None):
    """Compiled kernel with template line markers; ``edit`` maps the text (for planted bugs)."""
    text = render(kernel, markers=True)
    return emulator.Program(edit(text) if edit else text, kernel.name)


def to_bits(x, ty):
    """float32 array -> raw array of a 16- or 32-bit type."""
    if ty == "bf16":
        u = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(x, np.float16 if ty == "f16" else np.float32)


def from_bits(x, ty):
    if ty == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def pack(**values):
    """GemmParams from its fields; what is left out is zero."""
    lay = params.layout()
    out = bytearray(lay.size)
    for name, kind, _ in params.GEMM_PARAMS:
        v = values.pop(name, None)
        if v is None or kind == "map":
            continue
        struct.pack_into(KIND[kind], out, lay.offsets[name], *(v if isinstance(v, tuple) else (v,)))
    assert not values, values
    return bytes(out)


class Problem:
    """One GEMM for one kernel: operands in emulated memory, parameter block, tensor maps.

    The output has ``rows`` lines of ``cols`` elements in memory: m lines of n, or the other way
    round for kernels that write d along m. Integers from -3 to 3 make every sum exact.
    """

    def __init__(
        self,
        kernel,
        m,
        n,
        k,
        *,
        out="same",
        bias=None,
        activation=0,
        c=None,
        alpha=1.0,
        beta=0.0,
        batch=1,
        integers=True,
        pitch=None,
        tma_store=None,
        data_seed=0,
    ):
        self.kernel, self.m, self.n, self.k, self.batch = kernel, m, n, k, batch
        self.rng = np.random.default_rng(data_seed)
        self.integers = integers
        self.dt = kernel.dtype
        self.odt = self.dt if out == "same" else out
        self.es = 4 if self.odt == "f32" else 2
        self.along_m = getattr(kernel, "d_major", "n") == "m"
        self.rows, self.cols = (n, m) if self.along_m else (m, n)
        self.pitch = pitch or -(-self.cols // 8) * 8
        self.mem = emulator.Memory()
        can_tma = self.pitch * self.es % 16 == 0 and self.cols * self.es % 16 == 0
        self.tma_store = can_tma if tma_store is None else tma_store
        self.fields = {"alpha": alpha, "beta": beta, "m": m, "n": n, "k": k}
        self.fields["k_blocks"] = max(1, -(-k // kernel.bk))
        self.flags = {"bf16": 0, "f16": 1, "f32": 2}[self.odt] | activation << 2
        self.flags |= bool(self.tma_store) << 9 | (0b0101 << 10 if batch > 1 else 0)
        self.flags |= (alpha != 1) << 14
        self.want = self.operands() * alpha
        self.addends(bias, c, beta)
        if activation == 1:
            self.want = np.maximum(self.want, 0)

    def draw(self, *shape):
        """Operand values, exact in the input type."""
        if self.integers:
            return self.rng.integers(-3, 4, shape).astype(np.float32)
        x = self.rng.standard_normal(shape).astype(np.float32)
        return from_bits(to_bits(x, self.dt), self.dt)

    def place(self, name, x):
        """Store an operand with rows padded to 8 elements of NaN; returns address and pitch."""
        width = -(-x.shape[-1] // 8) * 8
        full = np.full((*x.shape[:-1], width), np.nan, np.float32)
        full[..., : x.shape[-1]] = x
        return self.mem.alloc(name, to_bits(full, self.dt)), width

    def operands(self):
        """Draw and place a and b, reserve d; returns the exact product."""
        k, f, many = self.kernel, self.fields, self.batch > 1
        a, b = self.draw(self.batch, self.m, self.k), self.draw(self.batch, self.k, self.n)
        self.a = a if k.a_major in "k*" else a.transpose(0, 2, 1)
        self.b = b.transpose(0, 2, 1) if k.b_major == "k" else b
        f["a"], self.lda = self.place("a", self.a)
        f["b"], self.ldb = self.place("b", self.b)
        f["a_sm"], f["a_sk"] = (self.lda, 1) if k.a_major in "k*" else (1, self.lda)
        f["b_sk"], f["b_sn"] = (1, self.ldb) if k.b_major == "k" else (self.ldb, 1)
        f["a_sz0"] = self.a.shape[1] * self.lda * many
        f["b_sz0"] = self.b.shape[1] * self.ldb * many
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[self.odt]
        size = self.batch * self.rows * self.pitch * self.es
        f["d"] = self.mem.alloc("d", size, dtype=dtype)
        f["d_sm"], f["d_sz0"] = self.pitch, self.rows * self.pitch
        return np.matmul(a.astype(np.float64), b.astype(np.float64))

    def addends(self, bias, c, beta):
        """Draw, place and add c and bias ("in": the input type, "f32")."""
        f = self.fields
        if c is not None:
            x = self.draw(self.batch, self.m, self.n)
            self.want += beta * x
            self.flags |= 1 << 7 | (c == "f32") << 8
            f["c"] = self.mem.alloc("c", to_bits(x, self.dt if c == "in" else "f32"))
            f["c_sm"], f["c_sn"], f["c_sz0"] = self.n, 1, self.m * self.n
        if bias is not None:
            x = self.draw(self.cols)
            self.want += x[:, None] if self.along_m else x
            self.flags |= 1 << 5 | (bias == "f32") << 6
            f["bias"] = self.mem.alloc("bias", to_bits(x, self.dt if bias == "in" else "f32"))

    def block(self):
        """Parameter block; also sets the number of tiles."""
        k = self.kernel
        tiles = -(-self.m // k.bm), -(-self.n // k.bn)
        raster = params.raster(*tiles, self.batch, self.batch, 8)
        self.tiles = raster["tiles"]
        return pack(**self.fields, flags=self.flags, **raster)

    def map(self, dtype, es, base, shape, pitch, box):
        """Tensor-map record of [batch, rows, cols]."""
        rows, cols = shape
        strides = (pitch * es, max(rows * pitch * es, 16), self.batch * rows * pitch * es)
        return {
            "dtype": NP[dtype],
            "dims": (cols, rows, self.batch, 1),
            "base": base,
            "swizzle": 128,
            "strides": strides,
            "box": (*box, 1, 1),
        }

    def maps(self):
        """Tensor maps by offset in the parameter block."""
        k, f, at = self.kernel, self.fields, params.layout().offsets
        if k.loads != "tma":
            return {}
        box_a = (64, k.bm if k.a_major == "k" else 64)
        box_b = (64, k.bn if k.b_major == "k" else 64)
        out = {
            at["map_a"]: self.map(self.dt, 2, f["a"], self.a.shape[1:], self.lda, box_a),
            at["map_b"]: self.map(self.dt, 2, f["b"], self.b.shape[1:], self.ldb, box_b),
        }
        if self.tma_store:
            box = (128 // self.es, k.bn if self.along_m else 64)
            shape = self.rows, self.cols
            out[at["map_d"]] = self.map(self.odt, self.es, f["d"], shape, self.pitch, box)
        return out


def run(
    kernel,
    m,
    n,
    k,
    *,
    ctas=2,
    schedule="round_robin",
    seed=0,
    hazards=True,
    edit=None,
    limit=20,
    **options,
):
    """Run one problem; returns (Result, got float32 [batch, m, n], want float64)."""
    p = Problem(kernel, m, n, k, **options)
    block = p.block()
    written = np.zeros((p.batch, p.rows, p.pitch), bool)
    written[..., : p.cols] = True
    res = emulator.launch(
        program(kernel, edit),
        kernel.name,
        min(ctas, p.tiles),
        kernel.threads,
        block,
        smem=kernel.smem,
        memory=p.mem,
        tensor_maps=p.maps(),
        schedule=schedule,
        seed=seed,
        hazards=hazards,
        limit=limit,
        programmatic=kernel.tier == 90,
        outputs={"d": written},
    )
    got = p.mem["d"].reshape(p.batch, p.rows, p.pitch)
    res.padding = got[..., p.cols :]
    got = from_bits(got[..., : p.cols], p.odt)
    return res, got.transpose(0, 2, 1) if p.along_m else got, p.want


def rounded(want, odt):
    """What an exact sum looks like in the output type."""
    return from_bits(to_bits(want.astype(np.float32), odt), odt)
