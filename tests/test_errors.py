"""Bad input: one clear error that names the argument, of the type that torch raises; no crash."""

from __future__ import annotations

import pytest
import torch

import deepasm_torch  # noqa: F401
from deepasm_torch import functional

ops = torch.ops.deepasm


def ones(*shape, device, dtype=torch.bfloat16):
    return torch.ones(shape, device=device, dtype=dtype)


#: what is wrong -> (how to call gemm, words that the message must hold)
CASES = {
    "inner dimension": (lambda o: ops.gemm(o(2, 3), o(4, 5)), ["2", "3", "4", "5", "multiplied"]),
    "inner dimension, vectors": (lambda o: ops.gemm(o(3), o(4)), ["3", "4"]),
    "inner dimension, batch": (lambda o: ops.gemm(o(2, 3, 4), o(2, 5, 6)), ["a", "b", "4", "5"]),
    "batch": (lambda o: ops.gemm(o(2, 3, 4), o(3, 4, 5)), ["2", "3", "match|broadcast"]),
    "0-D": (lambda o: ops.gemm(o(), o(3, 4)), ["at least 1D"]),
    "mixed dtypes": (lambda o: ops.gemm(o(2, 3), o(3, 4).half()), ["same dtype", "a is", "b is"]),
    "integers": (lambda o: ops.gemm(o(2, 3).int(), o(3, 4).int()), ["a has dtype", "torch.matmul"]),
    "bool": (lambda o: ops.gemm(o(2, 3).bool(), o(3, 4).bool()), ["a has dtype", "torch.matmul"]),
    "complex": (
        lambda o: ops.gemm(o(2, 3).to(torch.complex64), o(3, 4).to(torch.complex64)),
        ["a has dtype", "torch.matmul"],
    ),
    "bias shape": (lambda o: ops.gemm(o(2, 3), o(3, 4), o(5)), ["bias has shape", "5", "4"]),
    "bias rank": (lambda o: ops.gemm(o(2, 3), o(3, 4), o(2, 4)), ["bias has shape", "2, 4"]),
    "bias dtype": (lambda o: ops.gemm(o(2, 3), o(3, 4), o(4).half()), ["bias has dtype"]),
    "c shape": (
        lambda o: ops._gemm(o(2, 3), o(3, 4), None, o(3, 4), 1.0, 1.0, 0, None, -1),
        ["c has shape", "broadcast"],
    ),
    "c rank": (
        lambda o: ops._gemm(o(2, 3), o(3, 4), None, o(1, 2, 4), 1.0, 1.0, 0, None, -1),
        ["c has shape", "broadcast"],
    ),
    "c dtype": (
        lambda o: ops._gemm(o(2, 3), o(3, 4), None, o(2, 4).half(), 1.0, 1.0, 0, None, -1),
        ["c has dtype"],
    ),
    "activation": (lambda o: ops.gemm(o(2, 3), o(3, 4), activation=5), ["activation is 5", "relu"]),
    "activation < 0": (lambda o: ops.gemm(o(2, 3), o(3, 4), activation=-1), ["activation is -1"]),
    "out_dtype": (
        lambda o: ops.gemm(o(2, 3), o(3, 4), out_dtype=torch.int32),
        ["out_dtype is", "int"],
    ),
    "sparse": (lambda o: ops.gemm(o(2, 3).to_sparse(), o(3, 4)), ["a is sparse", "to_dense"]),
    "sparse b": (lambda o: ops.gemm(o(2, 3), o(3, 4).to_sparse()), ["b is sparse", "to_dense"]),
    "sparse csr": (
        lambda o: ops.gemm(o(2, 3).float().to_sparse_csr(), o(3, 4).float()),
        ["a is sparse", "to_dense"],
    ),
    "out shape": (lambda o: ops.gemm.out(o(2, 3), o(3, 4), out=o(2, 5)), ["out has shape", "2, 4"]),
    "out rank": (lambda o: ops.gemm.out(o(2, 3), o(3, 4), out=o(8)), ["out has shape", "2, 4"]),
    "out dtype": (
        lambda o: ops.gemm.out(o(2, 3), o(3, 4), out=o(2, 4).int()),
        ["out has dtype"],
    ),
    "out expanded": (
        lambda o: ops.gemm.out(o(2, 3), o(3, 4), out=o(1, 4).expand(2, 4)),
        ["single memory location"],
    ),
    "out requires grad": (
        lambda o: ops.gemm.out(o(2, 3), o(3, 4), out=o(2, 4).requires_grad_()),
        ["automatic differentiation"],
    ),
    "a requires grad with out": (
        lambda o: ops.gemm.out(o(2, 3).requires_grad_(), o(3, 4), out=o(2, 4)),
        ["automatic differentiation"],
    ),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CASES)
def test_message(device, name, mode):
    call, words = CASES[name]
    if "grad" in name and mode is not torch.enable_grad:
        pytest.skip("legal without grad mode")
    if "sparse" in name and mode is torch.inference_mode:
        with mode(), pytest.raises((RuntimeError, NotImplementedError)):
            call(lambda *s: ones(*s, device=device))
        return
    with mode(), pytest.raises(RuntimeError) as error:
        call(lambda *s: ones(*s, device=device))
    for word in words:
        assert any(w in str(error.value) for w in word.split("|")), (word, str(error.value))
    assert len(str(error.value).splitlines()) == 1


def test_nested_tensors(device):
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.ones(4, 3)], layout=layout, device=device
        )
        with pytest.raises((RuntimeError, NotImplementedError)):
            ops.gemm(nested, torch.ones(3, 4, device=device))


def test_wrong_kinds_of_argument(device):
    a = ones(2, 2, device=device)
    for call in (
        lambda: ops.gemm(a),
        lambda: ops.gemm(a, 3),
        lambda: ops.gemm(a, a, a[0], 1),
        lambda: ops.gemm(a, a, activation="relu"),
        lambda: ops.gemm(a, a, nonsense=1),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            call()


def test_usable_after_errors(device):
    a = ones(4, 4, device=device)
    for name, (call, _) in CASES.items():
        with pytest.raises((RuntimeError, NotImplementedError)):
            call(lambda *s: ones(*s, device=device))
        assert bool((ops.gemm(a, a) == 4).all()), name


def test_float8_goes_to_torch_or_raises(device):
    a = ones(16, 16, device=device).to(torch.float8_e4m3fn)
    with pytest.raises((RuntimeError, NotImplementedError)):
        ops.gemm(a, a)


@pytest.mark.gpu
def test_one_operand_left_on_the_cpu():
    a, b, v = ones(4, 4, device="cuda"), ones(4, 4, device="cpu"), ones(4, device="cpu")
    for call in (
        lambda: ops.gemm(a, b),
        lambda: ops.gemm(b, a),
        lambda: ops.gemm(a, a, v),
        lambda: functional.linear(a, b),
        lambda: functional.addmm(b, a, a, beta=2),
    ):
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode(), pytest.raises(RuntimeError, match="same device"):
                call()
    assert bool((ops.gemm(a, a) == 4).all())


def test_named_tensor_of_functional_is_named(device):
    a = ones(2, 3, device=device)
    with pytest.raises(RuntimeError, match="mm: input has shape"):
        functional.mm(a[0], a)
    for call in (functional.gemm, functional.mm):
        with pytest.raises(TypeError, match="out is a int, expected a torch.Tensor"):
            call(a, a.mT, out_dtype=torch.float32, out=5)
    with pytest.raises(TypeError, match="matmul: out is a int"):
        functional.matmul(a, a.mT, out=5)
    with pytest.raises(TypeError, match="linear: weight is a list"):
        functional.linear(a, [1.0])
