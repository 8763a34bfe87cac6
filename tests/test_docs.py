"""The documentation holds: links, paths, names, commands, variables, snippets, generated tables.

What a page says about the code is compared with the code, so that a renamed function or a new
environment variable fails here and not at a reader's desk.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from harness import cuda_missing

import deepasm_torch
from deepasm_torch import cli
from deepasm_torch.bench import gemm_cases, report
from deepasm_torch.kernels import ALL

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / "docs").is_dir():
    pytest.skip("not run from a source tree", allow_module_level=True)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
every_page = pytest.mark.parametrize("page", [pytest.param(p, id=p.name) for p in PAGES])
FOLDERS = ("csrc", "ptx", "deepasm_torch", "tests", "docs", "examples", "benchmarks")
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", text_of(page))


def code_spans(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose_of(page))


# ---- links, paths, names ----------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Heading anchors as GitHub and MkDocs make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


@every_page
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {file.name} has no heading #{anchor}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.parent.name == "docs"], ids=lambda p: p.name
)
def test_pages_of_the_manual_link_inside_it_and_are_in_its_index(page):
    for target in re.findall(r"\]\(([^)\s#]+)", prose_of(page)):
        assert re.match(r"[a-z]+:|[\w-]+\.md$", target), f"{page.name}: {target} leaves the manual"
    assert f" {page.name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@every_page
def test_paths_exist(page):
    wanted = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*|\.?[\w-]+\.(?:py|toml|yml|yaml|md)")
    for span in code_spans(page):
        if not wanted.fullmatch(span):
            continue
        path = span.rstrip("/")
        assert any((base / path).exists() for base in (ROOT, page.parent)), f"{page.name}: {span}"


@every_page
def test_names_exist(page):
    """`deepasm_torch.x.y` in the text is something that can be reached by that name."""
    for span in set(re.findall(r"`(deepasm_torch(?:\.\w+)+)", prose_of(page))):
        parts = span.split(".")
        value = deepasm_torch
        for depth, part in enumerate(parts[1:], 2):
            if not hasattr(value, part):
                importlib.import_module(".".join(parts[:depth]))
            value = getattr(value, part)
    for name in set(re.findall(r"`functional\.(\w+)", prose_of(page))):
        assert callable(getattr(deepasm_torch.functional, name)), f"{page.name}: functional.{name}"


@every_page
def test_kernels_exist(page):
    names = {kernel.name for kernel in ALL}
    for name in re.findall(r"\bgemm_sm\d+_\w+?_\d+x\d+x\d+\w*", text_of(page)):
        assert name in names, f"{page.name}: there is no kernel {name}"


def test_kernel_page_lists_the_table():
    """Tile, schedule, stages, threads and loads of every row, and nothing else."""
    page = text_of(ROOT / "docs" / "kernels.md")
    line = r"^\| (sm\d+) \| (\d+x\d+x\d+) \| (\w+) \| (\d+) \| (\d+) \| (\w+) \|"
    listed = set(re.findall(line, page, re.MULTILINE))
    shipped = {
        (f"sm{k.tier}", f"{k.bm}x{k.bn}x{k.bk}", k.schedule, str(k.stages), str(k.threads), k.loads)
        for k in ALL
    }
    assert listed == shipped


# ---- environment variables ------------------------------------------------------------------

CODE = [
    *(ROOT / "deepasm_torch").rglob("*.py"),
    *(ROOT / "csrc").glob("*.cpp"),
    *(ROOT / "tests").rglob("*.py"),
    *(ROOT / "benchmarks").glob("*.py"),
    *(ROOT / "examples").glob("*.py"),
    ROOT / "setup.py",
]
#: Read, but not ours to describe: pytest-xdist's mark, and paths that tests pass on to a child.
FOREIGN = {"PYTEST_XDIST_WORKER", "PYTHONPATH", "PATH", "LD_LIBRARY_PATH"}


def strings_read_from_environment(file: Path) -> set[str]:
    """Names in os.environ[...], .get(...), os.getenv(...), `... in os.environ`, getenv()."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".cpp":
        return set(re.findall(r'\b(?:getenv|env_\w+)\("(\w+)"', source))
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def name(node):
        if isinstance(node, ast.Name):
            return constants.get(node.id)
        return node.value if isinstance(node, ast.Constant) else None

    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(
            r"(os\.)?(environ\.(get|pop|setdefault)|getenv)", ast.unparse(node.func)
        ):
            found.add(name(node.args[0]))
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in (
            "os.environ",
            "environ",
        ):
            found.add(name(node.slice))
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            found.add(name(node.left))
    return {text for text in found if isinstance(text, str)}


def described_variables() -> set[str]:
    return set(
        re.findall(r"^\| `(\w+)` \|", text_of(ROOT / "docs" / "environment.md"), re.MULTILINE)
    )


def test_every_variable_that_is_read_is_described():
    read = {name for file in CODE for name in strings_read_from_environment(file)} - FOREIGN
    assert {"DEEPASM_TIER", "DEEPASM_PTXAS", "DEEPASM_TEST_SEED", "CXX"} <= read  # the scan works
    assert read - described_variables() == set()


def test_every_variable_that_is_described_is_read():
    read = {name for file in CODE for name in strings_read_from_environment(file)}
    assert described_variables() - read == set()


def test_variables_named_anywhere_are_described():
    for page in PAGES:
        named = set(re.findall(r"\bDEEPASM_[A-Z0-9_]+\b", text_of(page)))
        assert named <= described_variables(), page.name


# ---- commands -------------------------------------------------------------------------------


def shell_lines(page: Path) -> list[str]:
    """Commands of a page: lines of sh blocks, and code spans."""
    blocks = [m["body"] for m in FENCE.finditer(text_of(page)) if m["language"] == "sh"]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line] + code_spans(page)


@every_page
def test_commands_parse(page):
    """Every deepasm command line is one that the parser takes, options included."""
    for line in shell_lines(page):
        found = re.match(r"(?:python -m deepasm_torch|deepasm)(?: (.*))?$", line)
        if not found or not found[1]:
            continue
        words = shlex.split(found[1].replace("MxNxK", "8x8x8"))
        args = cli._build(words).parse_args(words)
        assert args._path, line


@every_page
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in shell_lines(page):
        if found := re.match(r"make (\w+)", line):
            assert re.search(rf"^{found[1]}:", makefile, re.MULTILINE), f"{page.name}: {line}"


@every_page
def test_python_programs_named_exist(page):
    for line in shell_lines(page):
        for program in re.findall(r"python ((?!-)[\w./]+\.py)\b", line):
            assert (ROOT / program).is_file(), f"{page.name}: {line}"
        for path in re.findall(r"pytest (tests/[\w./]+)", line):
            assert (ROOT / path).exists(), f"{page.name}: {line}"


# ---- snippets -------------------------------------------------------------------------------


def ptxas_missing() -> str | None:
    if importlib.util.find_spec("jinja2") is None:
        return "no Jinja2"
    from deepasm_torch.codegen import find_ptxas

    try:
        find_ptxas()
    except FileNotFoundError as error:
        return str(error)
    return None


NEEDS = {"gpu": cuda_missing, "ptxas": ptxas_missing}

#: The default compiler of torch.compile is torch's own affair, and slow to start.
PRELUDE = """\
import functools, torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
"""


def program_of(page: Path) -> str:
    """The python blocks of a page as one program whose line numbers are the page's."""
    source = text_of(page)
    lines = [""] * (source.count("\n") + 1)
    for match in FENCE.finditer(source):
        if match["language"] != "python":
            continue
        above = source[: match.start()].rstrip("\n").rsplit("\n", 1)[-1]
        if (needs := re.fullmatch(r"<!-- needs: (\w+) -->", above)) and NEEDS[needs[1]]():
            continue
        first = source.count("\n", 0, match.start()) + 1
        for offset, line in enumerate(match["body"].splitlines()):
            lines[first + offset] = line.removeprefix(match["indent"])
    return "\n".join(lines)


def run(*command: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(
        [str(Path(deepasm_torch.__file__).parent.parent), *filter(None, sys.path)]
    )
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip


@every_page
def test_snippets_run(page, tmp_path):
    program = program_of(page)
    if not program.strip():
        return
    path = tmp_path / f"{page.stem}.py"
    path.write_text(program, encoding="utf-8")
    starter = f"{PRELUDE}\nimport runpy\nrunpy.run_path({str(path)!r}, run_name='__main__')"
    done = run("-c", starter)
    assert done.returncode == 0, f"{page.name} (line numbers are the page's)\n{done.stderr}"


@pytest.mark.parametrize(
    "command",
    [
        ("examples/demo.py", "--cpu"),
        ("examples/linear_in_model.py", "--device", "cpu"),
        ("examples/compile_and_graph.py", "--backend", "aot_eager"),
    ],
    ids=lambda command: Path(command[0]).stem,
)
def test_examples_run(command):
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    if "--cpu" in command:
        assert "not exercised: the kernels on a GPU" in done.stdout


@pytest.mark.parametrize("fault", [None, "fell back to torch: a reason"])
def test_demo_reports_what_the_benchmark_found(fault, monkeypatch, capsys):
    """The GPU part of the demo around a benchmark that did not run: its arguments, its verdict."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    seen = []

    def bench(words):
        seen.append(cli._build(words).parse_args(words))
        data = {"rows": [{"peers_ms": {"cublas": 1.0}}]}
        return "bench gemm", cli.Outcome(data=data, text="a table", errors=[fault] * bool(fault))

    monkeypatch.setattr(demo.deepasm_torch, "warmup", lambda: None)
    monkeypatch.setattr(demo.torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(demo.cli, "run", bench)
    assert demo.on_gpu(30) == (fault is None)
    shapes = [gemm_cases.own_shape(text) for text in seen[0].shape]
    assert len({case.name for case in shapes}) == len(demo.GPU_SHAPES) and seen[0].budget == 30
    said = capsys.readouterr().out
    assert "a table" in said and "not exercised: the Triton baseline" in said
    assert (f"FAILED: {fault}" in said) == bool(fault)


@pytest.mark.gpu
def test_demo_compares_on_the_gpu():
    done = run("examples/demo.py", "--seconds", "45")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exercised: the PTX kernels" in done.stdout and "xcublas" in done.stdout


# ---- generated blocks -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def readme_table():
    spec = importlib.util.spec_from_file_location(
        "readme_table", ROOT / "benchmarks" / "readme_table.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result_row(case: str, mode: str, ours: float, **peers: float) -> dict:
    return {
        "case": case, "pass": "fwd", "family": "square" if "4096x4096x4096" in case else "odd",
        "mode": mode, "ours_ms": ours, "peers_ms": peers, "rel_err": 1.66e-3,
        "peer_rel_err": 1.7e-3, "variant": "gemm_sm90_bf16_nt_128x128x64_pingpong",
        "metrics": {"tflops": 687.2},
    }  # fmt: skip


@pytest.fixture
def result() -> dict:
    big, odd, other = "4096x4096x4096 nt bf16", "2047x2047x2047 nn bf16", "1000x1000x1000 nt bf16"
    data = {
        **report.header("gemm", "NVIDIA H200", "580.159.04", "2.11.0+cu130"),
        "rows": [
            result_row(big, "steady", 0.2, cublas=0.21, triton=0.24),
            result_row(big, "burst", 0.16, cublas=0.16),
            result_row(odd, "steady", 0.5, cublas=0.1),
            result_row(other, "steady", 0.01, cublas=0.02, triton=0.04),
        ],
    }
    assert report.validate(data) == []
    return data


def test_pages_equal_the_committed_results(readme_table):
    """Fails after new results, or after an edit inside a block: run benchmarks/readme_table.py."""
    assert readme_table.main(["--check"]) == 0


def test_table_shows_wins_and_losses(readme_table, result):
    block = readme_table.readme_block(result)
    rows = [line for line in block.splitlines() if line.startswith("| ")][1:]
    kernel, errors = "sm90 128x128x64_pingpong", "1.7e-03 | 1.7e-03 |"
    assert rows == [
        f"| 4096x4096x4096 nt bf16 | {kernel} | 687 | 1.050 | 1.000 | 1.200 | {errors}",
        f"| 2047x2047x2047 nn bf16 | {kernel} | 687 | 0.200 | - | - | {errors}",
    ]
    assert "NVIDIA H200, driver 580.159.04, torch 2.11.0+cu130" in block
    # 1000x1000x1000 is no case of --quick: not a line of the short table, but part of the means
    assert "over all 3 cases: 0.749" in block and "square 1.050 (1), odd 0.632 (2)" in block
    assert "Slowest: 2047x2047x2047 nn bf16 at 0.200" in block
    assert "| 1000x1000x1000 nt bf16 |" in readme_table.all_block(result)


def test_table_of_results_without_figures(readme_table, result):
    for row in result["rows"]:
        row.update(ours_ms=None, rel_err=None, metrics={"tflops": None}, variant=None)
    block = readme_table.all_block(result)
    assert "| 4096x4096x4096 nt bf16 | - | - | - | - | - | - | 1.7e-03 |" in block
    assert "No case has a steady figure" in block


def test_pages_are_rewritten_and_checked(readme_table, result, tmp_path, capsys):
    for name, block, _ in readme_table.PAGES:
        page = tmp_path / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"head\n<!-- {block}:begin -->\nold\n<!-- {block}:end -->\ntail\n")
    figures = tmp_path / "gemm.json"
    figures.write_text(json.dumps(result))
    common = ["--root", str(tmp_path), "--json", str(figures)]
    assert readme_table.main([*common, "--check"]) == 1
    assert "README.md is stale" in capsys.readouterr().out
    assert "old" in (tmp_path / "README.md").read_text()
    assert readme_table.main(common) == 0 and readme_table.main([*common, "--check"]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("head\n") and text.endswith("tail\n") and "old" not in text
    assert "| 4096x4096x4096 nt bf16 |" in text

    result["rows"][0]["ours_ms"] = 0.1  # other figures make the pages stale
    figures.write_text(json.dumps(result))
    assert readme_table.main([*common, "--check"]) == 1

    figures.unlink()  # nobody has measured yet
    assert readme_table.main(common) == 0
    assert "`make bench` measures them" in (tmp_path / "README.md").read_text()


def test_a_page_without_its_block_is_an_error(readme_table):
    for page in ("", "<!-- x:begin -->", "<!-- x:end --><!-- x:begin -->", "<!-- x:begin -->" * 2):
        with pytest.raises(ValueError, match="expected one block"):
            readme_table.replace(page, "x", "content")
