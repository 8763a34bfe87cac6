"""Argument rules of the GEMM ops: what is accepted, what comes out, and the errors.

The CPU kernels and the fake kernels call these; the C++ kernels repeat the same rules for CUDA
tensors.  Every refusal is a RuntimeError (what torch.matmul raises) that names the argument, what
was given, what is expected, and what to do instead.
"""

from __future__ import annotations

import enum

import torch

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_DTYPE_NAMES = "bfloat16, float16, float32 or float64"


class Activation(enum.IntEnum):
    """What is applied to the product after the bias: the `activation` argument of the ops."""

    NONE = 0
    RELU = 1
    GELU_TANH = 2
    GELU_ERF = 3
    SILU = 4


def refuse(argument: str, given: str, expected: str, instead: str, name: str = "gemm"):
    raise RuntimeError(f"{name}: {argument} {given}, expected {expected}; {instead}")


def is_size(size, value: int) -> bool:
    """size == value, adding no guard on a symbolic size that is not known to be equal."""
    if isinstance(size, int):
        return size == value
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(size == value)


def _text(shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _present(**tensors):
    return [(name, t) for name, t in tensors.items() if t is not None]


def check_layout(**tensors) -> None:
    """Refuse sparse, nested and other tensors that have no strides; None is an absent argument."""
    for name, t in _present(**tensors):
        if t.is_nested or t.layout is not torch.strided:
            refuse(
                name,
                "is sparse or nested",
                "a strided (dense) tensor",
                "convert it with .to_dense() (nested: torch.nested.to_padded_tensor) or use "
                "torch.matmul",
            )


def check_device(a, **others) -> None:
    for name, t in _present(**others):
        if t.device != a.device:
            raise RuntimeError(
                "gemm: Expected all tensors to be on the same device, but found at least two "
                f"devices, {a.device} (a) and {t.device} ({name}); move it with "
                f"{name}.to(a.device)"
            )


def check_kinds(a, b, bias, c, activation: int, out_dtype) -> None:
    """Refuse layouts, devices, dtypes and activation numbers that no kernel of ours takes."""
    check_layout(a=a, b=b, bias=bias, c=c)
    for name, t in (("a", a), ("b", b)):
        if t.dtype not in INPUT_DTYPES:
            refuse(
                name,
                f"has dtype {t.dtype}",
                f"{_DTYPE_NAMES}, the same for a and b",
                "use torch.matmul, or convert with .to(torch.bfloat16)",
            )
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"gemm: expected m1 and m2 to have the same dtype, but got: a is {a.dtype} and b is "
            f"{b.dtype}; convert one of them with .to(), or use torch.autocast"
        )
    check_device(a, b=b, bias=bias, c=c)
    for name, t in _present(bias=bias, c=c):
        if t.dtype not in (a.dtype, torch.float32):
            refuse(
                name,
                f"has dtype {t.dtype}",
                f"{a.dtype} (like a and b) or torch.float32",
                f"convert it with {name}.to(a.dtype)",
            )
    if not 0 <= activation < len(Activation):
        names = ", ".join(f"{v.value} ({v.name.lower()})" for v in Activation)
        refuse("activation", f"is {activation}", names, "apply another one to the result")
    if out_dtype is not None and out_dtype not in INPUT_DTYPES:
        refuse("out_dtype", f"is {out_dtype}", _DTYPE_NAMES, "convert the result instead")


def check_product(a, b) -> None:
    """Refuse 0-D operands and operands of unequal K; sizes may be symbolic."""
    if not a.dim() or not b.dim():
        raise RuntimeError(
            f"gemm: both arguments need to be at least 1D, but they are {a.dim()}D and {b.dim()}D; "
            "multiply by a scalar with torch.mul"
        )
    k = b.shape[-2] if b.dim() > 1 else b.shape[0]
    torch._check(
        a.shape[-1] == k,
        lambda: (
            f"gemm: mat1 and mat2 shapes cannot be multiplied: a has shape {_text(a.shape)} and b "
            f"has shape {_text(b.shape)}, so k is {a.shape[-1]} in a and {k} in b; transpose "
            "one of them, e.g. with .mT"
        ),
    )


def product_shape(a, b) -> tuple:
    """Shape of `torch.matmul(a, b)`, for operands that passed `check_product`.

    Parameters
    ----------
    a : Tensor, shape (K,) or (..., M, K)
    b : Tensor, shape (K,) or (..., K, N)

    Raises
    ------
    RuntimeError
        For batch dimensions that do not broadcast.
    """
    batch = ()
    if a.dim() > 2 or b.dim() > 2:
        try:
            batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
        except RuntimeError:
            refuse(
                "b",
                f"has batch dimensions {_text(b.shape[:-2])} while those of a are "
                f"{_text(a.shape[:-2])}",
                "sizes that broadcast (equal, or 1)",
                "reshape or expand one of them",
            )
    rows = tuple(a.shape[-2:-1]) if a.dim() > 1 else ()
    columns = (b.shape[-1],) if b.dim() > 1 else ()
    return batch + rows + columns


def check_addends(b, bias, c, shape: tuple) -> None:
    """Refuse a bias or c that does not fit a product of that shape (sizes may be symbolic)."""
    if bias is not None:
        n = b.shape[-1] if b.dim() > 1 else 1

        def text():
            return (
                f"gemm: bias has shape {_text(bias.shape)}, expected one dimension of size {n} "
                "(the columns of the output) or 1; add anything else to the result instead"
            )

        if bias.dim() != 1:
            raise RuntimeError(text())
        if not is_size(bias.shape[0], 1):
            torch._check(bias.shape[0] == n, text)
    if c is not None:
        fits = c.dim() <= len(shape)
        for have, want in zip(reversed(c.shape), reversed(shape)):
            fits = fits and (is_size(have, 1) or have == want)
        if not fits:
            raise RuntimeError(
                f"gemm: c has shape {_text(c.shape)}, which cannot be broadcast to the output's "
                f"shape {_text(shape)}; expand or reshape it"
            )


def check_out(out, shape: tuple, a, out_dtype=None) -> None:
    """Refuse an `out` that the op could not fill as it is (ops never resize it)."""
    check_layout(out=out)
    check_device(a, out=out)
    if out.dtype not in INPUT_DTYPES:
        refuse("out", f"has dtype {out.dtype}", _DTYPE_NAMES, "allocate it with one of these")
    if out_dtype is not None and out_dtype != out.dtype:
        raise RuntimeError(
            f"gemm: out has dtype {out.dtype} but out_dtype is {out_dtype}; leave out_dtype away, "
            "out decides"
        )
    fits = out.dim() == len(shape)
    for have, want in zip(out.shape, shape):
        fits = fits and have == want
    if not fits:
        refuse(
            "out",
            f"has shape {_text(out.shape)}",
            _text(shape),
            "allocate it with that shape (deepasm_torch.functional resizes out= as torch does)",
        )
    for dim, (size, stride) in enumerate(zip(out.shape, out.stride())):
        if is_size(stride, 0) and size > 1:
            raise RuntimeError(
                "gemm: unsupported operation: more than one element of out refers to a single "
                f"memory location (dimension {dim} has stride 0); pass a fresh tensor"
            )


def check_out_grad(name: str, *tensors) -> None:
    """Refuse out= where torch does: in grad mode, with any argument that requires grad."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{name}: functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad; call it without out, or under torch.no_grad()"
        )


def infer(a, b, bias=None, c=None, activation: int = 0, out_dtype=None):
    """Check every argument and return (shape, dtype) of the result."""
    check_kinds(a, b, bias, c, activation, out_dtype)
    check_product(a, b)
    shape = product_shape(a, b)
    check_addends(b, bias, c, shape)
    return shape, out_dtype or a.dtype


# ---- for functional: rules of torch's functions that the ops do not have -------------------------


def need_tensor(name, argument, value):
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: {argument} is a {type(value).__name__}, expected a torch.Tensor")
    return value


def need_rank(name, argument, value, rank):
    if need_tensor(name, argument, value).dim() != rank:
        refuse(
            argument,
            f"has shape {tuple(value.shape)}",
            f"{rank} dimensions",
            "use matmul, which broadcasts",
            name,
        )


def need_same_batch(name, a, b):
    if a.shape[0] != b.shape[0]:
        refuse(
            "the second operand",
            f"has batch size {b.shape[0]}",
            f"{a.shape[0]} as the first has",
            "use matmul, which broadcasts",
            name,
        )


def need_dtype(name, argument, value, *dtypes):
    if need_tensor(name, argument, value).dtype not in dtypes:
        refuse(
            argument,
            f"has dtype {value.dtype}",
            " or ".join(str(d) for d in dtypes if d is not None),
            "convert it, or call deepasm_torch.functional.gemm, which takes float32 addends and "
            "outputs",
            name,
        )


def need_number(name, argument, value):
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, complex):
        refuse(argument, f"is {value}", "a real number", "split the sum in two", name)
    return float(value)
