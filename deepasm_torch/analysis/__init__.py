"""What the tool chain made of a PTX text: resources, notes and machine code, per kernel.

Needs ptxas, and nvdisasm for machine code; no GPU and no torch.
"""

from .assembly import Assembly, Note, Resources, assemble
from .disassembly import SassInstruction, disassemble, find_nvdisasm

__all__ = [
    "Assembly",
    "Note",
    "Resources",
    "SassInstruction",
    "assemble",
    "disassemble",
    "find_nvdisasm",
]
