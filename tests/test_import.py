"""Importing the package: quick, without CUDA, and possible when something is broken."""

from __future__ import annotations

import shutil
import textwrap
import threading

import pytest
import torch
from surface import PACKAGE, python


def test_is_quick_and_leaves_cuda_alone():
    seconds = []
    for _ in range(5):
        done = python(
            """
            import time, torch
            start = time.perf_counter()
            import deepasm_torch
            seconds = time.perf_counter() - start
            assert not torch.cuda.is_initialized()
            print(seconds)
            """
        )
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    # The best of several: what the import costs, not what a busy machine adds to it.
    assert min(seconds) < 0.15, seconds


def test_log_variable():
    done = python("import deepasm_torch", DEEPASM_LOG="shout")
    assert done.returncode == 0 and "DEEPASM_LOG is 'SHOUT'" in done.stderr
    done = python(
        "import deepasm_torch, logging; print(logging.getLogger('deepasm_torch').level)",
        DEEPASM_LOG="debug",
    )
    assert done.stdout.strip() == "10"


@pytest.fixture
def broken(tmp_path_factory):
    """A copy of the package whose compiled part is missing, or is no shared object."""

    def make(kind):
        root = tmp_path_factory.mktemp(kind)
        shutil.copytree(
            PACKAGE,
            root / "deepasm_torch",
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        )
        if kind == "damaged":
            (root / "deepasm_torch" / "_C.abi3.so").write_bytes(b"not a shared object")
        return root

    return make


@pytest.mark.parametrize("kind", ["missing", "damaged"])
def test_broken_extension_is_reported_on_first_use(broken, kind):
    done = python(
        """
        import torch, deepasm_torch
        from deepasm_torch import functional
        a = torch.ones(2, 2)
        texts = set()
        for use in (
            lambda: torch.ops.deepasm.gemm(a, a),
            lambda: torch.ops.deepasm.gemm.out(a, a, out=a),
            lambda: functional.matmul(a, a),
            lambda: functional.addmm(a, a, a, beta=2),
            lambda: functional.mm(a, a, out=a),
            lambda: deepasm_torch.override(),
            lambda: deepasm_torch.fallbacks(),
            lambda: deepasm_torch.set_max_sms(3),
            lambda: deepasm_torch.explain("gemm", a, a),
            lambda: deepasm_torch.warmup(),
        ):
            try:
                use()
            except ImportError as error:
                texts.add(str(error))
            else:
                raise SystemExit("no ImportError")
        assert len(texts) == 1, texts
        print(texts.pop())
        """,
        broken(kind),
    )
    assert done.returncode == 0, done.stderr
    for word in ("deepasm_torch._C", "2.10", "python -m deepasm_torch info", "pip install"):
        assert word in done.stdout
    assert (kind == "missing") == ("never built" in done.stdout)


def test_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    shutil.copytree(PACKAGE, tmp_path / "deepasm_torch")
    done = python(
        """
        import deepasm_torch
        try:
            deepasm_torch.override
        except ImportError as error:
            print(error)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "no torch here" in done.stdout and "Install torch >= 2.10" in done.stdout


def test_with_an_old_torch(tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '2.9.1'")
    shutil.copytree(PACKAGE, tmp_path / "deepasm_torch")
    done = python(
        """
        import deepasm_torch
        try:
            deepasm_torch.override
        except ImportError as error:
            print(error)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "found torch 2.9.1" in done.stdout and "Upgrade torch" in done.stdout


#: what to hide -> code that makes this torch one that has moved it
MOVED = {
    "an imported name": """
        import torch._functorch.utils
        del torch._functorch.utils.unwrap_dead_wrappers
        """,
    "a dispatch key": """
        kept = torch.library.Library.impl
        def impl(self, op, kernel, dispatch_key="", **options):
            if dispatch_key.startswith("FuncTorch"):
                raise RuntimeError("could not parse dispatch key: " + dispatch_key)
            return kept(self, op, kernel, dispatch_key, **options)
        torch.library.Library.impl = impl
        """,
    "an attribute of ops": """
        def hidden(self):
            raise AttributeError("_op")
        torch._ops.OpOverload._op = property(hidden, lambda self, op: None)
        """,
}


@pytest.mark.parametrize("name", MOVED)
def test_with_a_torch_that_moved_something(name):
    done = python(
        f"import torch\n{textwrap.dedent(MOVED[name])}"
        + textwrap.dedent(
            """
            import deepasm_torch
            a = torch.ones(2, 2)
            texts = set()
            for use in (
                lambda: torch.ops.deepasm.gemm(a, a),
                lambda: torch.ops.deepasm.gemm.default(a, a),
                lambda: torch.ops.deepasm.gemm.out(a, a, out=a),
                lambda: deepasm_torch.functional.matmul(a, a),
                lambda: deepasm_torch.override(),
                lambda: deepasm_torch.explain("gemm", a, a),
                lambda: deepasm_torch.fallbacks(),
            ):
                try:
                    use()
                except ImportError as error:
                    texts.add(str(error))
                else:
                    raise SystemExit("no ImportError")
            assert len(texts) == 1, texts
            assert "does not work with torch " + torch.__version__ in texts.pop()
            """
        )
    )
    assert done.returncode == 0, done.stderr


def test_from_many_threads_at_once():
    errors = []

    def work():
        try:
            a = torch.ones(3, 3, requires_grad=True)
            torch.ops.deepasm.gemm(a, a).sum().backward()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
