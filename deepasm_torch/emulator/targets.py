"""What an instruction needs: the least target and PTX version. Checked when a program is loaded.

Kept to the instructions that depend on a target newer than sm_70; ptxas remains the authority.
"""

import re

#: opcode pattern -> (least sm, needs an architecture-specific target "a", least PTX version)
NEEDS = (
    (r"wgmma\.", 90, "sm_90a", (8, 0)),
    (r"setmaxnreg\.", 90, "a", (8, 0)),
    (r"tensormap\.replace", 90, "a", (8, 3)),
    (r"fence\.proxy\.tensormap", 90, "", (8, 3)),
    (r"cp\.(?:reduce\.)?async\.bulk", 90, "", (8, 0)),
    (r"cp\.async", 80, "", (7, 0)),
    (r"mbarrier\.(?:try_wait|expect_tx|complete_tx)", 90, "", (8, 0)),
    (r"mbarrier\.", 80, "", (7, 0)),
    (r"barrier\.cluster", 90, "", (7, 8)),
    (r"(?:mapa|getctarank|st\.async|elect)\b", 90, "", (7, 8)),
    (r"griddepcontrol", 90, "", (7, 8)),
    (r"fence\.proxy\.async", 90, "", (8, 0)),
    (r"stmatrix\.", 90, "", (7, 8)),
    (r"(?:ldmatrix|movmatrix)\.", 75, "", (6, 5)),
    (r"redux\.", 80, "", (7, 0)),
    (r"mma(?:\.sp\S*)?\.sync\S*\.(?:e4m3|e5m2)", 89, "", (8, 4)),
    (r"mma(?:\.sp\S*)?\.sync\S*\.(?:bf16|tf32)", 80, "", (7, 0)),
    (r"mma\.sync\S*m16n8k(?:16|32)", 80, "", (7, 0)),
    (r"mma\.sp", 80, "", (7, 1)),
    (r"cvt\S*\.(?:e4m3x2|e5m2x2)", 89, "", (8, 1)),
    (r"cvt\S*\.(?:bf16x2|bf16|tf32)\b", 80, "", (7, 0)),
    (r"(?:atom|red)\S*\.v[24]\.", 90, "", (8, 1)),
    (r"\S+\.bf16x2", 80, "", (7, 0)),
)
_TABLE = [(re.compile(p), *rest) for p, *rest in NEEDS]
_TARGET = re.compile(r"sm_(\d+)([af]?)")


def problems(module, instructions):
    """(line, column, message) for each opcode that the text's target or version does not have."""
    m = _TARGET.match(module.target or "")
    if not m:
        return []
    sm, suffix = int(m.group(1)), m.group(2)
    version = tuple(int(x) for x in re.findall(r"\d+", module.version or "99.0"))[:2]
    out, known = [], {}
    for ins in instructions:
        if ins.op not in known:
            known[ins.op] = _problem(ins.op, sm, suffix, version, m.group())
        if known[ins.op]:
            out.append((ins.line, ins.col, known[ins.op]))
    return out


def _problem(op, sm, suffix, version, target):
    for pattern, least, special, ptx in _TABLE:
        if not pattern.match(op):
            continue
        need = special if special.startswith("sm_") else f"sm_{least}{special}"
        right = sm >= least and (not special or suffix)
        if special.startswith("sm_"):
            right = target == special
        if not right:
            more = "" if special.startswith("sm_") else " or later"
            return f"{op} needs .target {need}{more}, the text says {target}"
        if version < ptx:
            return (
                f"{op} needs .version {ptx[0]}.{ptx[1]} or later, the text says"
                f" {version[0]}.{version[1]}"
            )
        return None
    return None
