"""`is_supported` and `explain`: which kernel would compute a call, or why torch would.

Both ask the planner that runs before every launch, so they cannot disagree with it.  Nothing is
computed, and tensors on the CPU or on the meta device are planned for a named GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import _library, checks, planning
from .functional import _autocast
from .kernels.gemm import KERNELS
from .ops import autocast_dtypes

_OPS = ("gemm",)


@dataclass(frozen=True)
class Explanation:
    """What would happen to one call; `str()` gives it as text.

    route : "kernel" (a deepasm kernel), "fallback" (torch, counted), "reference" (torch: CPU
        tensors, or an empty sum), "empty" (nothing to compute) or "error" (the call would raise)
    reason : why, in words
    device : name of the GPU that was planned for, or of the tensors' own device
    plan : planning.GemmPlan with grid, block, shared memory, tensor maps, ...; None without a plan
    notes : what else is worth knowing: hidden copies, launches, swapped operands
    """

    op: str
    route: str
    reason: str
    device: str
    plan: planning.GemmPlan | None = None
    notes: tuple[str, ...] = ()

    @property
    def native(self) -> bool:
        return self.route == "kernel"

    @property
    def kernel(self) -> str:
        """Name of the kernel, or ""."""
        return self.plan.kernel if self.native else ""

    @property
    def tile(self) -> tuple[int, int, int] | None:
        """Rows and columns of the call's output that one tile covers, and the depth of a step."""
        if not self.native:
            return None
        row = KERNELS[self.plan.variant]
        return (row.bn, row.bm, row.bk) if self.plan.transposed else (row.bm, row.bn, row.bk)

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.device}: {self.route}"]
        plan = self.plan
        if plan is not None:
            batch = "".join(f"{size} x " for size in plan.batch)
            m, n = (plan.n, plan.m) if _column_major(plan) else (plan.m, plan.n)
            lines.append(f"  problem  {batch}{m} x {n} x {plan.k} (M x N x K)")
        if self.native:
            tile = " x ".join(map(str, self.tile))
            lines.append(f"  kernel   {plan.kernel} (tier sm{plan.tier}, tile {tile})")
            lines.append(
                f"  launch   grid {plan.grid[0]}, block {plan.block[0]}, cluster "
                f"{plan.cluster[0]}, {plan.smem} bytes of shared memory, launches {plan.launches}"
            )
        lines.append(f"  because  {self.reason}")
        lines += [f"  note     {note}" for note in self.notes]
        rejected = [c for c in plan.candidates if c.cost is None] if plan is not None else []
        for candidate in rejected if not self.native else ():
            lines.append(f"  not      {candidate.kernel}: {candidate.reason}")
        return "\n".join(lines)


def is_supported(
    op,
    a,
    b,
    bias=None,
    *,
    c=None,
    out=None,
    alpha=1.0,
    beta=0.0,
    activation=0,
    out_dtype=None,
    device=None,
) -> tuple[bool, str]:
    """Whether a deepasm kernel would compute the call.

    Parameters
    ----------
    op : "gemm"
    a, b, bias, c, out, alpha, beta, activation, out_dtype
        Arguments of the op. Tensors may be on CUDA, the CPU or the meta device; only shapes,
        strides, dtypes and alignment are read.
    device : str or planning.DeviceRecord, optional
        GPU to answer for, e.g. "h100" (see `planning.DEVICES`). Default: where the tensors are,
        which for CPU tensors means (False, ...).

    Returns
    -------
    (bool, str)
        True and the kernel's name, or False and the reason: why torch computes it, or the error
        that the call would raise.
    """
    answer = explain(
        op,
        a,
        b,
        bias,
        c=c,
        out=out,
        alpha=alpha,
        beta=beta,
        activation=activation,
        out_dtype=out_dtype,
        device=device,
    )
    if answer.native and device is None and a.device.type != "cuda":
        return False, f"a is on {a.device}: the reference computes it there"
    return answer.native, answer.kernel or answer.reason


def explain(
    op,
    a,
    b,
    bias=None,
    *,
    c=None,
    out=None,
    alpha=1.0,
    beta=0.0,
    activation=0,
    out_dtype=None,
    device=None,
) -> Explanation:
    """Say which kernel would compute the call, with which launch, or why torch would.

    Parameters
    ----------
    op : "gemm"
    a, b, bias, c, out, alpha, beta, activation, out_dtype
        As in `is_supported`.
    device : str or planning.DeviceRecord, optional
        GPU to plan for. Default: the device of CUDA tensors, "h200" for others.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        For an unknown op or device. A call that would itself raise is explained instead.
    ImportError
        If the compiled part of deepasm_torch could not be loaded.
    """
    if op not in _OPS:
        raise ValueError(f"explain: op is {op!r}, expected one of {', '.join(map(repr, _OPS))}")
    module = _library.require()
    tensors = {"a": a, "b": b, "bias": bias, "c": c, "out": out}
    record, notes = _target(a, device)
    addresses = {name: _address(t) for name, t in tensors.items() if t is not None}
    activation = int(activation)
    try:
        checks.check_layout(**tensors)
        checks.check_device(**tensors)
        if out is None and _autocast(a):
            notes += _apply_autocast(a.device.type, tensors, addresses)
        a, b, bias, c = (tensors[n] for n in ("a", "b", "bias", "c"))
        shape, dtype = checks.infer(a, b, bias, c, activation, out_dtype)
        if out is not None:
            checks.check_out(out, shape, a, out_dtype)
            dtype = out.dtype
        plan = _plan(module, record, tensors, addresses, alpha, beta, activation, dtype)
    except RuntimeError as error:
        return Explanation(op, "error", str(error), record.name, None, tuple(notes))
    notes += _notes(plan)
    return Explanation(op, plan.route, _reason(plan), record.name, plan, tuple(notes))


def _target(a, device):
    """The GPU to plan for, and a note where the tensors are not on it."""
    if device is not None:
        return planning._device(device), []
    if a.device.type == "cuda":
        index = torch.cuda.current_device() if a.device.index is None else a.device.index
        return planning.current_device(index), []
    record = planning.DEVICES["h200"]
    here = "only shapes are computed" if a.device.type == "meta" else "the reference runs"
    return record, [
        f"planned for {record.name}, choose a GPU with device=; on {a.device.type} itself {here}"
    ]


def _address(t) -> int:
    """The address of a CUDA tensor; elsewhere one with the alignment of its storage offset."""
    if t.layout is not torch.strided:
        return 0
    return t.data_ptr() if t.device.type == "cuda" else t.storage_offset() * t.element_size()


def _apply_autocast(kind, tensors, addresses) -> list[str]:
    """Replace every operand by a meta tensor of the dtype that autocast gives it."""
    names = ("a", "b", "bias", "c")
    changed = []
    for name, dtype in zip(names, autocast_dtypes(kind, *(tensors[n] for n in names))):
        t = tensors[name]
        if t is None:
            continue
        if t.dtype != dtype:
            changed.append(name)
            addresses[name] = 0  # a fresh tensor is aligned
        tensors[name] = torch.empty_like(t, dtype=dtype, device="meta")
    return [f"autocast first converts {', '.join(changed)} to {tensors['a'].dtype}"] * bool(changed)


def _plan(module, record, tensors, addresses, alpha, beta, activation, dtype):
    a, b, bias, c, out = (tensors[n] for n in ("a", "b", "bias", "c", "out"))
    return planning.plan_gemm(
        a.shape,
        a.stride(),
        b.shape,
        b.stride(),
        dtype=a.dtype,
        out_dtype=dtype,
        bias=None if bias is None else bias.shape[0],
        bias_stride=1 if bias is None else bias.stride(0),
        bias_dtype=None if bias is None else bias.dtype,
        c_shape=None if c is None else c.shape,
        c_stride=None if c is None else c.stride(),
        c_dtype=None if c is None else c.dtype,
        out_shape=None if out is None else out.shape,
        out_stride=None if out is None else out.stride(),
        alpha=alpha,
        beta=beta,
        activation=activation,
        device=record,
        addresses=addresses,
        tier=module.get_option("tier"),
        max_sms=module.get_option("max_sms"),
        disable=module.get_option("disable"),
    )


def _reason(plan) -> str:
    if plan.route != "kernel":
        return plan.reason
    able = [c for c in plan.candidates if c.cost is not None]
    text = f"lowest estimated cost of the {len(able)} kernels that can run it"
    better = sorted({c.reason for c in plan.candidates if c.cost is None})
    if KERNELS[plan.variant].loads != "tma" and better:
        text += f"; others cannot: {'; '.join(better)}"
    return text


def _few_rows(plan) -> bool:
    """The kernel computes the transpose of the planned problem, which has few rows."""
    return plan.native and KERNELS[plan.variant].d_major == "m"


def _column_major(plan) -> bool:
    """The planned problem is the transpose of the call: out is written along its columns."""
    return plan.native and plan.transposed != _few_rows(plan)


def _notes(plan) -> list[str]:
    notes = []
    if plan.out_copy:
        notes.append("computed into a temporary and copied: no kernel can write out as it is")
    if plan.bias_copy:
        notes.append("bias is copied first: kernels read a contiguous vector of N elements")
    if _few_rows(plan) and _column_major(plan):
        notes.append(
            "few columns: a takes the 64-row side, which writes the column-major out as it is"
        )
    elif _few_rows(plan):
        notes.append(
            "computed transposed (out^T = b^T a^T), because of few rows: the weight takes the "
            "64-row side"
        )
    elif plan.transposed:
        notes.append("computed transposed (out^T = b^T a^T), because out is column-major")
    if plan.launches > 1:
        notes.append(f"{plan.launches} launches: more than two batch dimensions that do not merge")
    return notes
