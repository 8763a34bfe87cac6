"""torch.compile, torch.export and fake tensors over the gemm ops, functional and override.

Graphs run through aot_eager (no compiler needed); Inductor has one test, marked slow.
"""

from __future__ import annotations

import pytest
import torch
from surface import randn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import deepasm_torch
from deepasm_torch import Activation, functional

ops = torch.ops.deepasm
gemm = ops.gemm


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def both(function, args, dynamic, count=None):
    """Results and gradients of function, compiled and eager."""
    counter = count or CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
    results = []
    for f in (compiled, function):
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in args]
        y = f(*leaves)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), leaves)))
    return results, counter


def assert_same(results):
    for got, want in zip(*results):
        assert got.stride() == want.stride() and got.dtype == want.dtype
        assert torch.allclose(got.float(), want.float(), rtol=2e-2, atol=2e-2)


FUNCTIONS = {
    "gemm": lambda a, b, v: gemm(a, b, v, activation=2),
    "gemm, enum": lambda a, b, v: gemm(a, b, v, activation=Activation.SILU),
    "gemm, name": lambda a, b, v: functional.gemm(a, b, v, activation="relu"),
    "gemm, float32": lambda a, b, v: gemm(a, b, v, out_dtype=torch.float32),
    "matmul": lambda a, b, v: functional.matmul(a, b) + v,
    "mm of transposes": lambda a, b, v: functional.mm(b.t(), a.t()).t() + v,
    "linear": lambda a, b, v: functional.linear(a, b.t(), v),
    "addmm": lambda a, b, v: functional.addmm(v, a, b, beta=0.5, alpha=2),
    "addmm, bias": lambda a, b, v: functional.addmm(v, a, b),
    "baddbmm": lambda a, b, v: functional.baddbmm(v, a[None], b[None], beta=2)[0],
    "override": lambda a, b, v: _overridden(a, b, v),
}


def _overridden(a, b, v):
    with deepasm_torch.override():
        return torch.addmm(v, a, b) + a @ b


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_training(device, name, dynamic):
    args = [randn(*s, device=device, dtype=torch.bfloat16) for s in ((6, 8), (8, 5), (5,))]
    results, _ = both(FUNCTIONS[name], args, dynamic)
    assert_same(results)


@pytest.mark.parametrize(
    "shapes",
    [[(4,), (4, 5)], [(3, 4), (4,)], [(2, 1, 3, 4), (5, 4, 6)], [(3, 4), (2, 4, 5)]],
    ids=str,
)
def test_dynamic_shapes_of_every_rank_make_one_graph(device, shapes):
    counter = CompileCounterWithBackend("aot_eager")
    for grow in (0, 1, 5):
        a_shape, b_shape = (tuple(s if s == 1 else s + grow for s in shape) for shape in shapes)
        args = [randn(*s, device=device) for s in (a_shape, b_shape)]
        results, _ = both(gemm, args, True, counter)
        assert_same(results)
    assert counter.frame_count <= 2, "a recompilation per size"


def test_automatic_dynamic_stops_recompiling(device):
    counter = CompileCounterWithBackend("aot_eager")
    w = randn(8, 5, device=device)
    f = torch.compile(lambda x: functional.matmul(x, w), backend=counter, fullgraph=True)
    for rows in (3, 4, 5, 17, 64, 1000):
        assert f(torch.ones(rows, 8, device=device)).shape == (rows, 5)
    assert counter.frame_count == 2


def test_autocast_inside_and_outside(device):
    a, b = randn(6, 8, device=device), randn(8, 5, device=device)

    def inside(a, b):
        with torch.autocast(device, torch.bfloat16):
            return gemm(a, b)

    y = torch.compile(inside, backend="aot_eager", fullgraph=True)(a, b)
    f = torch.compile(gemm, backend="aot_eager", fullgraph=True)
    with torch.autocast(device, torch.bfloat16):
        z = f(a, b)
        p = torch.compile(functional.addmm, backend="aot_eager", fullgraph=True)(b[0], a, b, beta=2)
    assert y.dtype == z.dtype == p.dtype == torch.bfloat16
    assert torch.equal(y, inside(a, b)) and torch.equal(y, z)


def test_out_variant(device):
    a, b = randn(6, 8, device=device), randn(8, 5, device=device)

    def f(a, b, out):
        gemm.out(a, b, out=out)
        return functional.mm(a, b, out=torch.empty_like(out)) + out

    out, want = torch.zeros(6, 5, device=device), torch.zeros(6, 5, device=device)
    with torch.no_grad():
        y = torch.compile(f, backend="aot_eager", fullgraph=True)(a, b, out)
        assert torch.equal(y, f(a, b, want)) and torch.equal(out, want)


def test_torch_func_inside(device):
    a, b = randn(6, 3, 4, device=device), randn(4, 5, device=device)

    def per_sample(a, b):
        return torch.func.vmap(torch.func.grad(lambda a, b: gemm(a, b).sin().sum()), (0, None))(
            a, b
        )

    y = torch.compile(per_sample, backend="aot_eager", fullgraph=True)(a, b)
    assert torch.allclose(y, per_sample(a, b), atol=1e-5)


@pytest.mark.parametrize("strict", [True, False])
def test_export(device, strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(randn(5, 8, device=device))

        def forward(self, x):
            return functional.gemm(x, self.w.t(), activation="gelu_tanh")

    m, rows = Model(), torch.export.Dim("rows", min=2, max=512)
    x = randn(6, 8, device=device)
    program = torch.export.export(m, (x,), dynamic_shapes=({0: rows},), strict=strict)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert "deepasm.gemm.default" in targets and len(targets) == 2
    assert torch.equal(
        program.module()(randn(50, 8, device=device)), m(randn(50, 8, device=device))
    )
    inference = [str(n.target) for n in program.run_decompositions().graph.nodes]
    assert any(t.startswith("deepasm.") for t in inference)


def test_unbacked_sizes():
    """A size that is only known at run time (here: of nonzero) reaches the fake kernel as it is."""

    def f(x, mask, w):
        rows = x[mask.nonzero().squeeze(1)]
        return functional.linear(rows, w)

    x, mask, w = randn(9, 8), torch.arange(9) % 2 == 0, randn(5, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        y = torch.compile(f, backend="aot_eager", fullgraph=True)(x, mask, w)
    assert torch.equal(y, f(x, mask, w))


def test_fake_kernels_add_no_guards():
    """Shapes are computed from symbols, never decided: the only guard is that K agrees."""
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        a = mode.from_tensor(torch.empty(6, 7, 8), static_shapes=False)
        b = mode.from_tensor(torch.empty(8, 9), static_shapes=False)
        before = len(env.guards)
        for y in (gemm(a, b), ops._gemm(a, b, None, None, 1.0, 0.0, 2, None, -1)):
            assert [str(s) for s in y.shape] == [str(s) for s in (*a.shape[:2], b.shape[1])]
    assert len(env.guards) - before <= 1, [str(g.expr) for g in env.guards[before:]]


def test_fake_errors_are_the_real_errors():
    with FakeTensorMode():
        a, b = torch.empty(6, 7), torch.empty(8, 9)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            gemm(a, b)
        with pytest.raises(RuntimeError, match="bias has shape"):
            gemm(a, torch.empty(7, 9), torch.empty(8))
        with pytest.raises(RuntimeError, match="out has shape"), torch.no_grad():
            gemm.out(a, torch.empty(7, 9), out=torch.empty(6, 8))


def test_aot_graph_holds_the_gemms_of_the_backward():
    """Forward and backward stay opaque deepasm ops: two more for the two gradients."""
    from functorch.compile import aot_function, make_boxed_func

    graphs = []

    def keep(graph, _):
        graphs.append([str(n.target) for n in graph.graph.nodes if "deepasm" in str(n.target)])
        return make_boxed_func(graph.forward)

    a, b = randn(6, 8, requires_grad=True), randn(8, 5, requires_grad=True)
    aot_function(gemm, fw_compiler=keep, bw_compiler=keep)(a, b).sum().backward()
    assert graphs == [["deepasm._gemm.default"], ["deepasm._gemm.default"] * 2]


@pytest.mark.slow
def test_inductor(device):
    args = [randn(*s, device=device, dtype=torch.bfloat16) for s in ((6, 8), (8, 5), (5,))]
    counter = CompileCounterWithBackend("inductor")
    results, _ = both(lambda a, b, v: (gemm(a, b, v, activation=1) * 2).cos(), args, True, counter)
    assert_same(results)
