"""Process-wide switches, counters, warm-up and logging.

Environment variables, read once at import (the compiled module reads all but the last):

    DEEPASM_DISABLE=1       every op is computed by torch (counted as a fallback)
    DEEPASM_TIER=sm80|sm90  use no kernel above that tier; the device decides by default
    DEEPASM_MAX_SMS=n       launch at most n thread blocks, so that n SMs at most are busy; 0: all
    DEEPASM_LOG=debug|info|warning
                            log to stderr at that level; "debug" shows every fallback to torch

A value that makes no sense is ignored (DEEPASM_LOG warns).  The functions below change the same
switches at run time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import NamedTuple

import torch

from . import _library

_log = logging.getLogger("deepasm_torch")


class Fallback(NamedTuple):
    """How often torch computed an op instead of a deepasm kernel, and why the last time."""

    count: int
    reason: str | None


def fallbacks() -> dict[str, Fallback]:
    """Ops that torch computed on CUDA tensors since the start or `reset_fallbacks`.

    CPU tensors never count: the reference is their kernel.

    Returns
    -------
    dict of op name ("gemm") to Fallback
        Empty, hence false, when every call ran on a deepasm kernel.

    Examples
    --------
    >>> deepasm_torch.reset_fallbacks()
    >>> y = model(x)
    >>> assert not deepasm_torch.fallbacks(), deepasm_torch.fallbacks()
    """
    counts = counters()
    return {
        op: Fallback(count["fallbacks"], count["last_fallback"])
        for op, count in counts.items()
        if count["fallbacks"]
    }


def reset_fallbacks() -> None:
    """Set every counter to zero, those of `counters` included."""
    _library.require().reset_counters()


def counters() -> dict[str, dict]:
    """Launches, fallbacks and hidden copies of every op on CUDA tensors.

    Returns
    -------
    dict of op name to {"launches", "fallbacks", "copies", "last_fallback", "kernels"}
        `kernels` maps kernel names to launches.
    """
    return json.loads(_library.require().counters())


def set_max_sms(count: int) -> None:
    """Let later launches use at most `count` streaming multiprocessors (0: all of them).

    Leaves room for concurrent kernels, such as NCCL's.  Applies to the whole process; launches
    captured in a CUDA graph keep the number they were captured with.

    Raises
    ------
    TypeError, ValueError
        If `count` is not an int, or negative.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"set_max_sms: count is {count!r}, expected an int, 0 for all SMs")
    if count < 0:
        raise ValueError(f"set_max_sms: count is {count}, expected 0 (all SMs) or more")
    _library.require().set_option("max_sms", count)


@contextlib.contextmanager
def max_sms(count: int):
    """`set_max_sms` for a block of code; the previous value returns at its end."""
    before = _library.require().get_option("max_sms")
    set_max_sms(count)
    try:
        yield
    finally:
        set_max_sms(before)


def warmup(device=None) -> None:
    """Load every kernel of a CUDA device now, so that no later call has to.

    A first call loads the kernel it needs, which takes milliseconds and which a CUDA-graph capture
    may refuse; call this before capturing, or before measuring.

    Parameters
    ----------
    device : torch.device, str or int, optional
        Default: the current CUDA device.

    Raises
    ------
    RuntimeError
        If torch finds no CUDA device, or a kernel can be loaded in no form.
    ValueError
        If `device` is not a CUDA device.
    """
    module = _library.require()
    if device is not None:
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type != "cuda":
            raise ValueError(
                f"warmup: device is {device}, expected a CUDA device; other devices have no "
                "kernels to load"
            )
    if not torch.cuda.is_available():
        raise RuntimeError(
            "warmup: torch finds no CUDA device (torch.cuda.is_available() is False), so there is "
            "nothing to load; guard the call, or see `python -m deepasm_torch info`"
        )
    index = None if device is None else device.index
    module.warmup(torch.cuda.current_device() if index is None else index)


def log_from_environment() -> None:
    """Apply DEEPASM_LOG; without it, the logger stays silent until the program configures it."""
    _log.addHandler(logging.NullHandler())
    name = os.environ.get("DEEPASM_LOG", "").strip().upper()
    if not name:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    _log.addHandler(handler)
    if name in ("DEBUG", "INFO", "WARNING", "ERROR"):
        _log.setLevel(name)
    else:
        _log.warning("DEEPASM_LOG is %r, expected debug, info, warning or error; ignored", name)
