"""Which target and PTX version an instruction needs: the emulator's table and the rest of the ISA.

Found by assembling one-instruction kernels for every target of ptxas 13.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..emulator import targets as emulated

#: PTX versions that exist
VERSIONS = (
    (6, 3), (6, 4), (6, 5), (7, 0), (7, 1), (7, 2), (7, 3), (7, 4), (7, 5), (7, 6), (7, 7), (7, 8),
    (8, 0), (8, 1), (8, 2), (8, 3), (8, 4), (8, 5), (8, 6), (8, 7), (8, 8), (9, 0),
)  # fmt: skip
#: first PTX version that knows a target
TARGET_VERSION = {
    "sm_75": (6, 3), "sm_80": (7, 0), "sm_86": (7, 1), "sm_87": (7, 4), "sm_88": (9, 0),
    "sm_89": (7, 8), "sm_90": (7, 8), "sm_90a": (8, 0), "sm_100": (8, 6), "sm_100a": (8, 6),
    "sm_100f": (8, 8), "sm_101": (8, 6), "sm_101a": (8, 6), "sm_101f": (8, 8), "sm_103": (8, 8),
    "sm_103a": (8, 8), "sm_103f": (8, 8), "sm_110": (9, 0), "sm_110a": (9, 0), "sm_110f": (9, 0),
    "sm_120": (8, 7), "sm_120a": (8, 7), "sm_120f": (8, 8), "sm_121": (8, 8), "sm_121a": (8, 8),
    "sm_121f": (8, 8),
}  # fmt: skip


@dataclass(frozen=True)
class Arch:
    """A target such as sm_90a: number 90, suffix 'a' (this chip only), 'f' (its family) or ''."""

    number: int
    suffix: str

    @classmethod
    def parse(cls, name: str | None) -> Arch | None:
        found = re.fullmatch(r"sm_(\d+)([af]?)", name or "")
        return cls(int(found[1]), found[2]) if found else None

    @property
    def family(self) -> int:
        return self.number // 10

    def runs(self, other: Arch) -> bool:
        """Whether PTX written for this target can be assembled for the other one."""
        if self.suffix == "a":
            return self == other
        if self.suffix == "f":
            return self.family == other.family and self.number <= other.number
        return self.number <= other.number


@dataclass(frozen=True)
class Need:
    """Opcodes that match `pattern` need a target that `fits`, and a PTX version."""

    pattern: re.Pattern
    fits: object
    target: str  # in words
    version: tuple[int, int]


def _least(n):
    return lambda a: a.number >= n


def _special(*families):
    return lambda a: a.suffix != "" and a.family in families


_TENSOR5 = "sm_100a, sm_103a or sm_110a (or their f families)"
_NEW_TYPES = "sm_100a, sm_103a, sm_110a, sm_120a or sm_121a (or their f families)"
NEEDS = tuple(
    Need(re.compile(pattern), fits, target, version)
    for pattern, fits, target, version in (
        (r"tcgen05\.", _special(10, 11), _TENSOR5, (8, 6)),
        (r"cp\.async\.bulk\.tensor\S*gather4", _special(10, 11), _TENSOR5, (8, 6)),
        (r"cp\.async\.bulk\S*\.shared::cta\.global", _least(90), "sm_90 or later", (8, 6)),
        (r"clusterlaunchcontrol\.", _least(100), "sm_100 or later", (8, 6)),
        (r"(?:add|sub|mul|fma)\S*\.f32x2", _least(100), "sm_100 or later", (8, 6)),
        (r"(?:ld|st)\.\S*(?:v8\.b32|v8\.f32|v4\.b64|v4\.f64)", _least(100), "sm_100 or later",
         (8, 8)),
        (r"st\.bulk", _least(100), "sm_100 or later", (8, 6)),
        (r"redux\.sync\S*\.f32", lambda a: a.suffix != "" and a.number in (100, 101, 103),
         "sm_100a or sm_103a", (8, 6)),
        (r"mma\S*kind::f8f6f4", _special(12), "sm_120a or sm_121a (or sm_120f)", (8, 7)),
        (r"cvt\S*\.e2m1x2", _special(10, 11, 12), _NEW_TYPES, (8, 6)),
        (r"ldmatrix\S*\.b8", _special(10, 11, 12), _NEW_TYPES, (8, 6)),
        (r"(?:red\.async|st\.async)", _least(90), "sm_90 or later", (8, 1)),
        (r"multimem\.", _least(90), "sm_90 or later", (8, 1)),
        (r"ex2\S*\.bf16", _least(90), "sm_90 or later", (7, 8)),
        (r"(?:createpolicy|applypriority|discard)\.", _least(80), "sm_80 or later", (7, 4)),
        (r"\S*\.L2::cache_hint", _least(80), "sm_80 or later", (7, 4)),
        (r"\S*\.L2::256B", _least(80), "sm_80 or later", (7, 4)),
        (r"prefetch\S*\.L2::evict", _least(80), "sm_80 or later", (7, 4)),
        (r"\S*\.(?:L1::|L2::)", _least(75), "sm_75 or later", (7, 4)),
        (r"(?:tanh|ex2)\.approx\S*\.f16", _least(75), "sm_75 or later", (7, 0)),
        (r"tanh\.approx", _least(75), "sm_75 or later", (7, 0)),
    )
)  # fmt: skip


def problem(op: str, target: str, version: tuple[int, int]) -> str | None:
    """Why `op` is not available for a target and version, or None."""
    arch = Arch.parse(target)
    if arch is None:
        return None
    known = emulated._problem(op, arch.number, arch.suffix, version, target)
    if known:
        return known
    for need in NEEDS:
        if not need.pattern.match(op):
            continue
        if not need.fits(arch):
            return f"{op} needs .target {need.target}, the text says {target}"
        if version < need.version:
            return (
                f"{op} needs .version {need.version[0]}.{need.version[1]} or later, the text says"
                f" {version[0]}.{version[1]}"
            )
    return None


def least_version(ops, target: str) -> tuple[int, int]:
    """The lowest PTX version that the tables know to suffice; the truth may be higher."""
    least = TARGET_VERSION.get(target, VERSIONS[0])
    for op in ops:
        for pattern, _, _, version in emulated._TABLE:
            if pattern.match(op):
                least = max(least, version)
                break
        least = max([least, *(n.version for n in NEEDS if n.pattern.match(op))])
    return least


#: first words of the instructions of PTX 9.0
OPCODES = frozenset(
    """
    abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev
    brkpt brx call clusterlaunchcontrol clz cnot copysign cos cp createpolicy cvt cvta discard div
    dp2a dp4a elect ex2 exit fence fma fns getctarank griddepcontrol isspacep istypep ld ldmatrix
    ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar min mma mov movmatrix mul mul24
    multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux rem ret rsqrt
    sad selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix
    sub subc suld suq sured sust szext tanh tcgen05 tensormap testp tex tld4 trap txq vabsdiff
    vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote
    vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma wmma xor
    """.split()
)
