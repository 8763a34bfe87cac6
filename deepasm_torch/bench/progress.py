"""A progress bar on stderr: redrawn on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    """``with Progress(total) as bar: bar.step("what just finished")``."""

    def __init__(self, total: int, stream=None, quiet: bool = False, verbose: bool = False):
        self.total, self.done, self.start = max(total, 1), 0, time.monotonic()
        self.stream = stream or sys.stderr
        self.quiet, self.verbose = quiet, verbose
        self.redraw = self.stream.isatty()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        if self.redraw and not self.quiet:
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def note(self, text: str) -> None:
        """Say what is running now, without counting it (a terminal, or verbose)."""
        self._draw(text)

    def step(self, text: str) -> None:
        self.done += 1
        self._draw(text, finished=True)

    def _draw(self, text: str, finished: bool = False) -> None:
        if self.quiet or not (finished or self.redraw or self.verbose):
            return
        count = f"[{self.done}/{self.total}] {time.monotonic() - self.start:4.0f}s"
        if self.redraw:
            filled = 24 * self.done // self.total
            bar = "#" * filled + "." * (24 - filled)
            self.stream.write(f"\r\x1b[K{bar} {count} {text}"[:160])
        else:
            self.stream.write(f"{count} {text}\n")
        self.stream.flush()
