"""PTX that the cases of the copy engine share. Registers: %r1 mbarrier, %r2 buffer, %r50 thread."""

SHARED = ".shared .align 1024 .b8 buf[{size}];\n.shared .align 8 .b64 bar;\n"


def start(size, count=1):
    """Fill the buffer with 0xAB bytes, initialise the mbarrier, meet."""
    return f"""
mov.u32 %r1, bar;
mov.u32 %r2, buf;
mov.u32 %r50, %tid.x;
mov.u32 %r51, %ntid.x;
shl.b32 %r51, %r51, 4;
mov.u32 %r52, 0xabababab;
shl.b32 %r53, %r50, 4;
prefill:
add.u32 %r54, %r2, %r53;
st.shared.v4.u32 [%r54], {{%r52, %r52, %r52, %r52}};
add.u32 %r53, %r53, %r51;
setp.lt.u32 %p9, %r53, {size};
@%p9 bra prefill;
setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], {count};
@%p1 fence.mbarrier_init.release.cluster;
fence.proxy.async.shared::cta;
bar.sync 0;
"""


def wait(parity=0, tag=""):
    """Wait for a phase, but not for ever: %r55 tells whether it completed.

    A wait that fails returns after some microseconds, so a wrong byte count costs milliseconds.
    """
    return f"""
mov.u32 %r56, 0;
wait{tag}:
mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r1], {parity};
@%p8 bra waited{tag};
add.u32 %r56, %r56, 1;
setp.lt.u32 %p9, %r56, 300;
@%p9 bra wait{tag};
waited{tag}:
selp.u32 %r55, 1, 0, %p8;
bar.sync 0;
"""


def dump(size, out="%d1", index="%r49"):
    """Store the buffer, then the wait's answer, to ``out + index * (size + 16)``."""
    return f"""
mul.wide.u32 %d30, {index}, {size + 16};
add.u64 %d30, {out}, %d30;
shl.b32 %r53, %r50, 4;
dump:
add.u32 %r54, %r2, %r53;
ld.shared.v4.u32 {{%r56, %r57, %r58, %r59}}, [%r54];
cvt.u64.u32 %d31, %r53;
add.u64 %d31, %d30, %d31;
st.global.v4.u32 [%d31], {{%r56, %r57, %r58, %r59}};
add.u32 %r53, %r53, %r51;
setp.lt.u32 %p9, %r53, {size};
@%p9 bra dump;
@%p1 st.global.u32 [%d30 + {size}], %r55;
"""


CLUSTER_SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
