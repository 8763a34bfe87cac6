"""The child side of `@isolated`: load the test file, run one body, report by exit status."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from .process import SKIPPED


def _decode(value):
    return getattr(torch, value["dtype"]) if isinstance(value, dict) else value


def main(job: str) -> int:
    path, name, kwargs = json.loads(job)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        getattr(module, name)(**{k: _decode(v) for k, v in kwargs.items()})
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # an asynchronous fault must not end as a success
    except pytest.skip.Exception as reason:
        print(reason)
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
