"""Clusters: numbering, distributed shared memory, multicast."""

from __future__ import annotations

import numpy as np

from . import pieces
from .case import Case, Map, add, entry, rng, whole
from .copies import pattern

REGS = ["%cluster_ctarank", "%cluster_nctarank", "%cluster_ctaid.x", "%cluster_ctaid.y",
        "%cluster_nctaid.x", "%cluster_nctaid.y", "%clusterid.x", "%clusterid.y", "%nclusterid.x",
        "%nclusterid.y", "%ctaid.x", "%ctaid.y", "%nctaid.x", "%nctaid.y", "%ntid.x"]  # fmt: skip


def numbering(name, grid, cluster):
    """Every CTA's own registers, the rank of each peer's shared address, low bits of mapa."""
    n = len(REGS)
    body = """
ld.param.u64 %d1, [out];
mov.u32 %r40, %ctaid.y;
mov.u32 %r41, %nctaid.x;
mov.u32 %r42, %ctaid.x;
mad.lo.u32 %r40, %r40, %r41, %r42;
"""
    body += f"mul.wide.u32 %d2, %r40, {4 * (n + 4)};\nadd.u64 %d1, %d1, %d2;\n"
    for k, x in enumerate(REGS):
        body += f"mov.u32 %r1, {x};\nst.global.u32 [%d1 + {4 * k}], %r1;\n"
    body += f"""
mov.u32 %r2, buf;
mov.u32 %r4, %cluster_nctarank;
sub.u32 %r4, %r4, 1;
mapa.shared::cluster.u32 %r3, %r2, %r4;
getctarank.shared::cluster.u32 %r5, %r3;
st.global.u32 [%d1 + {4 * n}], %r5;
xor.b32 %r6, %r3, %r2;
st.global.u32 [%d1 + {4 * n + 4}], %r3;
mapa.shared::cluster.u32 %r3, %r2, 0;
st.global.u32 [%d1 + {4 * n + 8}], %r3;
and.b32 %r7, %r2, 0xffffff;
st.global.u32 [%d1 + {4 * n + 12}], %r7;
"""
    gx, gy = grid
    out = np.zeros(gx * gy * (n + 4), np.uint32)
    text = entry(body, [".u64 out"], ".shared .align 16 .b8 buf[16];")
    shape = {"grid": (*grid, 1), "cluster": (*cluster, 1), "block": 1}
    add(Case(name, text, {"out": out}, ["out"], [whole("out", out)], **shape))


numbering("cluster of 1", (3, 2), (1, 1))
numbering("cluster of 2", (4, 2), (2, 1))
numbering("cluster of 2 x 2", (4, 4), (2, 2))
numbering("cluster of 8", (8, 1), (8, 1))

HEAD = """
ld.param.u64 %d1, [out];
ld.param.u64 %d2, [x];
mov.u32 %r30, %cluster_ctarank;
mov.u32 %r31, %cluster_nctarank;
mov.u32 %r49, %ctaid.x;
add.u32 %r32, %r30, 1;
rem.u32 %r32, %r32, %r31;
"""
#: what each CTA of 32 threads does to its neighbour's buffer (address %r8, mbarrier %r7; value %r9)
SENDS = {
    "st": ("st.shared::cluster.u32 [%r8], %r9;\n", 0),
    "st.v4": ("shl.b32 %r12, %r50, 4;\nmapa.shared::cluster.u32 %r13, %r2, %r32;\n"
              "add.u32 %r13, %r13, %r12;\nmov.u32 %r15, %r50;\n"
              "st.shared::cluster.v4.u32 [%r13], {%r9, %r15, %r9, %r30};\n", 0),
    "st.u8": ("st.shared::cluster.u8 [%r8], %r9;\n", 0),
    "atom.add": ("atom.shared::cluster.add.u32 %r10, [%r8], %r9;\nst.shared.u32 [%r6 + 512], "
                 "%r10;\n", 0),
    "atom.min.s32": ("atom.shared::cluster.min.s32 %r10, [%r8], %r9;\nst.shared.u32 [%r6 + 512], "
                     "%r10;\n", 0),
    "red.xor": ("red.shared::cluster.xor.b32 [%r8], %r9;\n", 0),
    "st.async u32": ("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r8], %r9, "
                     "[%r7];\n", 128),
    "st.async u64": ("mov.b64 %d5, {%r9, %r50};\nshl.b32 %r12, %r50, 3;\n"
                     "mapa.shared::cluster.u32 %r13, %r2, %r32;\nadd.u32 %r13, %r13, %r12;\n"
                     "st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%r13], %d5, "
                     "[%r7];\n", 256),
    "st.async v4": ("shl.b32 %r12, %r50, 4;\nmapa.shared::cluster.u32 %r13, %r2, %r32;\n"
                    "add.u32 %r13, %r13, %r12;\n"
                    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%r13], "
                    "{%r9, %r50, %r30, %r9}, [%r7];\n", 512),
    **{
        f"red.async {op}": (
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
            f".{op} [%r8], %r9, [%r7];\n", 128)
        for op in ("add.u32", "add.s32", "min.u32", "max.s32", "inc.u32", "dec.u32", "and.b32",
                   "or.b32", "xor.b32")
    },
    "red.async add.u64": (
        "mov.b64 %d5, {%r9, %r50};\nshl.b32 %r12, %r50, 3;\n"
        "mapa.shared::cluster.u32 %r13, %r2, %r32;\nadd.u32 %r13, %r13, %r12;\n"
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%r13], "
        "%d5, [%r7];\n", 256),
    "bulk": ("mov.u32 %r12, other;\nadd.u32 %r13, %r12, %r5;\nst.shared.u32 [%r13], %r9;\n"
             "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
             "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], "
             "[%r12], 128, [%r7];\n", 128),
}  # fmt: skip
for _name, (_send, _bytes) in SENDS.items():
    for _ctas in (2, 4):
        _wait = pieces.wait() if _bytes else "mov.u32 %r55, 7;\n"
        _body = (
            HEAD
            + pieces.start(1024)
            + f"""
shl.b32 %r5, %r50, 2;
add.u32 %r6, %r2, %r5;
mad.lo.u32 %r11, %r49, 32, %r50;
mul.wide.u32 %d4, %r11, 4;
add.u64 %d4, %d2, %d4;
ld.global.u32 %r9, [%d4];
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {_bytes};
mapa.shared::cluster.u32 %r7, %r1, %r32;
mapa.shared::cluster.u32 %r8, %r6, %r32;
{pieces.CLUSTER_SYNC}
{_send}
{_wait}
{pieces.CLUSTER_SYNC}
"""
            + pieces.dump(1024)
        )
        _out = np.zeros(_ctas * 2 * 1040, np.uint8)
        _x = rng(f"dsmem {_name}").integers(0, 1 << 32, 64 * _ctas, np.uint64).astype(np.uint32)
        add(
            Case(
                f"dsmem {_name} in a cluster of {_ctas}",
                entry(_body, [".u64 out", ".u64 x"],
                      pieces.SHARED.format(size=1024) + ".shared .align 128 .b8 other[128];\n"),
                {"out": _out, "x": _x}, ["out", "x"], [whole("out", _out)],
                grid=2 * _ctas, cluster=_ctas,
            )
        )  # fmt: skip
# a read of the neighbour's memory
_body = (
    HEAD
    + pieces.start(512)
    + f"""
shl.b32 %r5, %r50, 4;
add.u32 %r6, %r2, %r5;
mad.lo.u32 %r11, %r49, 100, %r50;
st.shared.v4.u32 [%r6], {{%r11, %r30, %r50, %r49}};
{pieces.CLUSTER_SYNC}
mapa.shared::cluster.u32 %r8, %r6, %r32;
ld.shared::cluster.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r8];
{pieces.CLUSTER_SYNC}
st.shared.v4.u32 [%r6], {{%r20, %r21, %r22, %r23}};
mov.u32 %r55, 7;
bar.sync 0;
"""
    + pieces.dump(512)
)
_out = np.zeros(4 * 528, np.uint8)
add(Case("dsmem ld in a cluster of 4", entry(_body, [".u64 out", ".u64 x"],
                                             pieces.SHARED.format(size=512)),
         {"out": _out, "x": np.zeros(4, np.uint32)}, ["out", "x"], [whole("out", _out)], grid=4,
         cluster=4))  # fmt: skip

# ---------------------------------------------------------------------------- multicast
for _ctas in (2, 4):
    for _mask in (3, 2) if _ctas == 2 else (0b1010, 0b1111):
        for _kind in ("tile", "bulk", "im2col"):
            if _kind == "bulk":
                _op = ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                       ".multicast::cluster [%r3], [%d2], 512, [%r1], %h1;")  # fmt: skip
            else:
                _dims = 2 if _kind == "tile" else 4
                _where = "{%r33, %r34}" if _kind == "tile" else "{%r33, %r34, %r33, %r33}"
                _more = "" if _kind == "tile" else ", {%h2, %h2}"
                _op = (f"cp.async.bulk.tensor.{_dims}d.shared::cluster.global.{_kind}"
                       ".mbarrier::complete_tx::bytes.multicast::cluster "
                       f"[%r3], [%d6, {_where}], [%r1]{_more}, %h1;")  # fmt: skip
            _body = (
                "mov.b64 %d6, m;\ncvta.param.u64 %d6, %d6;\n"
                + HEAD
                + pieces.start(1024)
                + f"""
mov.u32 %r33, 0;
mov.u32 %r34, 2;
mov.u16 %h1, {_mask};
mov.u16 %h2, 1;
add.u32 %r3, %r2, 256;
shr.u32 %r35, {_mask}, %r30;
and.b32 %r35, %r35, 1;
mul.lo.u32 %r36, %r35, 512;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r36;
{pieces.CLUSTER_SYNC}
setp.eq.u32 %p2, %r30, {_ctas - 1};
and.pred %p3, %p1, %p2;
@%p3 {_op}
{pieces.wait()}
{pieces.CLUSTER_SYNC}
"""
                + pieces.dump(1024)
            )
            _body = _body.replace(f"shr.u32 %r35, {_mask}, %r30;",
                                  f"mov.u32 %r35, {_mask};\nshr.u32 %r35, %r35, %r30;")  # fmt: skip
            _out = np.zeros(_ctas * 1040, np.uint8)
            if _kind == "im2col":
                _record = {"dtype": "uint16", "dims": (8, 9, 7, 2), "strides": (16, 144, 1008),
                           "mode": "im2col", "lower": (0, 0), "upper": (-1, -1), "channels": 8,
                           "pixels": 32, "elem_strides": (1, 1, 1, 1)}  # fmt: skip
            else:
                _record = {"dtype": "uint16", "dims": (32, 32), "strides": (64,), "box": (32, 8),
                           "swizzle": 64}  # fmt: skip
            add(
                Case(
                    f"multicast {_kind} to {_mask:#b} of {_ctas}",
                    entry(_body, [".align 64 .b8 m[128]", ".u64 out", ".u64 x"],
                          pieces.SHARED.format(size=1024)),
                    {"x": pattern(2048), "out": _out}, [Map("x", _record), "out", "x"],
                    [whole("out", _out)], grid=_ctas, cluster=_ctas,
                )
            )  # fmt: skip
