"""Read the dynamic section of a 64-bit little-endian ELF file: what it needs and what it imports.

A few lines of struct, because binutils need not be installed where the tests run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name type flags addr offset size link info align entsize
_SYMBOL = struct.Struct("<IBBHQQ")  # name info other section value size
_DYNAMIC, _DYNSYM, _VERNEED = 6, 11, 0x6FFFFFFE
_DT_NEEDED = 1
_WEAK = 2


@dataclass(frozen=True)
class Elf:
    needed: tuple[str, ...]  # shared libraries
    imported: frozenset[str]  # undefined symbols
    weak: frozenset[str]  # those of them that may be missing
    versions: frozenset[str]  # such as GLIBC_2.17, GLIBCXX_3.4.21


def read_elf(path: str | Path) -> Elf:
    data = Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, offset + i * size) for i in range(count)]

    def text(section, at):
        start = sections[section][4] + at
        return data[start : data.index(b"\0", start)].decode()

    needed, imported, weak, versions = [], set(), set(), set()
    for _, kind, _, _, start, length, link, info, _, _ in sections:
        if kind == _DYNAMIC:
            for at in range(start, start + length, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == _DT_NEEDED:
                    needed.append(text(link, value))
        elif kind == _DYNSYM:
            for at in range(start + _SYMBOL.size, start + length, _SYMBOL.size):
                name, bind, _, section, _, _ = _SYMBOL.unpack_from(data, at)
                if section == 0:
                    imported.add(text(link, name))
                    if bind >> 4 == _WEAK:
                        weak.add(text(link, name))
        elif kind == _VERNEED:
            at = start
            for _ in range(info):
                _, entries, _, aux, step = struct.unpack_from("<HHIII", data, at)
                inner = at + aux
                for _ in range(entries):
                    _, _, _, name, next_aux = struct.unpack_from("<IHHII", data, inner)
                    versions.add(text(link, name))
                    inner += next_aux
                at += step
    return Elf(tuple(needed), frozenset(imported), frozenset(weak), frozenset(versions))
