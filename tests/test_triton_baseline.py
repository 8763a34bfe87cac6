"""The Triton baseline: its shape rules anywhere, its kernels in Triton's interpreter and compiled
for GPUs that are not here, and on a GPU the same harness that the hand-written kernels go through.

Run as a script it is the child process of its own tests: `interpret` and `compile` each need a
Triton of their own (interpreted, or with a pretended device) and print one JSON line per case.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import deepasm_torch
from deepasm_torch.triton_baseline.configs import Config, candidates
from deepasm_torch.triton_baseline.problem import describe

ROOT = Path(deepasm_torch.__file__).parents[1]  # where child processes find the package
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def half(*shape, dtype=BF16):
    return torch.zeros(*shape, dtype=dtype)


# ---- what a call asks for, without Triton -------------------------------------------------------

SHAPES = [
    ((5, 7), (7, 3)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((7,), (7,)),
    ((2, 5, 7), (7, 3)),
    ((2, 5, 7), (2, 7, 3)),
    ((5, 7), (4, 7, 3)),
    ((2, 1, 5, 7), (1, 3, 7, 4)),
    ((2, 3, 1, 5, 7), (3, 2, 7, 4)),
    ((7,), (2, 3, 7, 4)),
    ((2, 3, 4, 7), (7,)),
    ((0, 7), (7, 3)),
    ((5, 0), (0, 3)),
    ((1, 7), (7, 1)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_shape_rules_are_those_of_matmul(left, right):
    problem = describe(half(*left), half(*right))
    assert problem.shape == tuple(torch.matmul(torch.zeros(left), torch.zeros(right)).shape)
    count = problem.batch * problem.m * problem.n
    assert count == torch.Size(problem.shape).numel() or 0 in left + right


@pytest.mark.parametrize(("left", "right"), [s for s in SHAPES if 0 not in s[0] + s[1]])
def test_the_normalised_operands_address_the_right_elements(left, right):
    a = torch.randn(left).to(BF16)
    b = torch.randn(right).to(BF16)
    problem = describe(a, b)

    def matrices(operand, nz):
        strides = (operand.z1_stride, operand.z0_stride, operand.row_stride, operand.col_stride)
        # torch cannot make views past the storage: a stride never followed may be set to 0
        sizes = (*nz, operand.rows, operand.cols)
        strides = [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
        return operand.tensor.as_strided(sizes, strides).float()

    nz = (problem.nz1, problem.nz0)
    got = matrices(problem.a, nz) @ matrices(problem.b, nz).transpose(-1, -2)
    assert torch.allclose(got.reshape(problem.shape), a.float() @ b.float(), atol=1e-4)


def test_layouts_and_tma_rules():
    def of(a, b):
        p = describe(a, b)
        return p.a.major, p.b.major, p.tma_load

    a, b = half(64, 32), half(32, 48)
    assert of(a, b) == ("k", "o", True)
    assert of(half(32, 64).t(), half(48, 32).t()) == ("o", "k", True)
    assert of(half(64, 36), half(36, 48)) == ("k", "o", False)  # rows of 72 bytes
    assert of(half(64, 40)[:, :36], half(36, 48)) == ("k", "o", True)  # K tail, aligned pitch
    assert of(half(64, 64)[:, ::2], b) == ("", "o", False)
    assert of(half(64 * 32 + 1)[1:].view(64, 32), b)[2] is False  # base 2 bytes off
    assert of(half(32).expand(64, 32), b)[:1] == ("",)  # rows that overlap
    assert of(half(1, 33), half(33, 48)) == ("k", "o", True)  # the pitch of one row is never used
    assert of(half(3, 64, 32), half(32, 48)[None].expand(3, 32, 48))[2] is True
    assert of(half(2, 1, 64, 32), half(1, 3, 32, 48))[2] is False  # two batch dimensions
    assert describe(half(64, 36), half(36, 48)).a.unit == 4
    assert describe(half(64, 32), half(48, 32).t()).tma_store
    assert not describe(half(64, 32), half(32, 47)).tma_store


def test_batches_that_share_b_become_more_rows():
    problem = describe(half(4, 5, 6, 32), half(32, 48))
    assert (problem.m, problem.batch) == (120, 1)
    strided = describe(half(4, 32, 6).transpose(1, 2), half(32, 48))
    assert (strided.m, strided.batch, strided.a.major) == (6, 4, "o")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: describe(half(4, 4), half(4, 4, dtype=F16)), TypeError, "a, b: got"),
        (lambda: describe(torch.zeros(4, 4), torch.zeros(4, 4)), TypeError, "bfloat16"),
        (lambda: describe(half(4, 5), half(4, 5)), ValueError, "inner dimensions differ"),
        (lambda: describe(half(2, 4, 5), half(3, 5, 4)), ValueError, "do not broadcast"),
        (lambda: describe(half(4, 4), half(4, 4), half(3)), ValueError, "bias: got shape"),
        (lambda: describe(half(4, 4), half(4, 4), None, 7), ValueError, "activation: got 7"),
        (lambda: describe(half(4, 4), half(4, 4), out_dtype=torch.int8), TypeError, "out_dtype"),
        (lambda: describe(torch.zeros((), dtype=BF16), half(4)), ValueError, "0-dimensional"),
    ],
)
def test_errors_name_the_argument(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("smem", [99 * 1024, 163 * 1024, 227 * 1024])
def test_few_configurations_that_fit(tma, smem):
    for m, n, batch in [(4096, 4096, 1), (1024, 1024, 1), (1, 4096, 1), (4096, 8, 1), (64, 64, 64)]:
        for out_bytes in (2, 4):
            found = candidates(m, n, batch, 132, smem, out_bytes, tma)
            assert 1 <= len(found) <= 6
            assert all(c.smem(out_bytes if tma else 0) < smem for c in found)
            assert len(set(found)) == len(found)


def test_importing_the_package_does_not_import_triton():
    code = (
        "import sys, deepasm_torch, deepasm_torch.triton_baseline as t\n"
        "assert 'triton' not in sys.modules\n"
        "sys.modules['triton'] = None\n"
        "usable, reason = t.available()\n"
        "assert not usable and 'triton cannot be imported' in reason\n"
        "print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "fine\n", done.stderr


# ---- in child processes ---------------------------------------------------------------------


def child(mode: str, **env) -> dict[str, dict]:
    """Run this file as a script; its JSON lines by case name."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, mode],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": cache, **env},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    return {line["case"]: line for line in lines}


@functools.cache
def interpreted() -> dict[str, dict]:
    return child("interpret", TRITON_INTERPRET="1")


@functools.cache
def compiled() -> dict[str, dict]:
    return child("compile")


INTERPRETED = [
    # name, a, b, bias, activation, out_dtype, TMA
    ("nt", (100, 72), (96, 72, "t"), None, 0, None, True),
    ("nn", (128, 128), (128, 128), None, 0, None, True),
    ("tn", (72, 104, "t"), (72, 96), None, 1, None, True),
    ("tt", (72, 104, "t"), (104, 72, "t"), None, 0, F32, True),
    ("k_tail", (70, 136), (136, 64), None, 0, F32, True),
    ("odd_n_plain_store", (70, 72), (72, 104), 101, 3, None, True),
    ("bias_gelu_tanh", (100, 72), (96, 72, "t"), 96, 2, BF16, True),
    ("bias_of_one", (33, 40), (40, 48), 1, 4, None, True),
    ("batched", (3, 100, 72), (3, 72, 96), 96, 4, None, True),
    ("batched_tn", (3, 72, 104, "t"), (3, 72, 96), None, 0, F32, True),
    ("broadcast_a", (100, 72), (3, 72, 96), None, 0, None, True),
    ("one_row", (1, 33), (33, 48), None, 0, None, True),
    ("k_of_one", (64, 1), (1, 64), None, 0, None, True),
    ("odd", (100, 71), (71, 95), 95, 3, None, False),
    ("odd_tn", (71, 101, "t"), (71, 95), 1, 1, F32, False),
    ("odd_tt", (71, 101, "t"), (95, 71, "t"), None, 2, None, False),
    ("two_batches", (2, 1, 65, 33), (1, 3, 33, 66), None, 0, None, False),
    ("three_batches", (4, 1, 5, 6, 33), (1, 3, 1, 33, 6), None, 0, None, False),
    ("strided_both_ways", (101, 142, "s"), (71, 190, "c"), None, 0, None, False),
]


@needs_triton
@pytest.mark.parametrize("name", [case[0] for case in INTERPRETED])
def test_interpreted_kernels_match_float64(name):
    result = interpreted()[name]
    assert result["unwritten"] == 0
    assert result["error"] < result["limit"], result


COMPILED = ["nt", "nn odd n", "tn bias gelu", "batched", "fp32 out", "skinny", "k 588", "odd"]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_gpus_that_are_not_here(name, arch):
    result = compiled()[f"{name} sm_{arch}"]
    assert result["failed"] == []
    assert result["grid"] > 0
    if arch == 90 and name not in ("k 588", "odd"):
        assert result["tma"] and result["wgmma"] and not result["spills"]
        # the estimate that decides which configurations are tried
        assert 0 <= result["smem"] - result["estimate"] <= 256
    elif arch == 90:
        assert result["wgmma"] and not result["tma"]
    else:
        assert result["mma"] and not result["tma"]
    if name == "k 588":
        assert result["copy_bytes"] == [8]  # rows of 1176 bytes: 8-byte copies, not scalar loads
    if name == "nt" and arch == 80:
        assert result["copy_bytes"] == [16]


# ---- on a GPU -------------------------------------------------------------------------------


def _harness_call():
    from harness.gemm import Call

    from deepasm_torch import triton_baseline

    def allocate(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
        return triton_baseline.gemm(a, b, bias, activation, out_dtype)

    def out(a, b, bias, c, alpha, beta, activation, out_dtype, variant, *, out):
        triton_baseline.gemm(a, b, bias, activation, out_dtype, out=out)

    return Call(allocate, out)


@needs_triton
@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["bf16_nt_tma", "f16_tn_tma", "bf16_nn_any", "bf16_tt_any"])
def test_the_harness_of_the_hand_written_kernels(layout, monkeypatch):
    from dataclasses import replace

    from harness import check_gemm, registry

    from deepasm_torch.triton_baseline import launch

    subject = next(s for s in registry.planner_subjects() if s.name == f"planner_{layout}")
    # One configuration per problem, a different one each time: all get their turn, none is timed.
    turn = iter(range(10**6))
    every = launch._candidates

    def one(problem, device):
        found = every(problem, device)
        return (found[next(turn) % len(found)],)

    monkeypatch.setattr(launch, "_candidates", one)
    for case in registry.cases(subject, sms=132):
        plain = replace(case, c=None, alpha=1.0, beta=0.0, c_shape="full", max_sms=0)
        check_gemm(plain, "cuda", call=_harness_call(), label=f"triton {layout}", tile=(128, 128))


@needs_triton
@pytest.mark.gpu
def test_tuning_remembers_and_capture_replays():
    from deepasm_torch import triton_baseline
    from deepasm_torch.triton_baseline import launch

    a = torch.randn(512, 256, device="cuda").to(BF16)
    b = torch.randn(384, 256, device="cuda").to(BF16).t()
    want = a.double() @ b.double()
    first = triton_baseline.gemm(a, b)
    chosen = dict(launch._chosen)
    assert triton_baseline.last_choice().startswith(
        "tma" if launch._limits(0)[2] >= 9 else "pointer"
    )
    out = torch.full_like(first, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        triton_baseline.gemm(a, b, out=out)
    graph.replay()
    assert launch._chosen == chosen
    assert torch.equal(out, first)
    assert ((out.double() - want).norm() / want.norm()).item() < 5e-3


@needs_triton
@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.perf
def test_it_is_a_serious_baseline():
    from deepasm_torch.bench import gemm_rows
    from deepasm_torch.bench.device import CudaDevice
    from deepasm_torch.bench.gemm_cases import Case
    from deepasm_torch.bench.timing import Settings

    rows, faults = gemm_rows.run_case(
        Case("square", 4096, 4096, 4096),
        CudaDevice(),
        Settings(2.0, ("steady",)),
        ["cublas", "triton"],
    )
    assert faults == []
    peers = rows[0]["peers_ms"]
    assert peers["cublas"] / peers["triton"] >= 0.88, rows[0]["metrics"]["triton"]


def test_empty_and_bad_calls_without_a_gpu():
    pytest.importorskip("triton", reason="triton is not installed")
    from deepasm_torch import triton_baseline

    assert triton_baseline.gemm(half(0, 8), half(8, 4)).shape == (0, 4)
    bias = torch.tensor([1.0, -2.0, 3.0]).to(BF16)
    got = triton_baseline.gemm(half(2, 0), half(0, 3), bias, 1, F32)
    assert got.dtype == F32 and got.tolist() == [[1.0, 0.0, 3.0]] * 2
    with pytest.raises(RuntimeError, match="a: is on cpu"):
        triton_baseline.gemm(half(8, 8), half(8, 8))
    with pytest.raises(ValueError, match="out: got"):
        triton_baseline.gemm(half(8, 8), half(8, 8), out=half(8, 9))


# ---- the child process ----------------------------------------------------------------------


def _operand(spec, side: int, n: int | None = None) -> torch.Tensor:
    *shape, how = spec if isinstance(spec[-1], str) else (*spec, "")
    x = torch.randn(shape).to(F16)  # the interpreter multiplies no bfloat16
    if how == "t":
        return x.transpose(-1, -2)
    if how in ("s", "c"):
        return x[:, ::2]
    return x[..., :n] if side else x


def _interpret() -> None:
    from triton.runtime import interpreter

    from deepasm_torch.triton_baseline import kernels, launch

    # numpy >= 2.4 no longer turns one-element arrays into integers, which Triton 3.6 relies on.
    if patch := getattr(interpreter, "_patch_lang_tensor", None):

        def patched(tensor, scope):
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        interpreter._patch_lang_tensor = patched
    torch.manual_seed(0)
    activate = {
        0: lambda x: x,
        1: torch.relu,
        2: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        3: torch.nn.functional.gelu,
        4: torch.nn.functional.silu,
    }
    for name, left, right, bias_size, activation, out_dtype, tma in INTERPRETED:
        n = bias_size if bias_size and bias_size > 1 else None
        a, b = _operand(left, 0), _operand(right, 1, n)
        bias = torch.randn(bias_size) if bias_size else None
        problem = describe(a, b, bias, activation, out_dtype)
        assert problem.tma_load is tma, (name, problem)
        out = torch.full(problem.shape, float("nan"), dtype=problem.out_dtype)
        config = Config(64, 64, 64, 4, 2, parts=2)
        tiles = -(-problem.m // 64) * -(-problem.n // 64) * problem.batch
        build = launch.tma_arguments if tma else launch.pointer_arguments
        args, constants = build(problem, out, config)
        kernel = kernels.gemm_tma if tma else kernels.gemm_pointer
        kernel[(min(tiles, 3) if tma else tiles,)](*args, **constants)
        want = a.double() @ b.double() + (0 if bias is None else bias.double())
        want = activate[activation](want)
        error = ((out.double() - want).norm() / want.norm()).item()
        limit = {F16: 1e-3, BF16: 5e-3, F32: 1e-5}[problem.out_dtype]
        unwritten = int(out.isnan().sum())
        print(json.dumps({"case": name, "error": error, "limit": limit, "unwritten": unwritten}))


class _Pretended:
    """The part of a Triton driver that compiling and launching ask for, without a GPU."""

    def __init__(self, arch: int):
        from triton.backends.compiler import GPUTarget

        self.target, self.launches = GPUTarget("cuda", arch, 32), []
        self.utils = self

        class Launcher:
            def __init__(_, src, metadata):
                pass

            def __call__(_, *args):
                self.launches.append(args)

        self.launcher_cls = Launcher

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self.target

    def load_binary(self, *args):
        return 1, 1, 0, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 * 1024}


def _compile() -> None:
    import triton

    from deepasm_torch.triton_baseline import launch, tuner

    def bf16(*shape):
        return torch.empty(shape, dtype=BF16)

    calls = {
        "nt": (bf16(4096, 512), bf16(4096, 512).t(), {}),
        "nn odd n": (bf16(4096, 512), bf16(512, 2056)[:, :2051], {}),
        "tn bias gelu": (
            bf16(512, 4096).t(),
            bf16(512, 4096),
            {"bias": bf16(4096), "activation": 3},
        ),
        "batched": (bf16(8, 1024, 512), bf16(8, 512, 1024), {}),
        "fp32 out": (bf16(4096, 512), bf16(4096, 512).t(), {"out_dtype": F32}),
        "skinny": (bf16(16, 512), bf16(4096, 512).t(), {}),
        "k 588": (bf16(4096, 588), bf16(1152, 588).t(), {}),
        "odd": (bf16(2047, 511), bf16(511, 2047), {}),
    }
    for arch in (80, 90):
        driver = _Pretended(arch)
        triton.runtime.driver.set_active(driver)
        smem = 227 * 1024 if arch == 90 else 163 * 1024
        launch._limits = lambda device, arch=arch, smem=smem: (132, smem, arch // 10)
        for kernel in (launch.kernels.gemm_tma, launch.kernels.gemm_pointer):
            kernel.device_caches.clear()
        for name, (a, b, more) in calls.items():
            problem = describe(a, b, **more)
            out = torch.empty(problem.shape, dtype=problem.out_dtype)
            # The first and the last configuration: the whole set takes a minute on two cores.
            configs = launch._candidates(problem, 0)
            configs = list(dict.fromkeys([configs[0], configs[-1]]))
            failures = tuner.compile_all(
                [functools.partial(launch.launch, problem, out, c, warmup=True) for c in configs]
            )
            kernel = launch.launch(problem, out, configs[0])
            ptx = kernel.asm["ptx"]
            copies = re.findall(
                r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx
            )
            staged = problem.out_dtype.itemsize if launch.use_tma(problem, 0) else 0
            print(
                json.dumps(
                    {
                        "case": f"{name} sm_{arch}",
                        "failed": [repr(failure) for failure in failures if failure],
                        "tma": ptx.count("cp.async.bulk.tensor"),
                        "wgmma": ptx.count("wgmma.mma_async"),
                        "mma": ptx.count("mma.sync.aligned.m16"),
                        "copy_bytes": sorted({int(text, 0) for text in copies}),
                        "smem": kernel.metadata.shared,
                        "estimate": configs[0].smem(staged),
                        "spills": _spilled(kernel.asm["cubin"]),
                        "grid": driver.launches[-1][0],
                    }
                )
            )


def _spilled(cubin: bytes) -> int | None:
    """Bytes of stack per thread, by Triton's own cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=False
        ).stdout
    found = re.search(r"STACK:(\d+)", text)
    return int(found.group(1)) if found else None


if __name__ == "__main__":
    {"interpret": _interpret, "compile": _compile}[sys.argv[1]]()
