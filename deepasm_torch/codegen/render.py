"""Render PTX templates.

The templates are Jinja2 with delimiters that PTX does not use, so that what one reads is PTX:

    # for s in range(stages)          a line statement
    ld.param.u32 %m, [params + ${P.m}];   an expression
    ## note                           a template comment

Every instruction can carry a marker `//@ file:line` that names the template line a person wrote;
the emulator reports it.  Shipped text has neither markers nor comments.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import jinja2

from ..kernels import params

_INSTRUCTION = re.compile(r"^\s*(?!#|//).*;\s*(//.*)?$")
_MARKER = re.compile(r"\s*//@ [^\n]*$")
_COMMENT = re.compile(r"\s*//[^\n]*$")


def template_root() -> Path:
    """Folder of the templates: ptx/ in a source tree, deepasm_torch/_ptx when installed.

    Raises
    ------
    FileNotFoundError
        If neither exists, which means a broken installation.
    """
    package = Path(__file__).resolve().parent.parent
    for root in (package.parent / "ptx", package / "_ptx"):
        if (root / "sm90").is_dir():
            return root
    raise FileNotFoundError(
        f"no PTX templates at {package.parent / 'ptx'} or {package / '_ptx'}; "
        "reinstall deepasm_torch"
    )


class _MarkingLoader(jinja2.BaseLoader):
    """Load templates from `root`, adding `//@ file:line` to every line that ends an instruction."""

    def __init__(self, root: Path):
        self.root = root

    def get_source(self, environment, template):
        path = self.root / template
        if not path.is_file():
            raise jinja2.TemplateNotFound(template)
        lines = path.read_text(encoding="utf-8").split("\n")
        marked = [
            f"{line} //@ {template}:{number}" if _INSTRUCTION.match(line) else line
            for number, line in enumerate(lines, 1)
        ]
        mtime = os.path.getmtime(path)
        return "\n".join(marked), str(path), lambda: os.path.getmtime(path) == mtime


@functools.cache
def _environment(root: Path) -> jinja2.Environment:
    env = jinja2.Environment(
        loader=_MarkingLoader(root),
        line_statement_prefix="#",
        line_comment_prefix="##",
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    env.globals.update(
        P=params.layout(),
        FLAG={name: ((1 << width) - 1) << bit for name, (bit, width) in params.GEMM_FLAGS.items()},
        FLAG_BIT={name: bit for name, (bit, _) in params.GEMM_FLAGS.items()},
        range=range,
        hex=hex,
    )
    return env


def render(kernel, *, markers: bool = False, root: Path | None = None) -> str:
    """PTX text of one row of the kernel tables.

    Parameters
    ----------
    kernel
        A row such as `kernels.gemm.KERNELS[0]`.
    markers : bool
        Keep comments and add `//@ template:line` to each instruction; otherwise the text is what
        ships: no comments, no blank lines.
    root : Path, optional
        Template folder, by default `template_root()`.

    Returns
    -------
    str
    """
    template = _environment(root or template_root()).get_template(kernel.template)
    text = template.render(kernel=kernel, **kernel.values)
    lines = text.split("\n")
    if not markers:
        lines = [_COMMENT.sub("", _MARKER.sub("", line)) for line in lines]
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"
