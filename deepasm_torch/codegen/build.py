"""Render and assemble every row of the kernel tables and write what C++ embeds."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .. import kernels
from ..kernels import params
from .ptxas import Assembler, Report
from .render import render

#: tier -> targets whose cubins are embedded.  sm_80 code runs on every 8.x GPU; the sm80 kernels
#: are also assembled for Hopper, where they serve what the sm90 kernels cannot take.
CUBIN_TARGETS = {90: ("sm_90a",), 80: ("sm_80", "sm_90")}
CUBIN, PTX = 0, 1


@dataclass(frozen=True)
class Image:
    """One embedded form of a kernel."""

    arch: int  # 90 for sm_90 and sm_90a
    suffix: str  # 'a' when the code runs on exactly this architecture, else ''
    kind: int  # CUBIN or PTX
    data: bytes


@dataclass(frozen=True)
class Assembled:
    kernel: object
    registers: int
    images: tuple[Image, ...]


def _load_cached(cubin: Path, facts: Path) -> tuple[bytes, Report] | None:
    """A complete cache entry; a damaged one is reported and assembled again."""
    if not (cubin.is_file() and facts.is_file()):
        return None
    try:
        data, stored = cubin.read_bytes(), json.loads(facts.read_text())
        if hashlib.sha256(data).hexdigest() != stored.pop("sha256"):
            raise ValueError("its checksum differs")
        return data, Report(**{**stored, "notes": tuple(stored["notes"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(f"{cubin} is damaged ({error}); it is assembled again", stacklevel=2)
        return None


def _cached_assemble(assembler: Assembler, cache: Path, text: str, target: str, kernel):
    """Assemble, or take cubin and report from `cache` when text, target and ptxas are the same."""
    inputs = "\0".join([assembler.version, target, str(kernel.max_regs), text])
    key = hashlib.sha256(inputs.encode()).hexdigest()
    cubin, facts = cache / f"{key}.cubin", cache / f"{key}.json"
    stored = _load_cached(cubin, facts)
    if stored is not None:
        return stored
    data, report = assembler.assemble(text, target, name=kernel.name, max_regs=kernel.max_regs)
    stored = {**report.__dict__, "sha256": hashlib.sha256(data).hexdigest()}
    for path, content in ((cubin, data), (facts, json.dumps(stored).encode())):
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(path)
    return data, report


def assemble_kernel(kernel, assembler: Assembler, cache: Path) -> Assembled:
    """Render one row and assemble it for each embedded target of its tier."""
    text = render(kernel)
    images, registers = [], 0
    for target in CUBIN_TARGETS[kernel.tier]:
        data, report = _cached_assemble(assembler, cache, text, target, kernel)
        registers = max(registers, report.registers)
        arch = target.removeprefix("sm_")
        images.append(Image(int(arch.rstrip("af")), arch.lstrip("0123456789"), CUBIN, data))
    arch = 90 if kernel.tier == 90 else 80
    images.append(Image(arch, "a" if kernel.tier == 90 else "", PTX, text.encode() + b"\0"))
    return Assembled(kernel, registers, tuple(images))


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _kernel_row(item: Assembled, first_image: int) -> str:
    k = item.kernel
    dtype = kernels.gemm.DTYPES[k.dtype]
    return (
        f'{{"{k.name}", "{k.op}", {k.tier}, {dtype}, '
        f"'{k.a_major}', '{k.b_major}', '{k.d_major}', "
        f'"{k.schedule}", {k.bm}, {k.bn}, {k.bk}, {k.stages}, {k.threads}, {k.cluster}, {k.smem}, '
        f'{item.registers}, "{k.loads}", {first_image}, {len(item.images)}}},\n'
    )


def build(
    out_dir: str | os.PathLike,
    jobs: int = 2,
    ptxas: str | os.PathLike | None = None,
    table=None,
) -> dict:
    """Assemble the kernel tables into `out_dir`.

    Writes `kernels.blob` (raw-deflate streams), `kernel_table.inc`, `image_table.inc`,
    `gemm_params.h` and `kernels.json` (what was assembled by what).  Cubins are cached in
    `out_dir/cache` by their text, target and ptxas version, so that touching a template assembles
    only its own kernels again.

    Parameters
    ----------
    out_dir : path
    jobs : int
        ptxas processes at a time.
    ptxas : path, optional
        Overrides the search order.
    table : sequence, optional
        Rows to build, by default every shipped kernel.

    Returns
    -------
    dict
        The content of `kernels.json`.

    Raises
    ------
    AssemblyError, FileNotFoundError
    """
    table = kernels.ALL if table is None else table
    out = Path(out_dir)
    cache = out / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    assembler = Assembler(ptxas)
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        items = list(pool.map(lambda k: assemble_kernel(k, assembler, cache), table))

    blob, image_rows, kernel_rows = bytearray(), [], []
    for item in items:
        kernel_rows.append(_kernel_row(item, len(image_rows)))
        for image in item.images:
            packed = _deflate(image.data)
            suffix = f"'{image.suffix}'" if image.suffix else "0"
            sizes = f"{len(blob)}, {len(packed)}, {len(image.data)}"
            image_rows.append(f"{{{image.arch}, {suffix}, {image.kind}, {sizes}}},\n")
            blob += packed
    summary = {
        "ptxas": assembler.version,
        "kernels": {
            i.kernel.name: {"registers": i.registers, "smem": i.kernel.smem} for i in items
        },
    }
    version = f'constexpr const char* kPtxasVersion = "{assembler.version}";\n'
    for name, content in (
        ("kernels.blob", bytes(blob)),
        ("kernel_table.inc", "".join(kernel_rows).encode()),
        ("image_table.inc", "".join(image_rows).encode()),
        ("ptxas_version.inc", version.encode()),
        ("gemm_params.h", params.c_header().encode()),
        ("kernels.json", json.dumps(summary, indent=1).encode()),
    ):
        path = out / name
        if not path.is_file() or path.read_bytes() != content:  # keep mtimes for the compiler
            path.write_bytes(content)
    return summary
