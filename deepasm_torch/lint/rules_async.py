"""Rules about asynchronous work: wgmma, TMA, cp.async, mbarriers, and barriers of a block."""

from __future__ import annotations

from .flow import ENDS
from .model import ERROR, WARNING, Context, rule
from .operands import reads, registers, writes
from .values import BLOCK, LANE, THREAD, constant_of

DEPTH = 8  # wgmma batches that are told apart

# -------------------------------------------------------------------------------------- wgmma


@rule("wgmma-branch", WARNING, "entry", "a branch between wgmma.fence and the end of its batch")
def wgmma_branch(c: Context):
    if not c.view.having("wgmma."):
        return
    for first, end in c.view.flow.blocks:
        fence = None
        for ins in c.view.ins[first:end]:
            if ins.op.startswith("wgmma.fence"):
                fence = ins
            elif ins.op.startswith(("wgmma.mma_async", "wgmma.commit")):
                fence = None
        if fence is not None and c.view.flow.succ[c.view.flow.block_of[fence.idx]]:
            yield (
                fence,
                "control flow leaves the block between wgmma.fence and its wgmma",
                "put fence, wgmma and commit_group in one straight line: under a divergent branch"
                " ptxas serialises them (C7520)",
            )


def _fence_state(state, ins):
    return True if ins.op.startswith("wgmma.fence") else state


@rule("wgmma-fence", ERROR, "entry", "a wgmma that no wgmma.fence precedes")
def wgmma_fence(c: Context):
    if not c.view.having("wgmma.mma_async"):
        return
    flow = c.view.flow
    states = flow.forward(False, _fence_state, lambda a, b: a and b)
    for b, state in states.items():
        for i in range(*flow.blocks[b]):
            ins = flow.ins[i]
            state = _fence_state(state, ins)
            if ins.op.startswith("wgmma.mma_async") and not state:
                yield (
                    ins,
                    "there is a path to this wgmma without wgmma.fence",
                    "put wgmma.fence.sync.aligned before the first wgmma of a batch",
                )
                return


def _accumulators(ins):
    return frozenset(r.index for r in registers(ins.ops[0]))


def _batches(state, ins):
    """(registers of the open batch or None, registers of each committed batch, newest first)."""
    if not ins.op.startswith("wgmma."):
        return state
    opened, committed = state
    kind = ins.parts[1]
    if kind == "mma_async":
        return (opened or frozenset()) | _accumulators(ins), committed
    if kind == "commit_group":
        return None, (opened or frozenset(), *committed)[:DEPTH]
    if kind == "wait_group":
        n = ins.ops[0].value if ins.ops and ins.ops[0].kind == "imm" else 0
        return opened, committed[:n]
    return state


def _join_batches(a, b):
    some = [x[0] for x in (a, b) if x[0] is not None]
    opened = frozenset().union(*some) if some else None
    length = max(len(a[1]), len(b[1]))
    none = frozenset()
    pad = lambda x: (*x, *[none] * (length - len(x)))
    return opened, tuple(x | y for x, y in zip(pad(a[1]), pad(b[1])))


@rule("wgmma-wait", ERROR, "entry", "wgmma without commit or wait before its results are used")
def wgmma_wait(c: Context):
    if not c.view.having("wgmma.mma_async"):
        return
    flow = c.view.flow
    states = flow.forward((None, ()), _batches, _join_batches)
    told = set()
    for b in sorted(states):
        state = states[b]
        for i in range(*flow.blocks[b]):
            ins = flow.ins[i]
            kind = ins.parts[1] if ins.parts[0] == "wgmma" else None
            if kind == "wait_group" and state[0] is not None and "commit" not in told:
                told.add("commit")
                yield (
                    ins,
                    "wgmma.wait_group does not wait for wgmmas that were not committed",
                    "put wgmma.commit_group.sync.aligned behind the batch",
                )
            elif ins.parts[0] in ENDS and (state[0] or any(state[1])) and "end" not in told:
                told.add("end")
                yield (
                    ins,
                    "the thread can end while its wgmmas are in flight",
                    "commit them and wait with wgmma.wait_group.sync.aligned 0",
                )
            elif kind is None and (state[0] or state[1]) and "use" not in told:
                busy = (state[0] or frozenset()).union(*state[1])
                reg = next((r for r in (*reads(ins), *writes(ins)) if r.index in busy), None)
                if reg is not None:
                    told.add("use")
                    yield (
                        ins,
                        f"{reg.name} is used while a wgmma that writes it may be in flight",
                        "wait first: wgmma.wait_group 0, or the number of later batches",
                    )
            state = _batches(state, ins)


# ------------------------------------------------------------------- copies: commit, wait, elect


def _pairs(c, issued, commit, wait, what, need):
    """Commits and waits that no path from a copy ever reaches."""
    flow, ins = c.view.flow, c.view.ins
    commits = [i.idx for i in ins if i.op.startswith(commit)]
    waits = [i.idx for i in ins if i.op.startswith(wait)]
    for copy in issued:
        if not flow.after(copy, commits):
            yield copy, f"no {commit[0]} follows this {what}", f"commit the copies, then {need}"
            return
        if not flow.after(copy, waits):
            yield copy, f"no {wait[0]} follows this {what}", need
            return


@rule("cp-async-wait", ERROR, "entry", "cp.async that nothing commits or waits for")
def cp_async_wait(c: Context):
    issued = [i for i in c.view.having("cp.async.ca", "cp.async.cg")]
    commit = ("cp.async.commit_group", "cp.async.wait_all", "cp.async.mbarrier")
    wait = ("cp.async.wait_group", "cp.async.wait_all", "cp.async.mbarrier")
    need = "wait with cp.async.wait_group before the data is read"
    yield from _pairs(c, issued, commit, wait, "cp.async", need)


@rule("bulk-wait", ERROR, "entry", "a bulk store that nothing commits or waits for")
def bulk_wait(c: Context):
    issued = [i for i in c.view.ins if i.parts[0] == "cp" and "bulk_group" in i.parts]
    need = "wait with cp.async.bulk.wait_group before the source is reused or the block ends"
    yield from _pairs(
        c, issued, ("cp.async.bulk.commit_group",), ("cp.async.bulk.wait_group",), "bulk copy", need
    )


@rule("tma-elect", WARNING, "entry", "a bulk copy guarded by a thread number, not by elect.sync")
def tma_elect(c: Context):
    view = c.view
    for ins in view.having("cp.async.bulk.", "cp.reduce.async.bulk."):
        if "commit_group" in ins.parts or "wait_group" in ins.parts:
            continue
        guards = [view.values.guards[ins.idx]] if ins.idx in view.values.guards else []
        deciding = [d for d in view.flow.deciders(ins) if d.idx in view.values.guards]
        guards += [view.values.guards[d.idx] for d in deciding]
        if any(g[3] for g in guards):
            continue
        if any(g[2] >= THREAD for g in guards):
            yield (
                ins,
                f"{ins.op.split('.tile')[0]} is issued under a condition on the thread number",
                "branch on the warp and guard with elect.sync: otherwise ptxas builds a loop"
                " around every copy to find the one lane",
            )


# -------------------------------------------------------------------------------------- mbarrier


@rule("mbarrier-count", ERROR, "entry", "mbarrier.init with a count out of range")
def mbarrier_count(c: Context):
    for ins in c.view.having("mbarrier.init"):
        value = c.view.values.operands.get(ins.idx)
        n = constant_of(value[1]) if value and len(value) > 1 else None
        if len(ins.ops) > 1 and ins.ops[1].kind == "imm":
            n = ins.ops[1].value
        if n is not None and not 1 <= n < 1 << 20:
            yield ins, f"mbarrier.init with a count of {n}", "a count is 1 to 1048575"


def _is_fence(op):
    return op.startswith("fence.mbarrier_init") or (
        op.startswith("fence.proxy.async") and "generic" not in op
    )


def _init_state(state, ins):
    """mbarriers initialised on the way here: (no fence since, no barrier of threads since)."""
    op = ins.op
    if op.startswith("mbarrier.init"):
        return True, True
    unfenced, unseen = state
    if _is_fence(op):
        unfenced = False
    elif op.startswith(("bar.", "barrier.")) and "arrive" not in ins.parts[1:3]:
        unseen = False
    return unfenced, unseen


@rule("mbarrier-fence", ERROR, "entry", "an mbarrier used before its initialisation is visible")
def mbarrier_fence(c: Context):
    if not c.view.having("mbarrier.init"):
        return
    flow = c.view.flow
    join = lambda a, b: (a[0] or b[0], a[1] or b[1])
    states = flow.forward((False, False), _init_state, join)
    told = set()
    for b in sorted(states):
        state = states[b]
        for i in range(*flow.blocks[b]):
            ins = flow.ins[i]
            by_async = ins.parts[0] == "cp" and "mbarrier::complete_tx::bytes" in ins.op
            if by_async and state[0] and "fence" not in told:
                told.add("fence")
                yield (
                    ins,
                    "a copy signals an mbarrier that was initialised without a fence since",
                    "put fence.mbarrier_init.release.cluster (or fence.proxy.async) behind the"
                    " mbarrier.init",
                )
            waits = ins.parts[0] == "mbarrier" and "wait" in ins.parts[1]
            if waits and state[1] and "seen" not in told:
                told.add("seen")
                yield (
                    ins,
                    "threads wait on an mbarrier that another thread may not have initialised yet",
                    "put bar.sync (barrier.cluster in a cluster) behind the mbarrier.init",
                )
            state = _init_state(state, ins)


# -------------------------------------------------------------------------- barriers of the block


def _is_full_barrier(view, ins):
    """bar.sync or barrier.sync of every thread of the block."""
    if ins.parts[0] not in ("bar", "barrier") or "warp" in ins.parts or "cluster" in ins.parts:
        return False
    if "sync" not in ins.parts and "red" not in ins.parts:
        return False
    if "red" in ins.parts:
        return len(ins.ops) < 4
    if len(ins.ops) < 2:
        return True
    count = constant_of(view.values.operands.get(ins.idx, [(None, None), (None, None)])[1])
    return count is not None and count == view.threads


@rule("exit-before-barrier", ERROR, "entry", "threads that leave before a barrier of the block")
def early_exit(c: Context):
    view, flow = c.view, c.view.flow
    barriers = [i for i in view.ins if i.parts[0] in ("bar", "barrier")]
    full = [i.idx for i in barriers if _is_full_barrier(view, i)]
    if not full:
        return
    blocks = 0
    for i in full:
        blocks |= 1 << flow.block_of[i]

    def meets(b):
        return bool((flow.reach[b] | 1 << b) & blocks)

    for b, (_, end) in enumerate(flow.blocks):
        last = view.ins[end - 1]
        guard = view.values.guards.get(end - 1)
        if guard is None or guard[2] == BLOCK or guard[0] is not None and guard[0] == guard[1]:
            continue
        if last.parts[0] in ("ret", "exit"):
            leaves = True
        else:
            leaves = any(not meets(s) for s in flow.succ[b])
        if leaves and any(meets(s) for s in flow.succ[b]):
            line = next(i for i in full if flow.reach[b] >> flow.block_of[i] & 1)
            who = "lanes" if guard[2] >= LANE else "warps"
            yield (
                last,
                f"some {who} leave here and never meet the barrier of the whole block at"
                f" {view.ins[line].where}",
                "let them skip the work and reach the barrier, or give the barrier a thread count",
            )
