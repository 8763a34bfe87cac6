"""Run a test in a process of its own, with a timeout.

A fault on the device poisons the CUDA context of its process for good, and some cases are about
the first call of a process.  `@isolated()` sends such a test to a child:

    @isolated(timeout=60, env={"DEEPASM_TIER": "sm80"})
    def test_r07_first_call_in_capture(dtype): ...

Arguments come from parametrisation and must be strings, numbers, None or torch dtypes.  Where there
are cores to spare, `prefetch` starts the children of a session early and the tests collect them.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

_CHILD = "DEEPASM_TEST_CHILD"
SKIPPED = 77  # exit status of a child whose body called pytest.skip
_pool: ThreadPoolExecutor | None = None
_started: dict[str, Future] = {}
_running: set[subprocess.Popen] = set()


def _encode(value):
    return {"dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else value


def _spawn(body, kwargs: dict, timeout: float, env: dict) -> tuple[int, str]:
    """Exit status and output of a child that runs `body(**kwargs)`."""
    job = json.dumps(
        [body.__code__.co_filename, body.__name__, {k: _encode(v) for k, v in kwargs.items()}]
    )
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.child", job],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", _CHILD: "1", **env},
    )
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return -1, f"{output}\nno end within {timeout} s; the process was killed"
    finally:
        _running.discard(process)


def _key(body, kwargs: dict) -> str:
    return json.dumps(
        [body.__module__, body.__name__, sorted((k, str(v)) for k, v in kwargs.items())]
    )


def isolated(timeout: float = 120, env: dict[str, str] | None = None):
    """Decorate a test so that its body runs in a child process."""

    def decorate(body):
        if os.environ.get(_CHILD):
            return body

        @functools.wraps(body)
        def test(**kwargs):
            import pytest

            future = _started.pop(_key(body, kwargs), None)
            status, output = future.result() if future else _spawn(body, kwargs, timeout, env or {})
            if status == SKIPPED:
                pytest.skip(output.strip().splitlines()[-1])
            if status != 0:
                ended = f"died of signal {-status}" if status < -1 else f"exit status {status}"
                pytest.fail(f"{body.__name__} in its own process: {ended}\n{output}", pytrace=False)

        test.isolated_job = functools.partial(_spawn, body, timeout=timeout, env=env or {})
        test.isolated_body = body
        return test

    return decorate


def prefetch(items, workers: int) -> None:
    """Start the children of collected tests in the background, `workers` at a time."""
    global _pool
    for item in items:
        job = getattr(getattr(item, "function", None), "isolated_job", None)
        if job is None or any(True for _ in item.iter_markers("skip")):
            continue
        _pool = _pool or ThreadPoolExecutor(workers)
        kwargs = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        _started[_key(item.function.isolated_body, kwargs)] = _pool.submit(job, kwargs)


def shut_down() -> None:
    """Cancel what has not started and end what still runs."""
    if _pool:
        _pool.shutdown(wait=False, cancel_futures=True)
    for process in list(_running):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
