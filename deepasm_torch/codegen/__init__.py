"""From template to machine code: render, assemble with ptxas, check its report, embed.

Needs Jinja2 and a ptxas; neither torch nor the compiled extension, because the build imports this
package first.
"""

from .build import build
from .ptxas import Assembler, AssemblyError, find_ptxas
from .render import render, template_root

__all__ = ["Assembler", "AssemblyError", "build", "find_ptxas", "render", "template_root"]
