"""SM clock and board power, read through NVML with ctypes (or nvidia-smi when that fails).

A time without the clock and the power it was taken at cannot be compared with another: a loaded
board sits at its power limit, where the clock gives way.
"""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess

CLOCK_SM = 1
_OK = 0


@dataclasses.dataclass(frozen=True)
class Reading:
    """One sample; None where the board does not tell."""

    clock_mhz: float | None = None
    power_w: float | None = None


class Nvml:
    """One GPU, addressed by its UUID so that CUDA_VISIBLE_DEVICES cannot confuse the order."""

    def __init__(self, uuid: str, library: str = "libnvidia-ml.so.1"):
        self._lib = ctypes.CDLL(library)
        self._check(self._lib.nvmlInit_v2(), "nvmlInit")
        self._handle = ctypes.c_void_p()
        name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
        found = self._lib.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle))
        self._check(found, f"nvmlDeviceGetHandleByUUID({name.decode()})")

    @staticmethod
    def _check(code: int, call: str) -> None:
        if code != _OK:
            raise OSError(f"{call} returned {code}")

    def _unsigned(self, function: str, *args) -> int | None:
        value = ctypes.c_uint()
        code = getattr(self._lib, function)(self._handle, *args, ctypes.byref(value))
        return value.value if code == _OK else None

    def read(self) -> Reading:
        clock = self._unsigned("nvmlDeviceGetClockInfo", CLOCK_SM)
        milliwatts = self._unsigned("nvmlDeviceGetPowerUsage")
        return Reading(clock, None if milliwatts is None else milliwatts / 1000)

    def driver(self) -> str | None:
        text = ctypes.create_string_buffer(96)
        code = self._lib.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text)))
        return text.value.decode() if code == _OK else None


class NvidiaSmi:
    """The same through the command line tool: tens of milliseconds a reading, but always there."""

    def __init__(self, uuid: str):
        self._select = ["-i", uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"]
        if self.driver() is None:
            raise OSError("nvidia-smi does not answer")

    def _query(self, fields: str) -> list[str] | None:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            run = subprocess.run(
                [*command, *self._select], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        line = run.stdout.strip().splitlines()
        return (
            [part.strip() for part in line[0].split(",")] if run.returncode == 0 and line else None
        )

    def read(self) -> Reading:
        values = self._query("clocks.sm,power.draw") or ["", ""]
        return Reading(*map(_number, values))

    def driver(self) -> str | None:
        return (self._query("driver_version") or [None])[0]


class Silent:
    """No source at all: every reading is empty."""

    def read(self) -> Reading:
        return Reading()

    def driver(self) -> None:
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def open_monitor(uuid: str) -> Nvml | NvidiaSmi | Silent:
    """The best source that works for the GPU with this UUID."""
    for source in (Nvml, NvidiaSmi):
        try:
            return source(uuid)
        except (OSError, AttributeError):
            continue
    return Silent()
