"""Reported faults of other GEMM libraries (cases G*), as values `deepasm::gemm` must give.

Each test is named after its case and runs on the CPU reference and on CUDA.  Data are small
integers wherever the case allows, so that equality is exact.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from harness.devices import memory_missing
from harness.values import integers

import deepasm_torch  # noqa: F401

gemm = torch.ops.deepasm.gemm


def test_g01_empty_sum_is_zero(device, dtype):
    torch.full((2, 3), float("nan"), device=device, dtype=dtype)  # poisons the allocator
    y = gemm(
        torch.empty(2, 0, device=device, dtype=dtype), torch.empty(0, 3, device=device, dtype=dtype)
    )
    assert torch.equal(y, torch.zeros(2, 3, device=device, dtype=dtype))


def test_g01_empty_sum_still_has_an_epilogue(device, dtype):
    """K = 0 gives act(beta * c + bias), which is not zero."""
    a, b = (
        torch.empty(4, 2, 0, device=device, dtype=dtype),
        torch.empty(0, 3, device=device, dtype=dtype),
    )
    bias = torch.tensor([1.0, -2.0, 3.0], device=device, dtype=dtype)
    y = gemm(a, b, bias, activation=1)
    assert torch.equal(y, bias.relu().expand(4, 2, 3))
    c = torch.full((2, 1), 2.0, device=device, dtype=dtype)
    y = torch.ops.deepasm._gemm(a, b, bias, c, 1.0, 3.0, 0, None, -1)
    assert torch.equal(y, (bias + 6).expand(4, 2, 3))


@pytest.mark.parametrize("batch", [(), (0,), (3,), (2, 0)])
@pytest.mark.parametrize("m, n, k", [s for s in itertools.product((0, 1, 5), repeat=3) if 0 in s])
def test_g01_every_empty_shape(device, half, batch, m, n, k):
    a = torch.ones(*batch, m, k, device=device, dtype=half)
    b = torch.ones(*batch, k, n, device=device, dtype=half)
    y = gemm(a, b)
    assert y.shape == (*batch, m, n) and y.dtype == half
    assert torch.equal(y, torch.zeros_like(y))


def test_g04_batch_above_65535(device, half):
    count = 65537
    ramp = torch.arange(count, device=device) % 251  # exact in both types
    a = ramp.view(count, 1, 1).expand(count, 8, 8).to(half).contiguous()
    y = gemm(a, torch.eye(8, device=device, dtype=half).expand(count, 8, 8))
    assert torch.equal(y, a)
    assert y[65535, 0, 0] == 65535 % 251 and y[65536, 7, 7] == 65536 % 251


def _needs_memory(gib):
    if reason := memory_missing(gib):
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("_give_memory_back")
@pytest.mark.parametrize("form", ["xv", "vx", "large output"])
def test_g06_more_than_2_31_elements(form):
    _needs_memory(16)
    size, half = 46342, torch.bfloat16  # size * size > 2**31
    ones = torch.ones(size, 8, device="cuda", dtype=half)
    if form == "large output":
        y = gemm(ones, ones.t())
        assert y.numel() > 2**31
        assert bool((y == 8).all())
        return
    x = torch.zeros(size, size, device="cuda", dtype=half)
    x[0, 0], x[-1, -1], x[-1, 1] = 2, 1, 4
    y = gemm(x, ones[:, :1]) if form == "xv" else gemm(ones[:, :1].t(), x)
    expected = torch.zeros(size, device="cuda", dtype=half)
    if form == "xv":
        expected[0], expected[-1] = 2, 5
    else:
        expected[0], expected[1], expected[-1] = 2, 4, 1
    assert torch.equal(y.flatten(), expected)
    torch.cuda.synchronize()


@pytest.fixture
def _give_memory_back():
    yield
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("_give_memory_back")
def test_g06_batch_stride_beyond_2_31():
    _needs_memory(12)
    x = torch.zeros(
        3, 2**30 // 64 + 1, 64, device="cuda", dtype=torch.float16
    )  # the last batch starts past 2**31
    x[2, :8] = 3
    y = gemm(x[:, :8], torch.eye(64, device="cuda", dtype=torch.float16))
    assert torch.equal(y, x[:, :8]) and bool((y[2] == 3).all())


def test_g07_overlapping_operand(device, dtype):
    t = torch.arange(9.0, device=device).to(dtype).as_strided((2, 3, 3), (1, 2, 1))
    expected = [
        [[10, 13, 16], [22, 31, 40], [34, 49, 64]],
        [[22, 28, 34], [40, 52, 64], [58, 76, 94]],
    ]
    assert gemm(t, t).tolist() == expected


def test_g08_both_operands_expanded(device, dtype):
    a = torch.arange(6.0, device=device).to(dtype).view(1, 2, 3).expand(4, 2, 3)
    b = torch.arange(3.0, device=device).to(dtype).view(1, 3, 1).expand(4, 3, 5)
    assert gemm(a, b).tolist() == [[[5.0] * 5, [14.0] * 5]] * 4


@pytest.mark.parametrize("offset", range(1, 8))
def test_g10_odd_storage_offset(device, dtype, offset):
    storage = (torch.arange(64 * 64 + 8, device=device) % 13).to(dtype)
    a = storage[offset : offset + 64 * 64].view(64, 64)
    eye = torch.eye(64, device=device, dtype=dtype)
    assert torch.equal(gemm(a, eye), a)
    assert torch.equal(gemm(eye, a), a)
    assert torch.equal(gemm(eye, a.t()), a.t())
    bias = storage[offset : offset + 64]
    assert torch.equal(gemm(eye, eye, bias), eye + bias)
    out = torch.full((64 * 64 + 16,), -1.0, device=device, dtype=dtype)
    gemm.out(a, eye, out=out[offset : offset + 64 * 64].view(64, 64))
    assert torch.equal(out[offset : offset + 64 * 64].view(64, 64), a)
    assert bool((out[:offset] == -1).all()) and bool((out[offset + 64 * 64 :] == -1).all())


def test_g11_odd_shape(device, dtype):
    a = torch.ones(1, 109, device=device, dtype=dtype)
    b = torch.zeros(109, 103, device=device, dtype=dtype)
    b[108, 102], b[0, 0] = 5, 2
    expected = torch.zeros(1, 103, device=device, dtype=dtype)
    expected[0, 0], expected[0, 102] = 2, 5
    assert torch.equal(gemm(a, b), expected)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_g11_sweep_of_sizes_around_the_tiles(device, half, layout):
    sizes = (1, 7, 8, 9, 63, 65, 127, 129)
    for m, n, k in itertools.product(sizes, sizes, sizes if device == "cuda" else (1, 9, 65)):
        a = (
            integers(k, m, device=device, dtype=half).t()
            if layout[0] == "t"
            else integers(m, k, device=device, dtype=half)
        )
        b = (
            integers(n, k, device=device, dtype=half).t()
            if layout[1] == "t"
            else integers(k, n, device=device, dtype=half)
        )
        expected = (a.float() @ b.float()).to(half)  # below 2**24, hence exact in any order
        assert torch.equal(gemm(a, b), expected), (m, n, k)


@pytest.mark.parametrize("n", range(57, 73))
def test_g12_any_number_of_columns(device, dtype, n):
    b = (torch.arange(64 * n, device=device) % 5).view(64, n).to(dtype)
    eye = torch.eye(64, device=device, dtype=dtype)
    assert torch.equal(gemm(eye, b), b)
    for start in (0, 3, 8):
        wide = torch.full((64, 96), -7.0, device=device, dtype=dtype)
        gemm.out(eye, b, out=wide[:, start : start + n])
        assert torch.equal(wide[:, start : start + n], b)
        assert bool((wide[:, :start] == -7).all()) and bool((wide[:, start + n :] == -7).all())


@pytest.mark.parametrize("k", [8, 24, 72, 100, 192, 200, 248])
def test_g13_nan_beyond_the_logical_row(device, dtype, k):
    a = torch.full((65, 256), float("nan"), device=device, dtype=dtype)
    b = torch.full((256, 72), float("nan"), device=device, dtype=dtype)
    a[:64, :k], b[:k, :64] = 1, 1  # NaN right of every row, and below the last
    y = gemm(a[:64, :k], b[:k, :64])
    assert bool((y == k).all())
    assert bool((gemm(b[:k, :64].t(), a[:64, :k].t()) == k).all())


@pytest.mark.parametrize("m", [1, 2, 8, 17, 63])
def test_g14_fewer_rows_than_a_tile(device, dtype, m):
    a = torch.zeros(m, 128, device=device, dtype=dtype)
    a[torch.arange(m), torch.arange(m)] = 1
    b = torch.arange(128.0, device=device).to(dtype).view(128, 1).expand(128, 128).contiguous()
    assert torch.equal(gemm(a, b), b[:m])


def test_g16_partial_sums_stay_fp32(device):
    ones = torch.ones(1, 1)
    x = torch.cat([torch.full((1, 2048), 256.0), torch.full((1, 2048), -256.0), ones], 1)
    w = torch.cat([torch.full((4096, 1), 16.0), ones])
    assert (
        gemm(x.to(device, torch.float16), w.to(device, torch.float16)).item() == 1
    )  # partial sums reach 8.4e6
    v = torch.cat([torch.ones(1, 4101), -torch.ones(1, 4096)], 1).to(device, torch.bfloat16)
    assert gemm(v, torch.ones(8197, 1, device=device, dtype=torch.bfloat16)).item() == 5


def test_g16_no_reduction_in_the_input_type(device, half):
    """Wide outputs too: 2**-9 added 4096 times to 1 vanishes in any 16-bit accumulator."""
    a = torch.full((128, 4097), 2.0**-9, device=device, dtype=half)
    a[:, 0] = 1
    y = gemm(a, torch.ones(4097, 128, device=device, dtype=half), out_dtype=torch.float32)
    assert bool((y == 9).all())
