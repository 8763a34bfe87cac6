"""What this machine can run, and the exact sentence to skip with when it cannot."""

from __future__ import annotations

import ctypes
import functools
import os

import torch


def requires_gpu() -> bool:
    """DEEPASM_REQUIRE_GPU=1: a missing GPU fails, so that a broken runner cannot look green."""
    return os.environ.get("DEEPASM_REQUIRE_GPU", "0") not in ("", "0")


@functools.cache
def cuda_missing() -> str | None:
    """Why no CUDA device can be used, or None if one can."""
    if torch.version.cuda is None:
        return f"no CUDA device: torch {torch.__version__} is built without CUDA"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA device: libcuda.so.1 (the NVIDIA driver) is not installed"
    if not torch.cuda.is_available():
        return f"no CUDA device: torch {torch.__version__} sees none (torch.cuda.is_available())"
    return None


def devices_missing(count: int) -> str | None:
    """Why `count` CUDA devices cannot be used, or None."""
    if cuda_missing():
        return cuda_missing()
    found = torch.cuda.device_count()
    return None if found >= count else f"needs {count} CUDA devices, found {found}"


def tier_missing(tier: int) -> str | None:
    """Why kernels of `tier` (80 or 90) cannot run on device 0, or None."""
    if cuda_missing():
        return cuda_missing()
    capability = torch.cuda.get_device_capability(0)
    fits = capability == (9, 0) if tier == 90 else capability >= (8, 0)
    if fits:
        return None
    needs = "exactly 9.0" if tier == 90 else "at least 8.0"
    return (
        f"tier sm{tier} needs compute capability {needs}, "
        f"{torch.cuda.get_device_name(0)} has {capability[0]}.{capability[1]}"
    )


def memory_missing(gib: float, device: str = "cuda") -> str | None:
    """Why `gib` GiB cannot be had on `device`, or None."""
    if torch.device(device).type == "cpu":
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    elif cuda_missing():
        return cuda_missing()
    else:
        free = torch.cuda.mem_get_info()[0]
    return (
        None
        if free >= gib * 2**30
        else f"needs {gib} GiB of free memory on {device}, has {free / 2**30:.1f}"
    )


def multiprocessors(device: str) -> int:
    """SMs of `device`; 4 for the CPU, where a few tiles already are many."""
    if torch.device(device).type == "cpu":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
