"""Seeds: a fresh one per session, printed, and replayable with DEEPASM_TEST_SEED."""

from __future__ import annotations

import os
import secrets
import zlib

import torch

ENV = "DEEPASM_TEST_SEED"


def session_seed() -> int:
    """Seed of this test run.  Kept in the environment, so that child processes share it."""
    if ENV not in os.environ:
        os.environ[ENV] = str(secrets.randbelow(2**31))
    return int(os.environ[ENV])


def case_seed(*names: object) -> int:
    """Seed of one case, so that `-k` replays it without what ran before."""
    text = "/".join(map(str, names))
    return (session_seed() * 1_000_003 + zlib.crc32(text.encode())) % 2**31


def generator(device: str | torch.device, *names: object) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(case_seed(*names))
