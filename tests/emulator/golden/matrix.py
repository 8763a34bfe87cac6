"""ldmatrix and stmatrix, plain and transposed, from rows in any order."""

from __future__ import annotations

import numpy as np

from .case import Case, add, entry, pointers, rng, whole

for _num in (1, 2, 4):
    for _trans in ("", ".trans"):
        _regs = "{" + ", ".join(f"%r{10 + k}" for k in range(_num)) + "}"
        _params, _loads = pointers("out", "x", "row")
        _stores = "\n".join(f"st.global.b32 [%d21 + {128 * k}], %r{10 + k};" for k in range(_num))
        _body = f"""
{_loads}
mov.u32 %r50, %tid.x;
mov.u32 %r51, buf;
mul.wide.u32 %d20, %r50, 4;
add.u64 %d21, %d1, %d20;
add.u64 %d22, %d3, %d20;
shl.b32 %r5, %r50, 5;
add.u32 %r6, %r51, %r5;
mul.wide.u32 %d23, %r50, 32;
add.u64 %d23, %d2, %d23;
ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d23];
st.shared.v4.u32 [%r6], {{%r1, %r2, %r3, %r4}};
ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d23 + 16];
st.shared.v4.u32 [%r6 + 16], {{%r1, %r2, %r3, %r4}};
bar.sync 0;
ld.global.u32 %r7, [%d22];
shl.b32 %r7, %r7, 4;
add.u32 %r7, %r51, %r7;
ldmatrix.sync.aligned.m8n8.x{_num}{_trans}.shared.b16 {_regs}, [%r7];
{_stores}
bar.sync 0;
stmatrix.sync.aligned.m8n8.x{_num}{_trans}.shared.b16 [%r7], {_regs};
stmatrix.sync.aligned.m8n8.x{_num}.shared.b16 [%r7 + 1024], {_regs};
bar.sync 0;
mul.wide.u32 %d23, %r50, 64;
add.u64 %d21, %d1, %d23;
add.u32 %r6, %r6, %r5;
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r6];
st.global.v4.u32 [%d21 + 512], {{%r1, %r2, %r3, %r4}};
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r6 + 16];
st.global.v4.u32 [%d21 + 528], {{%r1, %r2, %r3, %r4}};
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r6 + 32];
st.global.v4.u32 [%d21 + 544], {{%r1, %r2, %r3, %r4}};
ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r6 + 48];
st.global.v4.u32 [%d21 + 560], {{%r1, %r2, %r3, %r4}};
"""
        # the second kilobyte starts as zeros, written before the first barrier
        _body = _body.replace(
            "bar.sync 0;",
            "mov.u32 %r8, 0;\nst.shared.v4.u32 [%r6 + 1024], {%r8, %r8, %r8, %r8};\n"
            "st.shared.v4.u32 [%r6 + 1040], {%r8, %r8, %r8, %r8};\nbar.sync 0;",
            1,
        )
        _r = rng(f"ldmatrix {_num}{_trans}")
        _out = np.zeros(128 + 512, np.uint32)
        add(
            Case(
                f"ldmatrix stmatrix x{_num}{_trans}",
                entry(_body, _params, ".shared .align 16 .b8 buf[2048];"),
                {
                    "out": _out,
                    "x": np.arange(512, dtype=np.uint16),
                    "row": _r.permutation(64)[:32].astype(np.uint32),
                },
                ["out", "x", "row"],
                [whole("out", _out)],
            )
        )
