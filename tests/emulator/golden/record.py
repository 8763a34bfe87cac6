#!/usr/bin/env python3
"""Record the golden files on a GPU: ``python tests/emulator/golden/record.py [--out DIR]``.

Needs Python, NumPy, a CUDA driver and a GPU of compute capability 9.0; uses ptxas when it is on
PATH (or the driver's compiler otherwise). The cases run in a child process, one after the other,
each twice; a child that faults, hangs or dies costs its case, and the next one goes on behind it.
Results are written after every case: DIR/h200.npz (outputs) and DIR/h200.json (what was run).
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import io
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parents[1])

from golden.cases import ORDER  # noqa: E402
from golden.driver import CudaError, Gpu  # noqa: E402

NAME = "h200"
PATIENCE = 10.0  # seconds that a case may take
OPENING = 45.0  # seconds that a child may take to find the device


# ---------------------------------------------------------------------------- child
def child(folder, names):
    """Run the named cases; one JSON line to stdout before and after each."""

    def say(**words):
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()

    cases = {c.name: c for c in ORDER}
    try:
        gpu = Gpu()
        say(device=gpu.describe())
    except Exception as err:  # no driver, no GPU: nothing can be recorded
        say(fatal=f"{type(err).__name__}: {err}")
        return 2
    for line in names:
        number, name = line.split(" ", 1)
        case = cases[name]
        say(start=name)
        begin = time.perf_counter()
        cubin = folder / f"{number}.cubin"
        try:
            image = cubin.read_bytes() if cubin.exists() else case.text.encode() + b"\0"
            first = gpu.run(case, image)
            again = gpu.run(case, image)
            same = all(np.array_equal(first[k], again[k]) for k in first)
            np.savez(folder / f"{number}.npz", **first)
            done = {"status": "ok" if same else "unstable"}
        except CudaError as err:
            encode = "cuTensorMapEncode" in str(err)
            done = {"status": "encode" if encode else "fault" if err.sticky else "error",
                    "detail": str(err)}  # fmt: skip
            if err.sticky:
                say(done=name, ms=1e3 * (time.perf_counter() - begin), **done)
                os._exit(3)  # the context is lost, and its destructors may wait for it
        except Exception as err:
            done = {"status": "error", "detail": f"{type(err).__name__}: {err}"}
        say(done=name, ms=1e3 * (time.perf_counter() - begin), **done)
    return 0


# ---------------------------------------------------------------------------- parent
class Store:
    """The two files, whole after every case; nothing is touched before `open`."""

    def __init__(self, out, keep):
        self.npz, self.json = out / f"{NAME}.npz", out / f"{NAME}.json"
        self.about = {"cases": {}}
        self.old, self.is_open = {}, False
        if keep and self.npz.exists() and self.json.exists():
            self.about = json.loads(self.json.read_text())
            with np.load(self.npz) as z:
                self.old = {k: z[k] for k in z.files}
        self.about["cases"] = {k: v for k, v in self.about["cases"].items() if k in keep}

    def open(self):
        """Start the files: a device answered."""
        if self.is_open:
            return
        self.is_open = True
        self.npz.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(self.npz, "w", zipfile.ZIP_DEFLATED, compresslevel=9):
            pass
        for key, data in self.old.items():
            if key.rsplit("::", 1)[0] in self.about["cases"]:
                self._add(key, data)

    def _add(self, key, data):
        raw = io.BytesIO()
        np.lib.format.write_array(raw, data, allow_pickle=False)
        info = zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0))
        with zipfile.ZipFile(self.npz, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            z.writestr(info, raw.getvalue(), zipfile.ZIP_DEFLATED, 9)

    def add(self, case, record, outputs):
        """Note a case; ``outputs`` are bytes by buffer name."""
        for name, data in outputs.items():
            self._add(f"{case.name}::{name}", data)
        self.about["cases"][case.name] = {"fingerprint": case.fingerprint(), **record}
        self.write()

    def write(self):
        """Write the JSON file, one line per case."""
        head = {k: v for k, v in self.about.items() if k != "cases"}
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in self.about["cases"].items()]
        text = json.dumps(head, indent=1)[:-2].rstrip() if head else "{"
        text += ("," if head else "") + '\n "cases": {\n  ' + ",\n  ".join(lines) + "\n }\n}\n"
        part = self.json.with_suffix(".part")
        part.write_text(text)
        part.replace(self.json)


def assemble(ptxas, folder, jobs):
    """Cubins of all cases; returns the names that ptxas refused, with its words."""

    def one(job):
        number, case = job
        source = folder / f"{number}.ptx"
        source.write_text(case.text)
        done = subprocess.run(
            [ptxas, "-arch=sm_90a", str(source), "-o", str(folder / f"{number}.cubin")],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return case.name, "" if done.returncode == 0 else (done.stderr + done.stdout).strip()

    with ThreadPoolExecutor(os.cpu_count() or 4) as pool:
        return {name: text for name, text in pool.map(one, jobs) if text}


def listen(process, lines):
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def run_children(folder, jobs, store, deadline):
    """Run all jobs through children; returns counts by status."""
    counts, left = {}, list(jobs)
    while left and time.monotonic() < deadline:
        todo = folder / "todo.txt"
        todo.write_text("\n".join(f"{n} {c.name}" for n, c in left))
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--child", str(folder)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        lines = queue.Queue()
        threading.Thread(target=listen, args=(process, lines), daemon=True).start()
        running, opened, before = None, False, len(left)

        def finish(record):
            number, case = left.pop(0)
            path = folder / f"{number}.npz"
            outputs = {}
            if record["status"] in ("ok", "unstable") and path.exists():
                with np.load(path) as z:
                    outputs = {k: z[k] for k in z.files}
            counts[record["status"]] = counts.get(record["status"], 0) + 1
            ms = record.pop("ms", 0)
            store.add(case, record, outputs)
            mark = "" if record["status"] == "ok" or case.fault else "   <--"
            detail = record.get("detail", "")[:150]
            print(f"{record['status']:<9}{ms:8.1f} ms  {case.name}  {detail}{mark}", flush=True)

        while True:
            wait = min(PATIENCE if opened else OPENING, deadline - time.monotonic())
            try:
                line = lines.get(timeout=max(wait, 0.01))
            except queue.Empty:
                process.kill()
                if running and time.monotonic() < deadline:
                    finish({"status": "hang", "detail": f"no answer in {PATIENCE:.0f} s"})
                break
            if line is None:
                process.wait()
                if running:
                    finish({"status": "died", "detail": f"exit status {process.returncode}"})
                break
            try:
                words = json.loads(line)
            except ValueError:
                continue
            if "fatal" in words:
                print(f"cannot record: {words['fatal']}", flush=True)
                process.wait()
                return counts
            if "device" in words:
                opened = True
                store.open()
                store.about.update(words["device"])
            if "start" in words:
                running = words["start"]
            if "done" in words:
                running = None
                finish({k: v for k, v in words.items() if k != "done"})
        if process.poll() is None:
            process.kill()
        process.wait()
        if len(left) == before:
            print("a child ended without running anything: giving up", flush=True)
            break
    for _, case in left:
        counts["not run"] = counts.get("not run", 0) + 1
        print(f"not run              {case.name}", flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("-k", default="*", help="only cases whose name matches; others are kept")
    parser.add_argument("--limit", type=float, default=58.0, help="seconds for everything")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, (args.child / "todo.txt").read_text().splitlines())
    begin = time.monotonic()
    chosen = [c for c in ORDER if fnmatch.fnmatch(c.name, args.k)]
    names = {c.name for c in chosen}
    store = Store(args.out, {c.name for c in ORDER} - names)
    ptxas = shutil.which("ptxas")
    about = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        jobs = [(f"{k:04}", c) for k, c in enumerate(chosen)]
        if ptxas:
            version = subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
            found = re.search(r"V(\d+\.\d+\.\d+)", version)
            about["ptxas"] = found.group(1) if found else "?"
            for name, text in assemble(ptxas, folder, jobs).items():
                print(f"ptxas refuses {name}: {text}", flush=True)
        else:
            about["ptxas"] = None
        try:
            about["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
        except OSError:
            about["driver"] = None
        store.about.update(about)
        print(f"{len(jobs)} cases assembled in {time.monotonic() - begin:.1f} s", flush=True)
        counts = run_children(folder, jobs, store, begin + args.limit)
    if not store.is_open:
        return 1
    store.write()
    size = store.npz.stat().st_size
    text = ", ".join(f"{n} {k}" for k, n in sorted(counts.items()))
    print(f"{text}; {size} bytes; {time.monotonic() - begin:.1f} s", flush=True)
    return 0 if set(counts) <= {"ok", "fault", "encode"} and counts else 1


if __name__ == "__main__":
    sys.exit(main())
