"""Work spread over processes; each keeps its linear algebra on one thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def default_jobs() -> int:
    """Processors this process may use, at most 8: memory, not time, is the limit beyond."""
    available = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    )
    return max(1, min(8, len(available)))


def each(function: Callable, tasks: Iterable, jobs: int) -> Iterator:
    """Results of ``function(task)`` as they come.

    Workers are started anew rather than forked: a fork would inherit the locks of torch's threads.
    """
    tasks = list(tasks)
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(function, tasks)
        return
    with (
        _single_threaded(),
        ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool,
    ):
        pending = [pool.submit(function, task) for task in tasks]
        try:
            for done in as_completed(pending):
                yield done.result()
        finally:
            for future in pending:
                future.cancel()


@contextlib.contextmanager
def _single_threaded():
    """Children read these variables when they import NumPy."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
