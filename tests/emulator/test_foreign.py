"""PTX that this project did not write: compiled by nvcc 13.0 and Triton 3.6 (sources in ptx/)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ptx_case import TEXTS

from deepasm_torch.emulator import Memory, launch
from deepasm_torch.emulator.program import load

FILES = {p.stem: p.read_text() for p in sorted(Path(__file__).with_name("ptx").glob("*.ptx"))}
TEXTS.update(FILES)
SCHEDULES = ("round_robin", "random", "adversarial")


def start(file, entry, grid, block, args, schedule, smem=0):
    """Launch; arrays become allocations, ``(n,)`` an uninitialised one, missing arguments are 0."""
    memory, values = Memory(), []
    program = load(FILES[file], file)
    for k, x in enumerate(args):
        if isinstance(x, np.ndarray):
            x = memory.alloc(f"a{k}", x)
        elif isinstance(x, tuple):
            x = memory.alloc(f"a{k}", x[0])
        values.append(x)
    values += [0] * (len(program.entry(entry).entry.params) - len(values))
    res = launch(program, entry, grid, block, values, memory=memory, schedule=schedule, smem=smem)
    assert res.ok, res.report()
    return memory


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# ---------------------------------------------------------------------------- nvcc
def collatz_steps(n):
    k = 0
    while n != 1:
        n = 3 * n + 1 if n & 1 else n // 2
        k += 1
    return k


def dispatch(op, i):
    v = (i + 10, i * 3, i ^ 255, i - 7, i * i, i << 2, -1, -1)[op]
    return v + (i * 5 & 7) + (v & (1 << 64) - 1).bit_count()


X = integers(1000).astype(np.float32)
BYTES = np.random.default_rng(1).integers(0, 256, 3000).astype(np.uint8)
HALF = np.random.default_rng(2).standard_normal((3, 200)).astype(np.float16)
A, B = integers(16, 64), integers(16, 64, seed=1)
OPS = np.random.default_rng(3).integers(0, 8, 64).astype(np.int32)
D = np.linspace(0, 3, 32)
ZERO = np.zeros(1, np.float32)

NVCC = {
    # entry: grid, block, dynamic shared memory, arguments, output, expected, tolerance
    "reduce": (3, 128, 0, [X, ZERO, 1000], 1, np.array([X.sum()]), 0),
    "histogram": (
        2,
        96,
        0,
        [BYTES, np.zeros(256, np.uint32), 3000],
        1,
        np.bincount(BYTES, minlength=256).astype(np.uint32),
        0,
    ),
    "softmax": (
        3,
        64,
        800,
        [HALF, (1200,), 200],
        1,
        softmax(HALF.astype(np.float64)).astype(np.float16),
        1e-3,
    ),
    "tensor": (
        1,
        32,
        0,
        [A.astype(np.float16), B.astype(np.float16), (1024,)],
        2,
        (A @ B.T).astype(np.float32),
        0,
    ),
    "collatz": (
        2,
        64,
        0,
        [(512,)],
        0,
        np.array([collatz_steps(i + 1) for i in range(128)], np.uint32),
        0,
    ),
    "last_block": (
        5,
        32,
        0,
        [X[:160], (20,), np.zeros(1, np.uint32), (4,)],
        3,
        np.array([X[:160].sum()]),
        0,
    ),
    "dispatch": (
        1,
        64,
        0,
        [OPS, (256,)],
        1,
        np.array([dispatch(OPS[i], i) for i in range(64)], np.int32),
        0,
    ),
    "doubles": (1, 32, 0, [D, (256,)], 1, np.sqrt(D) * np.exp(-D) + D / 3, 1e-15),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("entry", NVCC)
def test_nvcc(entry, schedule):
    grid, block, smem, args, out, want, tolerance = NVCC[entry]
    memory = start("nvcc_kernels", entry, grid, block, args, schedule, smem)
    got = memory[f"a{out}"].view(want.dtype).reshape(-1)[: want.size]
    assert np.allclose(got, want.reshape(-1), rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------- Triton
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_triton_softmax(schedule):
    memory = start("triton_softmax_sm90", None, 3, 128, [HALF, (2400,), 200], schedule, 16)
    got = memory["a1"].view(np.float32).reshape(3, 200)
    assert np.allclose(got, softmax(HALF.astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("arch, smem", [(80, 16384), (90, 24576)])
def test_triton_matmul(arch, smem, schedule):
    a, b = integers(96, 128).astype(np.float16), integers(128, 112, seed=1).astype(np.float16)
    args = [a, b, (96 * 112 * 2,), 96, 112, 128]
    memory = start(f"triton_matmul_sm{arch}", None, (2, 2), 128, args, schedule, smem)
    got = memory["a2"].view(np.float16).reshape(96, 112)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_triton_attention(schedule):
    q, k, v = np.random.default_rng(4).standard_normal((3, 128, 64)).astype(np.float16)
    args = [q, k, v, (128 * 64 * 2,), 128, 0.18]
    memory = start("triton_attention_sm90", None, 2, 128, args, schedule, 40960)
    p = 2.0 ** (q.astype(np.float64) @ k.astype(np.float64).T * 0.18)
    want = p / p.sum(1, keepdims=True) @ v.astype(np.float64)
    got = memory["a3"].view(np.float16).reshape(128, 64)
    assert np.allclose(got, want, atol=2e-3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_triton_makes_its_own_tensor_maps(schedule):
    a, b = integers(128, 128).astype(np.float16), integers(128, 128, seed=1).astype(np.float16)
    scratch = np.zeros(4 * 384, np.uint8)  # three maps of 128 bytes per CTA
    args = [a, b, (128 * 128 * 2,), 128, 128, 128, scratch]
    memory = start("triton_tma_sm90", None, (2, 2), 128, args, schedule, 49176)
    got = memory["a2"].view(np.float16).reshape(128, 128)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T)
