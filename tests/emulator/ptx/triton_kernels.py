"""Source of the triton_*.ptx files: `python triton_kernels.py` (Triton 3.6, no GPU needed) rewrites
them. Debug sections, comments and file names are removed."""

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x, y, n, B: tl.constexpr):
    r = tl.program_id(0)
    o = tl.arange(0, B)
    m = o < n
    v = tl.load(x + r * n + o, mask=m, other=-float("inf")).to(tl.float32)
    v = v - tl.max(v, 0)
    e = tl.exp(v)
    tl.store(y + r * n + o, e / tl.sum(e, 0), mask=m)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.program_id(1) * BN + tl.arange(0, BN)
    ok = tl.arange(0, BK)
    pa = a + om[:, None] * K + ok[None, :]
    pb = b + ok[:, None] * N + on[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(pa, mask=om[:, None] < M, other=0.0)
        w = tl.load(pb, mask=on[None, :] < N, other=0.0)
        acc = tl.dot(x, w, acc)
        pa += BK
        pb += BK * N
    inside = (om[:, None] < M) & (on[None, :] < N)
    tl.store(c + om[:, None] * N + on[None, :], acc.to(tl.float16), mask=inside)


@triton.jit
def attention(q, k, v, o, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    od = tl.arange(0, D)
    qq = tl.load(q + om[:, None] * D + od[None, :])
    m = tl.full((BM,), -1e30, tl.float32)
    t = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for s in range(0, T, BN):
        on = s + tl.arange(0, BN)
        kk = tl.load(k + on[None, :] * D + od[:, None])
        p = tl.dot(qq, kk) * scale
        top = tl.maximum(m, tl.max(p, 1))
        p = tl.exp2(p - top[:, None])
        old = tl.exp2(m - top)
        t = t * old + tl.sum(p, 1)
        acc = acc * old[:, None]
        vv = tl.load(v + on[:, None] * D + od[None, :])
        acc = tl.dot(p.to(tl.float16), vv, acc)
        m = top
    tl.store(o + om[:, None] * D + od[None, :], (acc / t[:, None]).to(tl.float16))


@triton.jit
def tma(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a b^T with tensor maps that the kernel itself makes."""
    da = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    db = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    dc = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(da.load([m, k]), db.load([n, k]).T, acc)
    dc.store([m, n], acc.to(tl.float16))


def strip(text):
    text = re.sub(r"\n\s*\.section[^{]*\{[^}]*\}", "", text)
    text = re.sub(r'\.file\s+(\d+)\s+"[^"]*"', r'.file \1 "triton_kernels.py"', text)
    text = re.sub(r"[ \t]*//[^\n]*", "", text)
    return re.sub(r"\n\s*\n+", "\n", text).strip() + "\n"


def write(name, fn, types, constants, aligned, cc, **options):
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    values = {(fn.arg_names.index(k),): v for k, v in constants.items()}
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(aligned)}
    source = ASTSource(fn, signature, values, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", cc, 32), options=options)
    Path(__file__).with_name(f"triton_{name}_sm{cc}.ptx").write_text(strip(made.asm["ptx"]))
    print(name, cc, "shared", made.metadata.shared, "scratch", made.metadata.global_scratch_size)


if __name__ == "__main__":
    half, size = "*fp16", "i32"
    abc = {"a": half, "b": half, "c": half, "M": size, "N": size, "K": size}
    qkvo = {"q": half, "k": half, "v": half, "o": half, "T": size, "scale": "fp32"}
    write("softmax", softmax, {"x": half, "y": "*fp32", "n": size}, {"B": 256}, 0, 90)
    for arch in (80, 90):
        write("matmul", matmul, abc, {"BM": 64, "BN": 64, "BK": 32}, 6, arch, num_stages=3)
    write("attention", attention, qkvo, {"D": 64, "BM": 64, "BN": 64}, 5, 90, num_stages=2)
    write("tma", tma, abc, {"BM": 64, "BN": 64, "BK": 64}, 6, 90, num_stages=3)
