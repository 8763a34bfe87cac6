"""Drop-in PyTorch operators whose CUDA kernels are hand-written PTX.

    torch.ops.deepasm.gemm           the op: act(a @ b + bias), torch.matmul's shape rules
    functional                       matmul, mm, bmm, linear, addmm, baddbmm with torch's signatures
    override                         torch's own calls use deepasm inside a with block
    is_supported, explain            which kernel would run, and why, or why torch would
    fallbacks, reset_fallbacks, counters
                                     what torch computed instead, and what was launched
    warmup, set_max_sms, max_sms     load kernels early; leave SMs to others
    emulate                          run the kernels themselves on CPU tensors, in NumPy
    native                           the committed table of what runs on our own kernels
    planning, kernels, codegen       plans and kernels as data, for tools

Importing needs torch, never initialises CUDA, and succeeds when the compiled part cannot be loaded,
or when torch has moved something that the package relies on: the first use of an op then raises an
ImportError that says what to do.
"""

from . import _library
from ._version import __version__

__all__ = [
    "Activation",
    "__version__",
    "counters",
    "emulate",
    "explain",
    "fallbacks",
    "functional",
    "is_supported",
    "max_sms",
    "native",
    "ops",
    "override",
    "planning",
    "reset_fallbacks",
    "set_max_sms",
    "warmup",
]

if _library.torch_usable:
    try:
        from . import flops, functional, native, ops, planning, settings
        from .checks import Activation
        from .overriding import override
        from .settings import (
            counters,
            fallbacks,
            max_sms,
            reset_fallbacks,
            set_max_sms,
            warmup,
        )
        from .support import explain, is_supported
    except Exception as cause:  # a name that moved can fail in many ways
        _library.give_up(cause)

if _library.torch_usable:

    def emulate(**options):
        """`emulator.emulate`: CPU tensors run the kernels a GPU would, with every check on."""
        from .emulator import emulate as context  # needs NumPy, which torch does not bring

        return context(**options)

    settings.log_from_environment()
    flops.register_when_imported()
else:

    def __getattr__(name):
        if name in __all__:
            _library.require()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
