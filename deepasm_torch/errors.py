"""The Python entries of the ops: exceptions keep their types, tangents are not lost.

Both make up for what the compiled Autograd kernel cannot do.

The compiled module reaches Python kernels through torch's C shims, which turn every exception into
a RuntimeError (and before torch 2.13 lose its text).  Control flow depends on the types:
activation checkpointing stops a recomputation with an exception, memory-hungry programs catch
torch.OutOfMemoryError, and a KeyboardInterrupt must stay one.  So a Python kernel that the compiled
module calls keeps what it raises, and the Python entry of the op, which the call came through,
raises that again.

Without grad mode it goes straight to the CUDA kernel, which knows no tangents, while forward-mode
AD works under no_grad too.  So inside a forward-AD level the entry takes a differentiable detour.
"""

from __future__ import annotations

import functools
import sys
import threading

import torch
import torch.autograd.forward_ad as forward_ad

_kept = threading.local()


def keeping(kernel):
    """Wrap a Python kernel that the compiled module calls."""

    @functools.wraps(kernel)
    def call(*args, **kwargs):
        try:
            return kernel(*args, **kwargs)
        except BaseException as error:
            # Kept only for an entry right above, which is certain to take it: nothing gets stale.
            if sys._getframe(1).f_code is _ENTRY:
                _kept.error = error
            raise

    return call


def _restoring(entry, detour=None):
    def call(*args, **kwargs):
        if forward_ad._current_level >= 0 and detour is not None and "out" not in kwargs:
            if not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                return detour(*args, **kwargs)
        try:
            return entry(*args, **kwargs)
        except RuntimeError as error:
            original, _kept.error = getattr(_kept, "error", None), None
            if original is None and "CUDA out of memory" in str(error):
                original = torch.OutOfMemoryError(str(error))
            if original is None or original is error:
                raise
        raise original

    return call


_ENTRY = _restoring(None).__code__


def wrap_entries(packet, detour=None) -> None:
    """Make the Python entries of an op (the packet and its overloads) restore exception types.

    `detour`, if given, replaces calls without out that forward mode could meet under no_grad; it
    takes the arguments of the op.
    """
    for entry in (packet, *(getattr(packet, name) for name in packet.overloads())):
        if getattr(entry._op, "__code__", None) is not _ENTRY:
            entry._op = _restoring(entry._op, detour)
