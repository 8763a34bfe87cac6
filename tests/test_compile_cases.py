"""Reported faults of custom ops under torch.compile, export and fake tensors (cases X*), for gemm.

On the CPU the graphs run through aot_eager; on CUDA one of them goes through Inductor.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_utils import CrossRefFakeMode

import deepasm_torch
from deepasm_torch import functional

gemm = torch.ops.deepasm.gemm


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _layouts(device, dtype):
    x = torch.randn(2, 9, 10, device=device, dtype=dtype)
    return {
        "dense": x,
        "transposed": x.mT.contiguous().mT,
        "permuted": x.permute(1, 0, 2).contiguous().permute(1, 0, 2),
        "stepped": torch.randn(2, 18, 10, device=device, dtype=dtype)[:, ::2],
        "expanded": x[:1].expand(2, 9, 10),
    }


@pytest.mark.parametrize("layout", ["dense", "transposed", "permuted", "stepped", "expanded"])
def test_x01_opcheck_for_each_layout(device, half, layout):
    x = _layouts(device, half)[layout]
    w = torch.randn(7, 10, device=device, dtype=half)
    torch.library.opcheck(gemm.default, (x, w.t()), {"activation": 2})
    torch.library.opcheck(gemm.default, (x.detach().requires_grad_(), w.t().requires_grad_()))
    out = torch.empty(2, 9, 7, device=device, dtype=torch.float32)
    torch.library.opcheck(gemm.out, (x, w.t()), {"out": out})


def test_x01_opcheck_of_the_internal_op(device, half):
    a, b = (
        torch.randn(2, 9, 10, device=device, dtype=half),
        torch.randn(10, 7, device=device, dtype=half),
    )
    bias, c = torch.randn(7, device=device), torch.randn(9, 1, device=device, dtype=half)
    torch.library.opcheck(
        torch.ops.deepasm._gemm.default, (a, b, bias, c, 0.5, 2.0, 4, torch.float32, -1)
    )


def test_x03_one_dynamic_graph_for_all_lengths(device, half):
    counter = CompileCounterWithBackend("aot_eager")
    w = torch.ones(32, 16, device=device, dtype=half)
    f = torch.compile(
        lambda q: gemm(q, w, activation=1), dynamic=True, fullgraph=True, backend=counter
    )
    for length in (64, 65, 77, 128, 200, 1, 0):
        y = f(torch.ones(1, length, 32, device=device, dtype=half))
        assert y.shape == (1, length, 16) and bool((y == 32).all())
    assert counter.frame_count <= 3, "more graphs than the dynamic one and those for 0 and 1"


@pytest.mark.parametrize("which", ["k", "n", "batch"])
def test_x03_every_dimension_can_be_dynamic(device, half, which):
    counter = CompileCounterWithBackend("aot_eager")
    f = torch.compile(lambda a, b: gemm(a, b), dynamic=True, fullgraph=True, backend=counter)
    for size in (5, 6, 9, 17):
        sizes = {"k": 8, "n": 8, "batch": 3, which: size}
        a = torch.ones(sizes["batch"], 4, sizes["k"], device=device, dtype=half)
        y = f(a, torch.ones(sizes["k"], sizes["n"], device=device, dtype=half))
        assert y.shape == (sizes["batch"], 4, sizes["n"]) and bool((y == sizes["k"]).all())
    assert counter.frame_count == 1


class Mlp(torch.nn.Module):
    def __init__(self, device, dtype):
        super().__init__()
        self.up = torch.nn.Linear(24, 40, device=device, dtype=dtype)
        self.down = torch.nn.Linear(40, 24, device=device, dtype=dtype)

    def forward(self, x):
        hidden = functional.linear(x, self.up.weight, self.up.bias)
        return functional.linear(torch.relu(hidden), self.down.weight, self.down.bias)


def test_x04_no_graph_break_forward_and_training(device, half):
    m = Mlp(device, half)
    x = torch.randn(5, 24, device=device, dtype=half)
    assert torch._dynamo.explain(m)(x).graph_break_count == 0
    eager = m(x)
    eager.square().sum().backward()
    grads = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")(x)
    compiled.square().sum().backward()
    assert torch.equal(compiled, eager)
    for p, g in zip(m.parameters(), grads):
        assert torch.allclose(p.grad, g, rtol=2e-2, atol=1e-2)


def test_x04_override_inside_a_compiled_function(device, half):
    """torch's own calls, sent to the extension while tracing, need no graph break either."""
    m = torch.nn.Linear(24, 40, device=device, dtype=half)

    def f(x):
        with deepasm_torch.override():
            return m(x)

    x = torch.randn(5, 24, device=device, dtype=half)
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


def test_x04_export_keeps_the_op(device, half):
    m, x = Mlp(device, half).eval(), torch.randn(5, 24, device=device, dtype=half)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(m, (x,), dynamic_shapes=({0: rows},))
    assert "deepasm" in program.graph_module.code
    longer = torch.randn(11, 24, device=device, dtype=half)
    assert torch.equal(program.module()(longer), m(longer))


@pytest.mark.gpu
@pytest.mark.slow
def test_x04_inductor(half):
    m = Mlp("cuda", half)
    x = torch.randn(50, 24, device="cuda", dtype=half, requires_grad=True)
    y = torch.compile(m, fullgraph=True)(x)
    y.sum().backward()
    expected = m(x.detach())
    assert torch.allclose(y.float(), expected.float(), rtol=2e-2, atol=2e-2) and bool(
        x.grad.isfinite().all()
    )


def test_x05_fake_result_agrees_with_the_real_one(device, half):
    """Shape, strides and dtype, for every rank and broadcast of a small sweep."""
    shapes = [(5,), (4, 5), (1, 5), (2, 4, 5), (1, 4, 5), (3, 1, 4, 5), (0, 4, 5), (4, 0)]
    others = [(5,), (5, 6), (5, 1), (2, 5, 6), (1, 5, 6), (2, 5, 6), (0, 5, 6), (0, 3)]
    compared = 0
    for sa, sb in itertools.product(shapes, others):
        a, b = torch.ones(sa, device=device, dtype=half), torch.ones(sb, device=device, dtype=half)
        try:
            shape = torch.matmul(a, b).shape
        except RuntimeError:
            with pytest.raises(RuntimeError):
                gemm(a.to("meta"), b.to("meta"))
            with pytest.raises(RuntimeError):
                gemm(a, b)
            continue
        for x, y in ((a, b), (a.mT.contiguous().mT if a.dim() > 1 else a, b)):
            real = gemm(x, y, out_dtype=torch.float32)
            fake = gemm(x.to("meta"), y.to("meta"), out_dtype=torch.float32)
            assert real.shape == fake.shape == shape and real.dtype == fake.dtype == torch.float32
            assert real.stride() == fake.stride(), (sa, sb)
            compared += 1
    assert compared > 40


def test_x09_activation_chosen_by_a_dynamic_size(device, half):
    """The int argument may come from a symbolic comparison: guard or recompile, but be right."""
    f = torch.compile(
        lambda a, b: gemm(a, b, activation=int(a.shape[0] > 1)),
        dynamic=True,
        fullgraph=True,
        backend="aot_eager",
    )
    b = -torch.ones(8, 8, device=device, dtype=half)
    for rows in (7, 9, 1):
        y = f(torch.ones(rows, 8, device=device, dtype=half), b)
        assert bool((y == (0 if rows > 1 else -8)).all())


def test_x10_metadata_under_cross_reference(device, half):
    x = (
        torch.randn(6, 50, 1, device=device, dtype=half).permute(0, 2, 1).unsqueeze(2)
    )  # odd strides
    w = torch.randn(8, 50, device=device, dtype=half)
    with CrossRefFakeMode():
        gemm(x, w.t())
        gemm(x[:, 0], w.t(), activation=1)
        functional.linear(x, w)
