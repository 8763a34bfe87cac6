"""Python kernels of `torch.ops.deepasm.*`: CPU, fake, autograd, autocast and torch.func.

The schemas, the CUDA kernels and gemm's Autograd kernel live in the compiled module; it sends a
call here only when grad mode is on (`_gemm_grad`) or when no kernel of ours fits
(`_gemm_reference`).  What is registered where:

    op               key                  does
    gemm             CPU                  reference
                     AutocastCUDA/CPU     casts a, b and 16-bit addends, then calls gemm again
                     FuncTorch front      one Function call (torch.func.grad, vmap, jvp, ...)
    gemm.out         CPU, Autograd        reference into out; refuses inputs that require grad
    _gemm, .out      CPU                  reference; `variant` chooses among CUDA kernels only
    _gemm_grad       composite            autograd.Gemm
    _gemm_reference  composite            reference
    _addmm           composite, autocast  the differentiable form of _gemm (functional.addmm)

Every op has a fake kernel (the composite ones decompose), and every result is a fresh row-major
tensor, which is what the fake kernels promise.
"""

from __future__ import annotations

import logging

import torch

from . import _library, autograd, checks, errors
from .reference import gemm_reference

_log = logging.getLogger("deepasm_torch")
_lib = torch.library.Library("deepasm", "FRAGMENT")
_ops = torch.ops.deepasm

#: Dispatch key that sees a call before any torch.func transform does.
_FUNCTORCH = "FuncTorchDynamicLayerFrontMode"


# ---- CPU, and the fallback on CUDA -------------------------------------------------------------


def _gemm_cpu(a, b, bias=None, *, activation=0, out_dtype=None):
    return gemm_reference(a, b, bias, None, 1.0, 0.0, activation, out_dtype)


def _gemm_out_cpu(a, b, bias=None, *, activation=0, out):
    _fill(out, a, b, bias, None, 1.0, 0.0, activation)


def _internal_cpu(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
    return gemm_reference(a, b, bias, c, alpha, beta, activation, out_dtype)


def _internal_out_cpu(a, b, bias, c, alpha, beta, activation, out_dtype, variant, *, out):
    _fill(out, a, b, bias, c, alpha, beta, activation, out_dtype)


def _check_with_out(out, a, b, bias, c, activation, out_dtype):
    shape, _ = checks.infer(a, b, bias, c, activation)
    checks.check_out(out, shape, a, out_dtype)


def _fill(out, a, b, bias, c, alpha, beta, activation, out_dtype=None):
    _check_with_out(out, a, b, bias, c, activation, out_dtype)
    # Through a fresh result: out may share memory with an operand.
    out.copy_(gemm_reference(a, b, bias, c, alpha, beta, activation, out.dtype))


def _fallback(a, b, bias, c, alpha, beta, activation, out_dtype):
    if a.is_cuda and _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "gemm: torch computes %s %s x %s with strides %s and %s; see deepasm_torch.explain",
            a.dtype,
            tuple(a.shape),
            tuple(b.shape),
            a.stride(),
            b.stride(),
        )
    return gemm_reference(a, b, bias, c, alpha, beta, activation, out_dtype)


# ---- fake kernels ------------------------------------------------------------------------------


def _gemm_fake(a, b, bias=None, *, activation=0, out_dtype=None):
    shape, dtype = checks.infer(a, b, bias, None, activation, out_dtype)
    return a.new_empty(shape, dtype=dtype)


def _gemm_out_fake(a, b, bias=None, *, activation=0, out):
    _check_with_out(out, a, b, bias, None, activation, None)


def _internal_fake(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
    shape, dtype = checks.infer(a, b, bias, c, activation, out_dtype)
    return a.new_empty(shape, dtype=dtype)


def _internal_out_fake(a, b, bias, c, alpha, beta, activation, out_dtype, variant, *, out):
    _check_with_out(out, a, b, bias, c, activation, out_dtype)


# ---- autograd ----------------------------------------------------------------------------------


def _gemm_grad(a, b, bias, activation, out_dtype):
    checks.check_layout(a=a, b=b, bias=bias)
    return autograd.apply(a, b, bias, None, 1.0, 0.0, activation, out_dtype)


def _addmm(a, b, bias, c, alpha, beta, activation, out_dtype):
    checks.check_layout(a=a, b=b, bias=bias, c=c)
    return autograd.apply(a, b, bias, c, alpha, beta, activation, out_dtype)


def _gemm_with_tangents(a, b, bias=None, *, activation=0, out_dtype=None):
    """gemm where tangents must survive without grad mode (see `errors`)."""
    return _ops._addmm(a, b, bias, None, 1.0, 0.0, activation, out_dtype)


def _gemm_out_autograd(keyset, a, b, bias=None, *, activation=0, out):
    checks.check_layout(a=a, b=b, bias=bias, out=out)
    checks.check_out_grad("gemm", a, b, bias, out)
    autograd.check_out_tangents("gemm", a, b, bias, out)
    _ops.gemm.out.redispatch(
        keyset & torch._C._after_autograd_keyset, a, b, bias, activation=activation, out=out
    )


def _bump(op):
    """ADInplaceOrView kernel: autograd must notice that `out` was written (as torch's own out=)."""

    def kernel(keyset, *args, out, **kwargs):
        torch.autograd.graph.increment_version(out)
        op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out, **kwargs)

    return kernel


# ---- autocast ----------------------------------------------------------------------------------


def autocast_dtypes(device_type: str, a, b, bias=None, c=None) -> list:
    """The dtype of each tensor under autocast, as torch's lower-precision rule has it.

    Floating tensors of the device are cast, float64 excepted.  A float32 bias or c stays as it is:
    the kernels add both in float32, so a cast would only cost a launch and accuracy.
    """
    dtype = torch.get_autocast_dtype(device_type)

    def target(t, *keep):
        if t is None:
            return None
        eligible = t.device.type == device_type and t.is_floating_point()
        return dtype if eligible and t.dtype not in (torch.float64, *keep) else t.dtype

    return [target(a), target(b), target(bias, torch.float32), target(c, torch.float32)]


def autocast_operands(device_type: str, a, b, bias=None, c=None) -> list:
    dtypes = autocast_dtypes(device_type, a, b, bias, c)
    return [t if t is None or t.dtype == d else t.to(d) for t, d in zip((a, b, bias, c), dtypes)]


def _autocast(device_type: str, kind: str):
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, kind))

    def gemm(a, b, bias=None, *, activation=0, out_dtype=None):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            a, b, bias, _ = autocast_operands(device_type, a, b, bias)
            return _ops.gemm(a, b, bias, activation=activation, out_dtype=out_dtype)

    def addmm(a, b, bias, c, alpha, beta, activation, out_dtype):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            a, b, bias, c = autocast_operands(device_type, a, b, bias, c)
            return _ops._addmm(a, b, bias, c, alpha, beta, activation, out_dtype)

    return gemm, addmm


# ---- torch.func --------------------------------------------------------------------------------


def _transformed_gemm(a, b, bias, c, alpha, beta, activation, out_dtype, autocasts=True):
    """A gemm inside torch.func transforms: one Function call, which every transform understands.

    Without this kernel the transforms would reach gemm's Autograd kernel one at a time, where an
    autograd.Function cannot be applied.
    """
    interpreter = torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter()
    if interpreter.key() == torch._C._functorch.TransformType.Functionalize:
        from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI

        api = FunctorchFunctionalizeAPI(interpreter)
        a, b, bias, c = api.unwrap_tensors((a, b, bias, c))
        with api.redispatch_to_next():
            result = _ops._addmm(a, b, bias, c, alpha, beta, activation, out_dtype)
        return api.wrap_tensors(result)
    device_type = a.device.type
    if autocasts and device_type in ("cuda", "cpu") and torch.is_autocast_enabled(device_type):
        a, b, bias, c = autocast_operands(device_type, a, b, bias, c)
    return autograd.record(a, b, bias, c, alpha, beta, activation, out_dtype)


def _gemm_functorch(a, b, bias=None, *, activation=0, out_dtype=None):
    return _transformed_gemm(a, b, bias, None, 1.0, 0.0, activation, out_dtype)


def _grad_functorch(a, b, bias, activation, out_dtype):
    return _transformed_gemm(a, b, bias, None, 1.0, 0.0, activation, out_dtype, False)


def _internal_functorch(a, b, bias, c, alpha, beta, activation, out_dtype, variant):
    if variant != -1:
        checks.refuse(
            "variant",
            f"is {variant} inside a torch.func transform",
            "-1",
            "call a chosen kernel outside of the transform",
        )
    return _transformed_gemm(a, b, bias, c, alpha, beta, activation, out_dtype, False)


def _out_functorch(*args, **kwargs):
    raise RuntimeError(
        "gemm: out cannot be written inside a torch.func transform (grad, vmap, jvp, ...); call "
        "gemm without out, which returns its result"
    )


# ---- registration ------------------------------------------------------------------------------


def _register():
    impl = _lib.impl
    impl("gemm", _gemm_cpu, "CPU")
    impl("gemm.out", _gemm_out_cpu, "CPU")
    impl("_gemm", errors.keeping(_internal_cpu), "CPU")
    impl("_gemm.out", _internal_out_cpu, "CPU")
    impl("_gemm_reference", errors.keeping(_fallback), "CompositeImplicitAutograd")
    impl("_gemm_grad", errors.keeping(_gemm_grad), "CompositeImplicitAutograd")

    # Not in the compiled module: nothing there calls it.
    _lib.define(
        "_addmm(Tensor a, Tensor b, Tensor? bias, Tensor? c, float alpha, float beta, "
        "int activation, ScalarType? out_dtype) -> Tensor"
    )
    impl("_addmm", _addmm, "CompositeImplicitAutograd")

    impl("gemm.out", _gemm_out_autograd, "Autograd", with_keyset=True)
    impl("gemm.out", _bump(_ops.gemm.out), "ADInplaceOrView", with_keyset=True)
    impl("_gemm.out", _bump(_ops._gemm.out), "ADInplaceOrView", with_keyset=True)

    for name, kernel in (
        ("gemm", _gemm_fake),
        ("gemm.out", _gemm_out_fake),
        ("_gemm", _internal_fake),
        ("_gemm.out", _internal_out_fake),
    ):
        torch.library.register_fake(f"deepasm::{name}", kernel, lib=_lib)

    for device_type, kind in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
        gemm, addmm = _autocast(device_type, kind)
        impl("gemm", gemm, kind)
        impl("_addmm", addmm, kind)

    errors.wrap_entries(_ops.gemm, _gemm_with_tangents)
    errors.wrap_entries(_ops._gemm)

    impl("gemm", _gemm_functorch, _FUNCTORCH)
    impl("_gemm", _internal_functorch, _FUNCTORCH)
    impl("_gemm_grad", _grad_functorch, _FUNCTORCH)
    impl("_addmm", _transformed_gemm, _FUNCTORCH)
    impl("gemm.out", _out_functorch, _FUNCTORCH)
    impl("_gemm.out", _out_functorch, _FUNCTORCH)


def _register_broken():
    """Without the compiled module: the public ops exist and raise its load error when called."""

    def refuse(*args, **kwargs):
        _library.require()

    _lib.define(
        "gemm(Tensor a, Tensor b, Tensor? bias=None, *, int activation=0, "
        "ScalarType? out_dtype=None) -> Tensor"
    )
    _lib.define(
        "gemm.out(Tensor a, Tensor b, Tensor? bias=None, *, int activation=0, Tensor(a!) out) -> ()"
    )
    _lib.define(
        "_addmm(Tensor a, Tensor b, Tensor? bias, Tensor? c, float alpha, float beta, "
        "int activation, ScalarType? out_dtype) -> Tensor"
    )
    for name in ("gemm", "gemm.out", "_addmm"):
        _lib.impl(name, refuse, "CompositeImplicitAutograd")


if _library.C is not None:
    _register()
else:
    _register_broken()
