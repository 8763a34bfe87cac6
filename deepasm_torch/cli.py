"""``python -m deepasm_torch`` and ``deepasm``: one front for every tool of the package.

A command is a row of ``COMMANDS``: a name, a line of help and the module that implements it. That
module has ``configure(parser)``, which adds its arguments, and ``execute(args)``, which returns an
:class:`Outcome`. Modules are imported when their command runs, so ``info`` works where others
cannot even be imported.

Exit codes: 0 clean, 1 findings (something was found wrong), 2 cannot run (usage, no GPU, ...).
With ``--json`` the only output on stdout is one object::

    {"command": "bench gemm", "ok": true, "exit_code": 0, "version": "0.1.0",
     "data": {...}, "errors": []}
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence

from ._version import __version__

CLEAN, FINDINGS, CANNOT_RUN = 0, 1, 2


@dataclasses.dataclass
class Outcome:
    """What a command hands back.

    Attributes
    ----------
    data : object
        Anything ``json`` can write; the envelope's ``data``.
    text : str
        What a person reads on stdout.
    errors : list of str
        Findings, or why the command could not run; stderr shows them to a person.
    exit_code : int
        Findings if there are errors, unless the command says otherwise.
    """

    data: object = None
    text: str = ""
    errors: list[str] = dataclasses.field(default_factory=list)
    exit_code: int | None = None

    def __post_init__(self):
        if self.exit_code is None:
            self.exit_code = FINDINGS if self.errors else CLEAN


class CannotRun(Exception):
    """Raised by a command that is missing something; the text says what and what to do."""


@dataclasses.dataclass(frozen=True)
class Command:
    summary: str
    module: str = ""
    subcommands: dict[str, Command] = dataclasses.field(default_factory=dict)


COMMANDS: dict[str, Command] = {
    "info": Command("versions, devices, kernels, and what is broken", "deepasm_torch.info"),
    "lint": Command("check PTX and its machine code, without a GPU", "deepasm_torch.lint.command"),
    "bench": Command(
        "measure the operators beside the libraries they replace",
        subcommands={
            "gemm": Command("matrix products: cuBLAS, Triton, ...", "deepasm_torch.bench.gemm"),
        },
    ),
    "verify": Command(
        "run the kernels' PTX without a GPU, against float64; or plant bugs in it",
        "deepasm_torch.verify.command",
    ),
    "emulate": Command("run a PTX file on NumPy arrays", "deepasm_torch.verify.ptx_file"),
}


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, so that usage errors get an envelope too."""

    def error(self, message: str):
        raise CannotRun(f"{message}\n{self.format_usage().rstrip()}")


def _build(words: Sequence[str]) -> _Parser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS,
        help="print one JSON object on stdout and nothing else",
    )  # fmt: skip
    parser = _Parser(prog="deepasm", description=__doc__.split("\n\n")[0], parents=[shared])
    parser.add_argument("--version", action="version", version=f"deepasm_torch {__version__}")
    _add(parser, COMMANDS, shared, words, ())
    return parser


def _add(parser, commands: dict[str, Command], shared, words, path: tuple[str, ...]) -> None:
    group = parser.add_subparsers(dest=f"command{len(path)}", metavar="COMMAND", required=True)
    group._parser_class = _Parser
    for name, command in commands.items():
        child = group.add_parser(
            name, help=command.summary, description=command.summary, parents=[shared]
        )
        here = (*path, name)
        if command.subcommands:
            _add(child, command.subcommands, shared, words, here)
            continue
        child.set_defaults(_path=here, _module=command.module)
        # Only the command that was asked for is imported, for its arguments.
        if [word for word in words if not word.startswith("-")][: len(here)] == list(here):
            importlib.import_module(command.module).configure(child)


def run(argv: Sequence[str]) -> tuple[str, Outcome]:
    """Parse and execute; never raises for anything a command does.

    Returns
    -------
    (str, Outcome)
        The command's full name ("bench gemm"), and its outcome.
    """
    words = [word for word in argv if not word.startswith("-")]
    name = " ".join(_known(words))
    try:
        args = _build(argv).parse_args(argv)
        name = " ".join(args._path)
        args.json = getattr(args, "json", False)
        return name, importlib.import_module(args._module).execute(args)
    except CannotRun as error:
        return name, Outcome(errors=[str(error)], exit_code=CANNOT_RUN)
    except KeyboardInterrupt:
        return name, Outcome(errors=["interrupted"], exit_code=CANNOT_RUN)
    except Exception as error:
        if "--json" not in argv:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return name, Outcome(errors=[text], exit_code=CANNOT_RUN)


def _known(words: Sequence[str]) -> list[str]:
    """The leading words that name a command, for envelopes of calls that do not parse."""
    known, level = [], COMMANDS
    for word in words:
        if word not in level:
            break
        known.append(word)
        level = level[word].subcommands
    return known


def envelope(name: str, outcome: Outcome) -> dict:
    return {
        "command": name,
        "ok": outcome.exit_code == CLEAN,
        "exit_code": outcome.exit_code,
        "version": __version__,
        "data": outcome.data,
        "errors": outcome.errors,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``deepasm`` and ``python -m deepasm_torch``."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name, outcome = run(argv)
    try:
        if "--json" in argv:
            print(json.dumps(envelope(name, outcome), indent=1, default=str))
        elif outcome.text:
            print(outcome.text)
        sys.stdout.flush()
    except BrokenPipeError:  # `deepasm info | head`: nobody reads on, and that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if "--json" not in argv:
        for error in outcome.errors:
            print(f"deepasm {name}: {error}" if name else f"deepasm: {error}", file=sys.stderr)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
