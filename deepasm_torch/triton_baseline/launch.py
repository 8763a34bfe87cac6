"""Host side of the Triton GEMM: which kernel, which tile, which descriptors.

TMA descriptors need one unit stride per operand, 16-byte aligned bases and strides and at most one
batch dimension; everything else goes through the pointer kernel.
"""

from __future__ import annotations

import functools

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from . import kernels
from .configs import Config, candidates
from .problem import TMA_BYTES, Operand, Problem, describe
from .tuner import compile_all, fastest

MAJOR_CODES = {"": 0, "k": 1, "o": 2}
_chosen: dict[tuple, Config] = {}
_last = ""


def last_choice() -> str:
    """Kernel and tile of the latest launch, such as "tma 128x256x64 w8 s4", for tables."""
    return _last


def gemm(a, b, bias=None, activation=0, out_dtype=None, *, out=None) -> torch.Tensor:
    """See :func:`deepasm_torch.triton_baseline.gemm`."""
    problem = describe(a, b, bias, activation, out_dtype)
    if out is None:
        out = torch.empty(problem.shape, dtype=problem.out_dtype, device=a.device)
    elif out.shape != problem.shape or out.dtype != problem.out_dtype:
        raise ValueError(
            f"out: got {tuple(out.shape)} {out.dtype}; needed is {problem.shape} "
            f"{problem.out_dtype}. Leave it out to have it allocated."
        )
    if out.numel() == 0:
        return out
    if problem.k == 0:
        return _without_products(problem, out)
    if a.device.type != "cuda":
        raise RuntimeError(f"a: is on {a.device}; the Triton baseline runs on CUDA devices only.")
    result = (
        out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
    )
    with torch.cuda.device(a.device):
        launch(problem, result, choose(problem, result))
    return out if result is out else out.copy_(result)


def _without_products(problem: Problem, out: torch.Tensor) -> torch.Tensor:
    value = torch.zeros(problem.n, device=out.device)
    if problem.bias is not None:
        value += problem.bias
    functions = torch.nn.functional
    if problem.activation:
        value = (
            torch.relu,
            functools.partial(functions.gelu, approximate="tanh"),
            functions.gelu,
            functions.silu,
        )[problem.activation - 1](value)
    return out.copy_(value.expand(problem.batch * problem.m, problem.n).reshape(problem.shape))


def choose(problem: Problem, out: torch.Tensor) -> Config:
    """The fastest configuration for this problem; timed on the first call, remembered after."""
    index = out.device.index
    key = (
        index, use_tma(problem, index), problem.m, problem.n, problem.k, problem.nz0, problem.nz1,
        problem.a.tensor.dtype, problem.out_dtype, problem.activation, problem.bias is not None,
        problem.a.major, problem.b.major, problem.a.unit, problem.b.unit,
    )  # fmt: skip
    if key not in _chosen:
        configs = _candidates(problem, index)
        if len(configs) == 1 or torch.cuda.is_current_stream_capturing():
            return configs[0]  # timing is pointless or impossible: best guess, not remembered
        failures = compile_all(
            [functools.partial(launch, problem, out, config, warmup=True) for config in configs]
        )
        best, _ = fastest(
            [
                None if failure else functools.partial(launch, problem, out, config)
                for config, failure in zip(configs, failures, strict=True)
            ]
        )
        _chosen[key] = configs[best]
    return _chosen[key]


def _candidates(problem: Problem, device: int) -> tuple[Config, ...]:
    sms, smem, _ = _limits(device)
    return candidates(
        problem.m, problem.n, problem.batch, sms, smem, problem.out_dtype.itemsize,
        use_tma(problem, device),
    )  # fmt: skip


def use_tma(problem: Problem, device: int) -> bool:
    # The plain-store epilogue keeps 32-bit offsets inside a tile of at most 256 rows.
    return _limits(device)[2] >= 9 and problem.tma_load and problem.n < 2**23


@functools.cache
def _limits(device: int) -> tuple[int, int, int]:
    """(multiprocessors, shared memory per CTA in bytes, compute capability's major number)."""
    props = torch.cuda.get_device_properties(device)
    smem = getattr(props, "shared_memory_per_block_optin", 99 * 1024)
    return props.multi_processor_count, smem, props.major


def launch(problem: Problem, out: torch.Tensor, config: Config, warmup: bool = False):
    """Launch one configuration (or only compile it), writing ``out``."""
    global _last
    tma = use_tma(problem, out.device.index or 0)
    build = tma_arguments if tma else pointer_arguments
    kernel = kernels.gemm_tma if tma else kernels.gemm_pointer
    args, constants = build(problem, out, config)
    tiles = -(-problem.m // config.bm) * -(-problem.n // config.bn) * problem.batch
    if tma:
        tiles = min(tiles, _limits(out.device.index or 0)[0] * config.resident)
    constants.update(num_warps=config.warps, num_stages=config.stages)
    if warmup:
        return kernel.warmup(*args, grid=(tiles,), **constants)
    _last = f"{'tma' if tma else 'pointer'} {config}"
    return kernel[(tiles,)](*args, **constants)


def tma_arguments(problem: Problem, out: torch.Tensor, config: Config) -> tuple[list, dict]:
    """Positional arguments and constexprs of :func:`kernels.gemm_tma`."""
    batched = problem.batch > 1
    width = config.bn // config.parts
    d_desc = None
    if problem.tma_store and out.data_ptr() % TMA_BYTES == 0:
        flat = out.view(-1, problem.m, problem.n)
        shape, strides, block = list(flat.shape), list(flat.stride()), [1, config.bm, width]
        drop = 0 if batched else 1
        d_desc = TensorDescriptor(flat, shape[drop:], strides[drop:], block[drop:])
    args = [
        _descriptor(problem.a, problem.nz0, config.bm, config.bk, batched),
        _descriptor(problem.b, problem.nz0, config.bn, config.bk, batched),
        d_desc,
        None if d_desc else out,
        problem.bias,
        problem.m,
        problem.n,
        problem.k,
        problem.nz0,
        int(problem.a.z0_stride != 0),
        int(problem.b.z0_stride != 0),
        problem.n,
        problem.m * problem.n,
    ]
    constants = {
        "A_K": problem.a.major == "k",
        "B_K": problem.b.major == "k",
        "BATCHED": batched,
        "ACT": problem.activation,
        "BM": config.bm,
        "BN": config.bn,
        "BK": config.bk,
        "PARTS": config.parts,
        "GROUP_M": config.group_m,
    }
    return args, constants


def _descriptor(operand: Operand, nz0: int, rows: int, ks: int, batched: bool):
    shape = [operand.rows, operand.cols]
    block = [rows, ks]
    if operand.major != "k":
        shape.reverse()
        block.reverse()
    strides = [operand.outer_stride, 1]
    if batched:
        # A broadcast operand gets one batch entry, whose stride only has to be legal.
        broadcast = operand.z0_stride == 0
        pitch = shape[0] * operand.outer_stride if broadcast else operand.z0_stride
        shape.insert(0, 1 if broadcast else nz0)
        strides.insert(0, pitch)
        block.insert(0, 1)
    return TensorDescriptor(operand.tensor, shape, strides, block)


def pointer_arguments(problem: Problem, out: torch.Tensor, config: Config) -> tuple[list, dict]:
    """Positional arguments and constexprs of :func:`kernels.gemm_pointer`."""
    units = [_unit(size) for size in (problem.m, problem.n, problem.k)]
    args = [problem.a.tensor, problem.b.tensor, out, problem.bias]
    sizes = (problem.m, problem.n, problem.k)
    args += [size // unit for size, unit in zip(sizes, units, strict=True)]
    args.append(problem.nz0)
    for operand in (problem.a, problem.b):
        unit = operand.unit
        outer = operand.outer_stride if operand.major else operand.row_stride
        args += [outer // unit, operand.col_stride]
        args += [operand.z0_stride // unit, operand.z1_stride // unit]
    args += [problem.n, problem.m * problem.n]
    edge = max(config.bm, config.bn, config.bk)
    reach = max(op.row_stride + op.col_stride for op in (problem.a, problem.b))
    constants = {
        "WIDE": edge * max(reach, problem.n) >= 2**31,
        "M_UNIT": units[0],
        "N_UNIT": units[1],
        "K_UNIT": units[2],
        "A_UNIT": problem.a.unit,
        "B_UNIT": problem.b.unit,
        "A_MAJOR": MAJOR_CODES[problem.a.major],
        "B_MAJOR": MAJOR_CODES[problem.b.major],
        "ACT": problem.activation,
        "BM": config.bm,
        "BN": config.bn,
        "BK": config.bk,
        "GROUP_M": config.group_m,
    }
    return args, constants


def _unit(size: int) -> int:
    return next(unit for unit in (8, 4, 2, 1) if size % unit == 0)
