"""Static checks of PTX and of the machine code that ptxas makes of it.

`lint_text` checks any PTX text, `lint_kernel` a row of the kernel tables; ``deepasm lint`` is both
on the command line. Rules live in the ``rules_*`` modules; docs/lint.md describes each.
"""

import importlib

_WHERE = {
    "ERROR": "model", "HINT": "model", "RULES": "model", "WARNING": "model", "Finding": "model",
    "Report": "runner", "Tools": "runner", "lint_kernel": "runner", "lint_text": "runner",
}  # fmt: skip
__all__ = sorted(_WHERE)


def __getattr__(name):
    # The parser's package needs NumPy; the command must be able to say so itself.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(f"{__name__}.runner")  # registers the rules
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
