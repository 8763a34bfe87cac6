"""The command line: envelope and exit codes, and `info` on machines where things are missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepasm_torch import cli, info
from deepasm_torch.cli import Command, Outcome

PACKAGE = Path(cli.__file__).parent
ENVELOPE = {"command", "ok", "exit_code", "version", "data", "errors"}


def call(capsys, *argv):
    """(exit code, stdout, stderr) of one command in this process."""
    code = cli.main(list(argv))
    said = capsys.readouterr()
    return code, said.out, said.err


def enveloped(capsys, *argv):
    code, out, _ = call(capsys, *argv, "--json")
    message = json.loads(out)
    assert set(message) == ENVELOPE
    assert message["exit_code"] == code
    assert message["ok"] is (code == 0)
    assert isinstance(message["errors"], list)
    return message


def run_python(code: str, *argv: str, path: Path | None = None, cwd=None, **env):
    """A fresh interpreter with only `path` on its PYTHONPATH."""
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path or PACKAGE.parent), **env},
        check=False,
    )


@pytest.fixture
def plugged(monkeypatch, tmp_path):
    """Give a command `probe` whose module runs the function handed to `plugged`."""

    def plug(execute):
        module = type(sys)("deepasm_probe_command")
        module.configure = lambda parser: parser.add_argument("--size", type=int, default=1)
        module.execute = execute
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "probe", Command("a test's command", module.__name__))

    return plug


@pytest.mark.parametrize("where", ["before", "after"])
def test_json_is_accepted_anywhere_and_prints_one_object(capsys, plugged, where):
    plugged(lambda args: Outcome(data={"size": args.size, "json": args.json}, text="for people"))
    argv = ["probe", "--size", "3"]
    code, out, err = call(capsys, *(["--json", *argv] if where == "before" else [*argv, "--json"]))
    message = json.loads(out)
    assert (code, message["command"], message["ok"]) == (0, "probe", True)
    assert message["data"] == {"size": 3, "json": True}
    assert message["version"] and message["errors"] == [] and err == ""


def test_without_json_the_text_goes_to_stdout_and_findings_to_stderr(capsys, plugged):
    plugged(lambda args: Outcome(text="a table", errors=["it is slow"]))
    code, out, err = call(capsys, "probe")
    assert (code, out, err) == (1, "a table\n", "deepasm probe: it is slow\n")


def test_findings_are_exit_code_1(capsys, plugged):
    plugged(lambda args: Outcome(data=1, errors=["wrong"]))
    message = enveloped(capsys, "probe")
    assert (message["exit_code"], message["data"], message["errors"]) == (1, 1, ["wrong"])


@pytest.mark.parametrize(
    "error", [cli.CannotRun("no GPU"), ValueError("surprise"), KeyboardInterrupt()]
)
def test_what_a_command_raises_is_exit_code_2(capsys, plugged, error):
    def execute(args):
        raise error

    plugged(execute)
    message = enveloped(capsys, "probe")
    assert message["exit_code"] == 2 and message["command"] == "probe"
    assert (str(error) or "interrupted") in message["errors"][0]
    assert call(capsys, "probe")[0] == 2


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["bench"], ["bench", "nonsense"], ["info", "--nonsense"]]
)
def test_usage_errors_are_exit_code_2_with_an_envelope(capsys, argv):
    message = enveloped(capsys, *argv)
    assert message["exit_code"] == 2 and "usage: deepasm" in message["errors"][0]
    assert message["command"] == " ".join(word for word in argv if word in ("info", "bench"))
    code, out, err = call(capsys, *argv)
    assert code == 2 and out == "" and "usage: deepasm" in err


def test_help_and_version(capsys):
    for argv, expected in (
        (["--help"], "bench"),
        (["bench", "gemm", "--help"], "--variants"),
        (["--version"], "deepasm_torch "),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(argv)
        assert stop.value.code == 0 and expected in capsys.readouterr().out


def test_every_command_of_the_table_can_be_loaded():
    import importlib

    def walk(commands):
        for command in commands.values():
            assert command.summary
            if command.subcommands:
                yield from walk(command.subcommands)
            else:
                yield importlib.import_module(command.module)

    for module in walk(cli.COMMANDS):
        assert callable(module.configure) and callable(module.execute)


# ---- bench -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [[], ["--quick"], ["--variants"], ["--host"]])
def test_bench_without_a_gpu_cannot_run_and_says_what_can(capsys, monkeypatch, mode):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = enveloped(capsys, "bench", "gemm", *mode)
    assert message["exit_code"] == 2 and message["command"] == "bench gemm"
    assert "CUDA device" in message["errors"][0] and "deepasm info" in message["errors"][0]


def test_bench_lists_its_cases_anywhere(capsys):
    message = enveloped(capsys, "bench", "gemm", "--list", "--cases", "square", "odd")
    assert message["exit_code"] == 0
    assert "4096x4096x4096 nt bf16" in message["data"]["cases"]
    code, out, _ = call(capsys, "bench", "gemm", "--list")
    assert code == 0 and len(out.splitlines()) > 40


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--cases", "nothing"], "matches nothing"),
        (["--shape", "12"], "write [BATCHx]MxNxK"),
        (["--peers", "mkl"], "invalid choice"),
        (["--variants", "--host"], "not allowed with"),
    ],
)
def test_bench_explains_bad_arguments(capsys, argv, text):
    message = enveloped(capsys, "bench", "gemm", *argv)
    assert message["exit_code"] == 2 and text in message["errors"][0]


def test_the_script_is_the_same_command():
    script = PACKAGE.parent / "benchmarks" / "bench_gemm.py"
    if not script.is_file():
        pytest.skip("benchmarks/ is not beside the package: this is an installed copy")
    done = subprocess.run(
        [sys.executable, script, "--list", "--cases", "square"],
        capture_output=True, text=True, timeout=120, check=False, cwd="/",
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )  # fmt: skip
    assert done.returncode == 0 and "1024x1024x1024 nt bf16" in done.stdout


# ---- info --------------------------------------------------------------------------------------

SECTIONS = [
    "deepasm", "python", "torch", "extension", "kernels", "devices", "ptxas", "triton", "options",
    "environment", "counters",
]  # fmt: skip


def test_info_has_every_section(capsys):
    message = enveloped(capsys, "info")
    assert list(message["data"]) == SECTIONS
    assert message["exit_code"] == (1 if message["errors"] else 0)
    code, out, _ = call(capsys, "info")
    assert code == message["exit_code"]
    for name in SECTIONS:
        assert f"\n{name}:" in f"\n{out}"


def test_info_counts_the_embedded_kernels(capsys):
    from deepasm_torch import _library

    if _library.C is None:
        pytest.skip("the extension is not built")
    data = enveloped(capsys, "info")["data"]
    table = json.loads(_library.C.kernels())
    assert data["kernels"]["count"] == len(table) > 0
    assert sum(data["kernels"]["by_tier"].values()) == len(table)
    assert sum(data["kernels"]["images"].values()) == sum(len(k["images"]) for k in table)
    assert set(data["options"]) == {"disable", "tier", "max_sms"}
    assert data["extension"]["loaded"] is True


def test_info_lists_our_environment_variables(capsys, monkeypatch):
    monkeypatch.setenv("DEEPASM_MAX_SMS", "100")
    monkeypatch.setenv("UNRELATED_SECRET", "hidden")
    environment = enveloped(capsys, "info")["data"]["environment"]
    assert environment["DEEPASM_MAX_SMS"] == "100"
    assert "UNRELATED_SECRET" not in environment


def test_info_names_the_ptxas_it_would_use(capsys, monkeypatch, tmp_path):
    good = tmp_path / "ptxas"
    good.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.9, V12.9.86"\n')
    good.chmod(0o755)
    monkeypatch.setenv("DEEPASM_PTXAS", str(good))
    data = enveloped(capsys, "info")["data"]["ptxas"]
    assert data["used"] == {"place": "DEEPASM_PTXAS", "path": str(good), "version": "12.9.86"}
    monkeypatch.setenv("DEEPASM_PTXAS", str(tmp_path / "missing"))
    message = enveloped(capsys, "info")
    assert any("no working ptxas" in error for error in message["errors"])
    assert message["exit_code"] == 1


def test_a_probe_that_fails_takes_nothing_else_down(monkeypatch):
    def broken(findings):
        raise RuntimeError("boom")

    monkeypatch.setattr(info, "_ptxas", broken)
    data, findings = info.collect()
    assert list(data) == SECTIONS
    assert data["ptxas"] == {"error": "RuntimeError: boom"}
    assert any("ptxas: the probe failed: RuntimeError: boom" in text for text in findings)
    assert "boom" in info.render(data, findings)


def copy_of_the_package(folder: Path) -> Path:
    """The Python part alone, as a checkout that was never built."""
    shutil.copytree(
        PACKAGE, folder / "deepasm_torch",
        ignore=shutil.ignore_patterns("_C*", "_ptx", "__pycache__", "build"),
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated"])
def test_info_with_a_broken_extension(tmp_path, damage):
    root = copy_of_the_package(tmp_path)
    library = root / "deepasm_torch" / "_C.abi3.so"
    if damage == "garbage":
        library.write_text("this is no library")
    elif damage == "truncated":
        library.write_bytes(b"\x7fELF" + bytes(60))
    module = "import runpy; runpy.run_module('deepasm_torch', run_name='__main__', alter_sys=True)"
    done = run_python(module, "info", "--json", path=root, cwd=tmp_path)
    message = json.loads(done.stdout)
    assert done.returncode == message["exit_code"] == 1, done.stderr
    assert message["data"]["extension"]["loaded"] is False
    assert message["data"]["extension"]["error"]
    assert message["data"]["kernels"] is None and message["data"]["counters"] is None
    assert message["data"]["torch"]["version"]
    assert any(error.startswith("extension:") for error in message["errors"])
    if damage == "missing":
        text = run_python(module, "info", path=root, cwd=tmp_path)
        assert text.returncode == 1 and "loaded: no" in text.stdout
        bench = run_python(module, "bench", "gemm", "--json", path=root, cwd=tmp_path)
        assert bench.returncode == json.loads(bench.stdout)["exit_code"] == 2


def test_info_without_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from deepasm_torch.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = run_python(code, "info", "--json", cwd=tmp_path)
    message = json.loads(done.stdout)
    assert done.returncode == message["exit_code"] == 1, done.stderr
    assert "error" in message["data"]["torch"]
    assert message["data"]["python"]["version"]
    assert any("torch cannot be imported" in error for error in message["errors"])
    bench = run_python(code, "bench", "gemm", "--json", cwd=tmp_path)
    assert json.loads(bench.stdout)["exit_code"] == 2
    assert "torch" in json.loads(bench.stdout)["errors"][0]


def test_modules_of_the_command_line_need_the_standard_library_only():
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numpy', 'jinja2', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "import deepasm_torch.cli, deepasm_torch.info, deepasm_torch.bench.gemm\n"
        "import deepasm_torch.bench.gemm_variants, deepasm_torch.bench.host_cost\n"
        "print('fine')"
    )
    done = run_python(code)
    assert done.stdout == "fine\n", done.stderr


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-m', 'deepasm_torch', 'bench', 'gemm', '--list'],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "p.stdout.close(); err = p.stderr.read().decode(); p.wait()\n"
        "assert 'BrokenPipe' not in err and 'Traceback' not in err, err\n"
        "print('fine')"
    )
    assert run_python(code, cwd=tmp_path).stdout == "fine\n"
