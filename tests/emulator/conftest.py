"""Known differences between the emulator and the chip: listed, expected to fail, and no more."""

from pathlib import Path

import pytest

LIST = Path(__file__).parent / "golden" / "known_differences.txt"
KNOWN = {line for line in LIST.read_text().splitlines() if line and not line.startswith("#")}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name == "test_golden.py" and item.name in KNOWN:
            reason = (
                "the emulator differs from the chip here; mend it and take the line off the list"
            )
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
