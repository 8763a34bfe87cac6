"""Every rule fires on a planted bug, at the right line, and is silent on the corrected twin."""

from __future__ import annotations

import re
from pathlib import Path

import cases_async
import cases_cluster
import cases_memory
import cases_sync
import pytest
from ptx_case import run, twins

from deepasm_torch import emulator

CASES = cases_memory.CASES + cases_sync.CASES + cases_async.CASES + cases_cluster.CASES
BUILD = ("params", "outside", "directives", "target")


def split(name, source, options):
    """(buggy text, clean text, marked lines, launch options) of a case."""
    build = {k: v for k, v in options.items() if k in BUILD}
    launch = {k: v for k, v in options.items() if k not in (*BUILD, "args", "bad_args")}
    return *twins(name, source, **build), launch


PREPARED = {c[0]: split(c[0], *c[2:]) for c in CASES}


def start(text, options, launch, args=None):
    args = options.get("args", ()) if args is None else args
    return run(text, args() if callable(args) else args, **launch)


@pytest.mark.parametrize("name, kind, source, options", CASES, ids=[c[0] for c in CASES])
def test_the_bug_is_reported_at_its_line(name, kind, source, options):
    bug, _, here, launch = PREPARED[name]
    res = start(bug, options, launch, options.get("bad_args"))
    found = [h for h in res.hazards if h.kind == kind]
    assert found, res.report()
    if here:
        assert found[0].line in here, f"expected line {here}\n{res.report()}"
        assert f"ptx:{found[0].line}" == found[0].where


def test_every_rule_has_a_case():
    """The reports that the emulator's source can make, against the cases."""
    folder = Path(emulator.__file__).parent
    source = "".join(p.read_text() for p in folder.rglob("*.py"))
    named = set(re.findall(r'\.(?:at|add|report)\(\s*"([a-z0-9-]+)"', source))
    named |= {"oob-shared", "misaligned", "deadlock", "watchdog"}  # passed as variables
    assert named - {c[1] for c in CASES} == set()


@pytest.mark.parametrize("name, kind, source, options", CASES, ids=[c[0] for c in CASES])
@pytest.mark.parametrize("schedule", ["round_robin", "random", "adversarial"])
def test_the_clean_twin_is_silent(name, kind, source, options, schedule):
    _, clean, _, launch = PREPARED[name]
    res = start(clean, options, {**launch, "schedule": schedule})
    assert res.ok, res.report()
