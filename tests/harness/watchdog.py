"""End the session when a test hangs, because a hung kernel cannot be interrupted from Python."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading

LIMIT = 300  # seconds for one test; children of `@isolated` have shorter limits of their own


def guard(item, limit: float = LIMIT) -> threading.Timer:
    """Start a timer that reports `item` and ends the process; cancel it when the test is done."""

    def expire():
        capture = item.config.pluginmanager.getplugin("capturemanager")
        if capture:
            capture.suspend_global_capture(in_=True)
        print(f"\n{item.nodeid} did not end within {limit} s; the session is ended", flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        os._exit(3)

    timer = threading.Timer(limit, expire)
    timer.daemon = True
    timer.start()
    return timer
