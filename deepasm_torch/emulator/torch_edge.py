"""`emulate`: CPU tensors through the package's ops run the kernels' PTX in the emulator.

    with deepasm_torch.emulate(device="h200", schedule="random", seed=1) as emulation:
        y = torch.ops.deepasm.gemm(a, b)          # bfloat16 or float16 CPU tensors
    print(emulation.launches[0].plan.kernel)

Inside the block every call of ``deepasm::gemm`` and ``deepasm::_gemm`` (and so `functional`, and
the gradients of both) with CPU tensors asks the planner what the named GPU would launch, and runs
that kernel's PTX with that parameter block, grid and those tensor maps. What no kernel computes
raises `EmulatorError` with the planner's reason: nothing falls back to torch silently.

Modelled: the choice of kernel, strides, offsets and alignment of every operand, bias, addend,
activation, `out`, host loops over batches. Not modelled: streams, graph capture, torch.compile and
torch.func transforms (an operand that a transform has wrapped has no memory to read).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import checks, planning
from .errors import EmulatorError, HazardError
from .launch import Result, launch
from .memory import Memory
from .program import load
from .scheduler import POLICIES
from .torch_memory import place

NUMPY_DTYPE = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
TORCH_DTYPE = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


@dataclass(frozen=True)
class Launch:
    """One emulated kernel launch: the plan it came from and what happened."""

    plan: planning.GemmPlan
    result: Result


class Emulation(TorchDispatchMode):
    """Context of `emulate`.

    Attributes
    ----------
    launches : list of Launch
        In order of execution.
    """

    def __init__(self, device, schedule, seed, hazards, check, variant):
        super().__init__()
        self.device, self.schedule, self.seed = device, schedule, seed
        self.hazards, self.check, self.variant = hazards, check, variant
        self.launches = []

    @property
    def ok(self):
        """No launch reported a hazard."""
        return all(x.result.ok for x in self.launches)

    def report(self):
        """All hazards of all launches as text."""
        bad = [f"{x.plan.kernel}:\n{x.result.report()}" for x in self.launches if not x.result.ok]
        return "\n".join(bad) or "no hazards"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ops = torch.ops.deepasm
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        known = func in (ops.gemm.default, ops.gemm.out, ops._gemm.default, ops._gemm.out)
        if not known or any(t.device.type != "cpu" for t in tensors):
            return func(*args, **kwargs)
        if func in (ops.gemm.default, ops.gemm.out):
            a, b, bias = (*args, kwargs.get("bias"))[:3]
            rest = (None, 1.0, 0.0, kwargs.get("activation", 0), kwargs.get("out_dtype"), -1)
        else:
            a, b, bias, *rest = args
            rest += [kwargs[n] for n in ("activation", "out_dtype", "variant") if n in kwargs]
        return self.gemm(a, b, bias, *rest, out=kwargs.get("out"))

    # ------------------------------------------------------------------ one call
    def gemm(self, a, b, bias, c, alpha, beta, activation, out_dtype, variant, out=None):
        """Plan and run act(alpha * a @ b + beta * c + bias)."""
        if out is not None:
            out_dtype = out.dtype
        shape, dtype = checks.infer(a, b, bias, c, activation, out_dtype)
        if out is not None:
            checks.check_out(out, shape, a, dtype)
        operands = {"a": a, "b": b, "bias": bias, "c": c if beta else None, "out": out}
        operands = {n: t.detach() for n, t in operands.items() if t is not None}
        for name, t in operands.items():
            if t.dtype not in TORCH_DTYPE:
                raise EmulatorError(
                    f"emulate: {name} is {t.dtype}, which no kernel takes; use bfloat16 or float16"
                )
        plan = self.plan(operands, dtype, alpha, beta, activation, variant)
        result = out if out is not None else torch.empty(shape, dtype=dtype)
        if plan.route == "empty":
            return None if out is not None else result
        if plan.route != "kernel":
            why = plan.reason or "the sum over k is empty"
            raise EmulatorError(
                f"emulate: no kernel computes this gemm on {self.device}, torch would: {why}"
            )
        if plan.bias_copy:
            operands["bias"] = operands["bias"].expand(shape[-1]).contiguous()
        target = torch.empty(shape, dtype=dtype) if plan.out_copy else result
        self.run(plan, {**operands, "out": target}, fresh=out is None or plan.out_copy)
        if target is not result:
            result.copy_(target)
        return None if out is not None else result

    def plan(self, operands, dtype, alpha, beta, activation, variant):
        """The planner's answer for the operands as they lie in memory."""
        a, b, bias, c, out = (operands.get(n) for n in ("a", "b", "bias", "c", "out"))
        optional = {}
        if bias is not None:
            optional.update(bias=bias.shape[0], bias_stride=bias.stride(0), bias_dtype=bias.dtype)
        if c is not None:
            optional.update(c_shape=c.shape, c_stride=c.stride(), c_dtype=c.dtype)
        if out is not None:
            optional.update(out_shape=out.shape, out_stride=out.stride())
        layout = place(operands)
        return planning.plan_gemm(
            a.shape,
            a.stride(),
            b.shape,
            b.stride(),
            dtype=a.dtype,
            out_dtype=dtype,
            alpha=alpha,
            beta=beta,
            activation=activation,
            device=self.device,
            addresses={n: region.address(t) for n, (region, t) in layout.items()},
            variant=self.variant if variant == -1 else variant,
            **optional,
        )

    def run(self, plan, operands, fresh):
        """Run a plan's launches and copy the output back."""
        memory = Memory()
        layout = place(operands, memory, fresh_output=fresh)
        addresses = {n: region.address(t) for n, (region, t) in layout.items()}
        program = load(kernel_text(plan), plan.kernel)
        options = dict(schedule=self.schedule, seed=self.seed, hazards=self.hazards)
        for result in launch_plan(plan, program, memory, addresses, **options):
            self.launches.append(Launch(plan, result))
            if self.check and not result.ok:
                raise HazardError(f"{plan.kernel} on {self.device}:\n{result.report()}", result)
        region, t = layout["out"]
        region.copy_back(memory, t)


def launch_plan(plan, program, memory, addresses, **options):
    """Emulate the launches of a plan one by one, as C++ would make them; yields each `Result`.

    `addresses` maps the plan's operands to addresses in `memory`; `options` go to `launch`.
    """
    for offsets in plan.launch_offsets():
        block = plan.pack(addresses, offsets=offsets)
        yield launch(
            program,
            plan.kernel,
            plan.grid,
            plan.block,
            block,
            smem=plan.smem,
            cluster=plan.cluster,
            memory=memory,
            tensor_maps=maps_of(plan, block),
            programmatic=plan.programmatic_launch,
            **options,
        )


def kernel_text(plan):
    """PTX of the planned kernel, rendered with markers that name the template lines.

    Raises
    ------
    EmulatorError
        If Jinja2 is missing, or the compiled module was built from another kernel table.
    """
    try:
        from ..codegen import render
        from ..kernels.gemm import KERNELS
    except ImportError as err:
        raise EmulatorError(f"emulate renders kernels and needs Jinja2: {err}") from err
    row = KERNELS[plan.variant] if plan.variant < len(KERNELS) else None
    if row is None or row.name != plan.kernel or row.smem != plan.smem:
        raise EmulatorError(
            f"emulate: variant {plan.variant} of the compiled module is {plan.kernel}, of the"
            f" Python table {row.name if row else 'nothing'}; rebuild the extension"
        )
    return render(row, markers=True)


def maps_of(plan, block):
    """Tensor-map records by offset in the parameter block."""
    from ..kernels.params import layout

    at, out = layout().offsets, {}
    for m in plan.tensor_maps:
        (base,) = struct.unpack_from("<Q", block, at[m.pointer])
        out[at[m.name]] = {
            "dtype": NUMPY_DTYPE[m.dtype],
            "dims": m.dims,
            "strides": m.strides,
            "box": m.box,
            "swizzle": m.swizzle,
            "base": base,
        }
    return out


def emulate(*, device="h200", schedule="round_robin", seed=0, hazards=True, check=True, variant=-1):
    """Run the package's ops on CPU tensors by emulating the kernels a GPU would get.

    Parameters
    ----------
    device : str or planning.DeviceRecord
        Whose kernels: a key of `planning.DEVICES` such as "h200", "a100", "rtx4090".
    schedule : {"round_robin", "random", "adversarial"}
    seed : int
        Of the random schedules.
    hazards : bool
        Run the race detector; about twice as fast without.
    check : bool
        Raise `HazardError` at the first launch with a finding, instead of only collecting it.
    variant : int
        Force one row of the kernel table for calls that do not choose one themselves.

    Returns
    -------
    Emulation
        A context manager; calls in the thread that entered it are emulated.

    Raises
    ------
    EmulatorError
        Inside the block, for a call that no kernel serves.
    ValueError
        For an unknown device or schedule.
    """
    if schedule not in POLICIES:
        raise ValueError(f"emulate: schedule is {schedule!r}, expected one of {sorted(POLICIES)}")
    if (
        not isinstance(device, planning.DeviceRecord)
        and str(device).lower() not in planning.DEVICES
    ):
        raise ValueError(
            f"emulate: device is {device!r}, expected a DeviceRecord or one of "
            f"{', '.join(planning.DEVICES)}"
        )
    return Emulation(device, schedule, seed, hazards, check, variant)


__all__ = ["Launch", "Emulation", "emulate"]
