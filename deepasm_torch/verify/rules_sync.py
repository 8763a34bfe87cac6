"""Rules for what orders a kernel: fences, barriers, waits, commits, elections."""

from __future__ import annotations

from .edits import drop, guard, line, move, number

TOUCH = r"st\.|stmatrix|ld\.(shared|global)|ldmatrix|wgmma\.mma|cp\.async\.(bulk\.tensor|cg)|mma\."


def proxy_fence(text, s):
    yield from drop(text, s)
    yield from move(text, s, r"st\.|stmatrix", r"bar\.sync")


def mbarrier_init(text, s):
    yield from drop(text, s)
    yield from number(s, 1, 1, -1)
    yield "twice", line(s, text.lines[s.line] + "\n" + s.text())


def mbarrier_wait(text, s):
    """The wait is a label, the try_wait and a branch back."""
    label, branch = s.line - 1, s.line + 1
    done, address, parity = s.args
    yield "never waits", line(text.statements[branch], None)
    yield "inverted branch", next(iter(flipped_branch(text.statements[branch])))
    yield "parity always 0", line(s, s.text(a2="0"))
    yield "parity always 1", line(s, s.text(a2="1"))
    ring = {"[%empty_bar]": "[%full_bar]", "[%full_bar]": "[%empty_bar]"}
    if address in ring:
        yield "other barrier", line(s, s.text(a1=ring[address]))
        yield "next stage's barrier", line(s, s.text(a1=address.replace("]", " + 8]")))
    other = text.find(branch, r"wgmma\.mma|cp\.async\.bulk\.tensor|mbarrier\.arrive", 1)
    if other is not None:
        edits = text.moved(label, branch, other.line, after=True)
        yield f"move late, past {other.op.split('.sync')[0]}", edits


def flipped_branch(s):
    flipped = "@" + s.guard[2:] if s.guard.startswith("@!") else "@!" + s.guard[1:]
    yield line(s, s.text(guard=flipped))


def mbarrier_arrive(text, s):
    yield from drop(text, s)
    yield "twice", line(s, text.lines[s.line] + "\n" + s.text())
    yield from guard(s)
    yield from move(text, s, r"wgmma\.wait_group", r"bar\.|cp\.async\.bulk")
    ring = {"[%empty_bar]": "[%full_bar]", "[%released]": "[%full_bar]"}
    if s.args[1] in ring:
        yield "other barrier", line(s, s.text(a1=ring[s.args[1]]))


def expect_tx(text, s):
    yield from drop(text, s)
    yield from number(s, 2, 16, -16)
    yield "half", line(s, s.text(a2=str(int(s.args[2]) // 2)))
    plain = f"mbarrier.arrive.shared::cta.b64 _, {s.args[1]}; //@ {s.where}"
    yield "arrive without bytes", line(s, f"    {plain}")
    yield "twice", line(s, text.lines[s.line] + "\n" + s.text())
    yield from move(text, s, late=r"cp\.async\.bulk\.tensor")


def wgmma_fence(text, s):
    yield from drop(text, s)
    yield from move(text, s, late=r"wgmma\.mma")


def wgmma_commit(text, s):
    yield from drop(text, s)
    yield from move(text, s, early=r"wgmma\.mma", late=r"wgmma\.wait")


def wait_group(text, s):
    yield from drop(text, s)
    yield from number(s, 0, 1)
    yield from guard(s)
    yield from move(text, s, late=r"bar\.sync|mbarrier\.arrive|stmatrix|ld\.param|add\.f32")


def cp_commit(text, s):
    yield from drop(text, s)
    yield from guard(s)
    yield from move(text, s, early=r"cp\.async\.(bulk\.tensor|cg)")


def bar_sync(text, s):
    yield from drop(text, s)
    if len(s.args) > 1:
        yield from number(s, 1, -32, 32)
        yield "arrive only", line(s, s.text(op="bar.arrive"))
    yield from move(text, s, r"st\.|stmatrix|fence|cp\.async\.wait", TOUCH)


def bar_arrive(text, s):
    yield from drop(text, s)
    yield from number(s, 1, -32, 32)
    yield "twice", line(s, text.lines[s.line] + "\n" + s.text())
    yield "sync instead", line(s, s.text(op="bar.sync"))


def warp_sync(text, s):
    yield from drop(text, s)
    yield "half of the warp", line(s, s.text(a0="0xffff"))


def setmaxnreg(text, s):
    yield from drop(text, s)
    yield from number(s, 0, 8)


def elect(text, s):
    yield "half of the warp", line(s, s.text(a1="0xffff"))
    _, _, p = s.args[0].partition("|")
    yield "everybody", line(s, f"    setp.eq.u32 {p}, 0, 0; //@ {s.where}")


def grid_wait(text, s):
    yield from drop(text, s)
