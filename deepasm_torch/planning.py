"""The planner as data: which kernel a GEMM gets on which GPU, without a GPU.

`plan_gemm` asks the compiled module's planner, the same code that runs before every launch, about a
problem described by shapes and strides.  The answer holds everything a launch needs except memory,
so a tool such as the emulator can run the plan itself: fill in addresses (`GemmPlan.pack`), read
the tensor maps, and execute the kernel's PTX over the grid.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from dataclasses import dataclass, field

from . import _library
from .kernels import params as _params

__all__ = [
    "DEVICES",
    "Candidate",
    "DeviceRecord",
    "GemmPlan",
    "TensorMap",
    "current_device",
    "plan_gemm",
    "plan_tensors",
]

#: dtype name -> number used by the planner and by the out_dtype flag
DTYPES = {"bfloat16": 0, "float16": 1, "float32": 2}
_ALIASES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
}
_OTHER = 3
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class DeviceRecord:
    """What planning needs to know about a GPU.

    Parameters
    ----------
    name : str
    cc : (int, int)
        Compute capability.
    sms : int
        Streaming multiprocessors.
    smem : int
        Shared memory one block may opt in to, bytes.
    index : int
        CUDA device index of a real GPU: kernels that failed to load there are left out.
    """

    name: str
    cc: tuple[int, int]
    sms: int
    smem: int
    index: int = -1


_KB = 1024

#: Known GPUs by short name.
DEVICES = {
    "t4": DeviceRecord("Tesla T4", (7, 5), 40, 64 * _KB),
    "a100": DeviceRecord("NVIDIA A100", (8, 0), 108, 163 * _KB),
    "a10": DeviceRecord("NVIDIA A10", (8, 6), 72, 99 * _KB),
    "rtx3090": DeviceRecord("NVIDIA GeForce RTX 3090", (8, 6), 82, 99 * _KB),
    "orin": DeviceRecord("NVIDIA Jetson AGX Orin", (8, 7), 16, 163 * _KB),
    "l4": DeviceRecord("NVIDIA L4", (8, 9), 58, 99 * _KB),
    "rtx4090": DeviceRecord("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * _KB),
    "h100": DeviceRecord("NVIDIA H100 SXM", (9, 0), 132, 227 * _KB),
    "h100-pcie": DeviceRecord("NVIDIA H100 PCIe", (9, 0), 114, 227 * _KB),
    "h200": DeviceRecord("NVIDIA H200", (9, 0), 132, 227 * _KB),
    "b200": DeviceRecord("NVIDIA B200", (10, 0), 148, 227 * _KB),
    "thor": DeviceRecord("NVIDIA Jetson Thor", (11, 0), 20, 227 * _KB),
    "rtx5090": DeviceRecord("NVIDIA GeForce RTX 5090", (12, 0), 170, 99 * _KB),
}


@dataclass(frozen=True)
class TensorMap:
    """A TMA tensor map in words; innermost dimension first, strides in bytes without the innermost.

    `pointer` is the field of the parameter block that holds its base address.
    """

    name: str
    pointer: str
    dtype: str  # "bf16", "f16" or "f32"
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int  # bytes
    l2_promotion: int


@dataclass(frozen=True)
class Candidate:
    """One row of the kernel table: its estimated cycles, or why it cannot run the problem."""

    variant: int
    kernel: str
    cost: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class GemmPlan:
    """The answer of `plan_gemm`.

    route is "kernel" (the fields below say which), "fallback" (torch computes it, `reason` says
    why), "reference" (k is 0: torch fills in the empty sum) or "empty" (nothing to compute).
    """

    route: str
    reason: str
    m: int
    n: int
    k: int
    batch: tuple[int, ...]  # after folding and merging, outermost first
    out_shape: tuple[int, ...]
    transposed: bool = False  # computes out^T = b^T a^T
    bias_as_c: bool = False  # bias is read through the c operand
    bias_copy: bool = False  # bias is first copied to a contiguous one
    out_copy: bool = False  # computed into a temporary, then copied into out
    variant: int = -1
    kernel: str = ""
    tier: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem: int = 0
    flags: int = 0
    cost: float = math.nan
    programmatic_launch: bool = False
    params: bytes = b""  # the parameter block with null pointers and empty tensor maps
    pointers: dict[str, str] = field(default_factory=dict)  # block field -> argument it points to
    tensor_maps: tuple[TensorMap, ...] = ()
    launches: int = 0
    loop: tuple[dict[str, int], ...] = ()  # host loop: count, and bytes that a, b, c, d advance by
    candidates: tuple[Candidate, ...] = ()

    @property
    def native(self) -> bool:
        """Whether a kernel of this package computes the result."""
        return self.route == "kernel"

    def launch_offsets(self):
        """Yield {"a": bytes, "b": ..., "c": ..., "d": ...} to add to the pointers, per launch."""
        for index in itertools.product(*(range(dim["count"]) for dim in self.loop)):
            yield {
                name: sum(i * dim[name] for i, dim in zip(index, self.loop))
                for name in ("a", "b", "c", "d")
            }

    def pack(
        self,
        addresses: dict[str, int],
        maps: dict[str, bytes] | None = None,
        offsets: dict[str, int] | None = None,
    ) -> bytes:
        """The parameter block of one launch.

        Parameters
        ----------
        addresses : dict
            Address of each argument that `pointers` mentions: "a", "b", "bias", "c", "out".
        maps : dict, optional
            128 bytes per tensor map name, where the consumer needs them encoded.
        offsets : dict, optional
            One item of `launch_offsets()`.

        Returns
        -------
        bytes
        """
        block = bytearray(self.params)
        layout = _params.layout()
        for name, argument in self.pointers.items():
            value = addresses[argument] + (offsets or {}).get(name, 0)
            struct.pack_into("<Q", block, layout.offsets[name], value)
        for name, content in (maps or {}).items():
            if len(content) != 128:
                raise ValueError(f"pack: {name} has {len(content)} bytes, a tensor map has 128")
            block[layout.offsets[name] : layout.offsets[name] + 128] = content
        return bytes(block)

    def fields(self) -> dict[str, int | float | tuple[int, int]]:
        """The block's fields by name, pointers and maps left out; divisors are (mul, shift)."""
        layout = _params.layout()
        formats = {"s64": "<q", "u32": "<I", "f32": "<f", "div": "<II"}
        values = {}
        for name, kind, _ in _params.GEMM_PARAMS:
            if kind in formats:
                found = struct.unpack_from(formats[kind], self.params, layout.offsets[name])
                values[name] = found if kind == "div" else found[0]
        return values


def _dtype_name(dtype) -> str:
    text = str(dtype).removeprefix("torch.")
    return _ALIASES.get(text, text)


def _contiguous(shape) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = min(step * max(int(size), 1), _INT64_MAX)
    return tuple(reversed(strides))


def _spec(shape, stride, dtype: str, address: int):
    if shape is None:
        return None
    shape = tuple(int(s) for s in shape)
    stride = _contiguous(shape) if stride is None else tuple(int(s) for s in stride)
    if len(shape) != len(stride):
        raise ValueError(f"plan_gemm: shape {shape} and stride {stride} differ in length")
    return DTYPES.get(dtype, _OTHER), int(address), shape, stride


def _device(device) -> DeviceRecord:
    if isinstance(device, DeviceRecord):
        return device
    try:
        return DEVICES[str(device).lower()]
    except KeyError:
        raise ValueError(
            f"plan_gemm: device is {device!r}, expected a DeviceRecord or one of "
            f"{', '.join(DEVICES)}"
        ) from None


def current_device(index: int = 0) -> DeviceRecord:
    """The record of a real CUDA device.

    Raises
    ------
    RuntimeError
        If there is no such device or no driver.
    """
    record = json.loads(_library.require().device_record(index))
    if "error" in record:
        raise RuntimeError(f"current_device: {record['error']}")
    major, minor = map(int, record["cc"].split("."))
    return DeviceRecord(
        record["name"], (major, minor), record["sms"], record["smem_per_block"], index
    )


def plan_gemm(
    a_shape,
    a_stride,
    b_shape,
    b_stride,
    *,
    dtype="bfloat16",
    out_dtype=None,
    bias=None,
    bias_stride=1,
    bias_dtype=None,
    c_shape=None,
    c_stride=None,
    c_dtype=None,
    out_shape=None,
    out_stride=None,
    alpha=1.0,
    beta=0.0,
    activation=0,
    device="h200",
    addresses=None,
    variant=-1,
    tier=0,
    max_sms=0,
    disable=False,
) -> GemmPlan:
    """Plan act(alpha * a @ b + beta * c + bias) for tensors that need not exist.

    Parameters
    ----------
    a_shape, b_shape : sequence of int
        torch.matmul's shape rules apply.
    a_stride, b_stride : sequence of int or None
        In elements; None means contiguous.
    dtype, out_dtype : str or torch.dtype
        Of a and b, and of the output (by default the same).
    bias : int or None
        Length of the bias: the output's columns, or 1.
    bias_dtype, c_dtype : str or torch.dtype, optional
        By default `dtype`.
    c_shape, c_stride : sequence of int, optional
        The addend that beta scales; broadcastable to the output.
    out_shape, out_stride : sequence of int, optional
        Describe a caller's `out` tensor; otherwise the output is a new contiguous one.
    device : str or DeviceRecord
        A key of `DEVICES`, or your own record.
    addresses : dict, optional
        Addresses of "a", "b", "bias", "c", "out": only alignment and overlap matter, 0 by default.
    variant : int
        Force one row of the kernel table.
    tier, max_sms, disable
        As the options of the same names.

    Returns
    -------
    GemmPlan

    Raises
    ------
    RuntimeError
        For arguments that the op itself refuses, in the same words.
    ValueError
        For a description that makes no sense: negative sizes or strides, a GPU without
        multiprocessors, an option out of range.
    """
    record = _device(device)
    dtype = _dtype_name(dtype)
    out_dtype = dtype if out_dtype is None else _dtype_name(out_dtype)
    at = dict.fromkeys(("a", "b", "bias", "c", "out"), 0) | dict(addresses or {})
    if out_stride is not None and out_shape is None:
        raise ValueError("plan_gemm: out_stride needs out_shape")
    bias_type = dtype if bias_dtype is None else _dtype_name(bias_dtype)
    c_type = dtype if c_dtype is None else _dtype_name(c_dtype)
    text = _library.require().plan_gemm(
        _spec(a_shape, a_stride, dtype, at["a"]),
        _spec(b_shape, b_stride, dtype, at["b"]),
        _spec(None if bias is None else (bias,), (bias_stride,), bias_type, at["bias"]),
        _spec(c_shape, c_stride, c_type, at["c"]),
        _spec(out_shape, out_stride, out_dtype, at["out"]),
        (float(alpha), float(beta), int(activation), DTYPES.get(out_dtype, _OTHER)),
        (
            *record.cc,
            record.sms,
            record.smem,
            record.index,
            int(tier),
            int(max_sms),
            int(bool(disable)),
        ),
        int(variant),
    )
    return _from_json(json.loads(text))


def plan_tensors(
    a,
    b,
    bias=None,
    *,
    c=None,
    alpha=1.0,
    beta=0.0,
    activation=0,
    out_dtype=None,
    out=None,
    device=None,
    variant=-1,
) -> GemmPlan:
    """`plan_gemm` for tensors that exist, under the options in force now.

    Parameters
    ----------
    a, b, bias, c, out : torch.Tensor
        On any device; only their metadata are read, never their contents.
    device : str or DeviceRecord, optional
        By default the GPU that `a` is on; needed for tensors that are not on a GPU.

    Returns
    -------
    GemmPlan
    """
    C = _library.require()
    if device is None:
        if not a.is_cuda:
            raise ValueError(
                f"plan_tensors: a is on {a.device}, so device must say for which GPU to plan: a "
                f"DeviceRecord or one of {', '.join(DEVICES)}"
            )
        device = current_device(a.device.index)
    options = {
        "alpha": alpha,
        "beta": beta,
        "activation": activation,
        "device": device,
        "variant": variant,
        "dtype": a.dtype,
        "out_dtype": out.dtype if out is not None else out_dtype,
        "tier": C.get_option("tier"),
        "max_sms": C.get_option("max_sms"),
        "disable": C.get_option("disable"),
    }
    if a.is_cuda:  # elsewhere an address says nothing about the GPU
        tensors = {"a": a, "b": b, "bias": bias, "c": c, "out": out}
        options["addresses"] = {k: t.data_ptr() for k, t in tensors.items() if t is not None}
    if bias is not None:
        if bias.dim() != 1:
            raise RuntimeError(f"gemm: bias has shape {list(bias.shape)}, expected one dimension")
        options.update(bias=bias.shape[0], bias_stride=bias.stride(0), bias_dtype=bias.dtype)
    if c is not None:
        options.update(c_shape=c.shape, c_stride=c.stride(), c_dtype=c.dtype)
    if out is not None:
        options.update(out_shape=out.shape, out_stride=out.stride())
    return plan_gemm(a.shape, a.stride(), b.shape, b.stride(), **options)


def _from_json(answer: dict) -> GemmPlan:
    answer["params"] = bytes.fromhex(answer.get("params", ""))
    answer["tensor_maps"] = tuple(
        TensorMap(**{k: tuple(v) if isinstance(v, list) else v for k, v in item.items()})
        for item in answer.get("tensor_maps", ())
    )
    answer["candidates"] = tuple(Candidate(**item) for item in answer.get("candidates", ()))
    answer["loop"] = tuple(answer.get("loop", ()))
    for name in ("batch", "out_shape", "grid", "block", "cluster"):
        if name in answer:
            answer[name] = tuple(answer[name])
    return GemmPlan(**answer)
