"""Loads the compiled module `_C`, or keeps the reason why it could not be loaded.

`import deepasm_torch` never fails because of a broken extension: diagnostics must still run, and a
program that only mentions the package must still start.  The one explanation made here is raised
on the first use of an op instead.
"""

from __future__ import annotations

import importlib
import os
import sys

MINIMUM_TORCH = (2, 10)

#: The compiled module, or None.
C = None

#: ImportError with the full explanation when `C` is None, else None.
load_error: ImportError | None = None

#: Whether `import torch` worked and gave a version that the Python part can be imported with.
torch_usable = False


def _torch_version(text: str) -> tuple[int, int]:
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int("".join(ch for ch in minor if ch.isdigit()))


def _explain(cause: BaseException, torch_text: str | None) -> str:
    """One text that says what was found, what is needed and what to do."""
    needed = "{}.{}".format(*MINIMUM_TORCH)
    here = os.path.dirname(os.path.abspath(__file__))
    python = ".".join(map(str, sys.version_info[:3]))
    lines = [f"deepasm_torch: the compiled part (deepasm_torch._C) could not be loaded: {cause}"]
    if torch_text is None:
        lines.append(f"PyTorch is missing or broken. Install torch >= {needed}.")
    elif _torch_version(torch_text) < MINIMUM_TORCH:
        lines.append(
            f"It is built for torch >= {needed}, found torch {torch_text}. "
            f"Upgrade torch; the same binary of deepasm_torch serves every later version."
        )
    elif not any(name.startswith("_C.") for name in os.listdir(here)):
        lines.append(
            f"There is no _C.*.so in {here}, so the extension was never built for this copy. "
            "Run `python setup.py build_ext --inplace` in the source tree, or "
            f"`pip install --no-build-isolation .` (it needs torch >= {needed}), or install a "
            "wheel. "
            "When you are in the source tree of another copy, leave that directory."
        )
    else:
        lines.append(
            f"It is built for torch >= {needed} and CPython >= 3.10 on this platform, found "
            f"torch {torch_text} and Python {python}. Rebuild it with this interpreter: "
            "`pip install --no-build-isolation --force-reinstall --no-deps deepasm_torch`."
        )
    lines.append("`python -m deepasm_torch info` shows what was found.")
    return "\n".join(lines)


def _load():
    global C, load_error, torch_usable
    torch_text = None
    try:
        import torch  # before _C: libtorch must be in the process when the extension is loaded

        torch_text = torch.__version__
        if _torch_version(torch_text) < MINIMUM_TORCH:
            raise ImportError(f"torch {torch_text} is too old")
        torch_usable = True
        C = importlib.import_module(f"{__package__}._C")
    except (ImportError, OSError) as cause:
        load_error = ImportError(_explain(cause, torch_text))
        load_error.__cause__ = cause


def give_up(cause: BaseException) -> None:
    """Keep the reason why the Python part cannot be imported; ops raise it when they are used.

    It relies on a few names of torch that are not public, which a later torch may move.
    """
    global C, load_error, torch_usable
    torch = sys.modules["torch"]
    torch_usable = False
    if C is not None or load_error is None:
        C = None
        load_error = ImportError(
            f"deepasm_torch does not work with torch {torch.__version__}: "
            f"{type(cause).__name__}: {cause}\n"
            "It relies on internals of torch that this version does not have (any more). Upgrade "
            "deepasm_torch, or install an earlier torch (>= {}.{}).\n".format(*MINIMUM_TORCH)
            + "`python -m deepasm_torch info` shows what was found."
        )
        load_error.__cause__ = cause

    def refuse(*args, **kwargs):
        require()

    # The compiled module has defined the ops, and some of their Python kernels may be missing.
    refuse.default = refuse.out = refuse
    for name in ("gemm", "_gemm", "_addmm"):
        setattr(torch.ops.deepasm, name, refuse)


def require():
    """Return the compiled module; raise the kept ImportError when there is none."""
    if C is None:
        # A fresh exception each time: re-raising one object would grow its traceback for ever.
        raise ImportError(str(load_error)) from load_error
    return C


_load()
