"""Control flow of one entry: blocks, successors, reachability, control dependence.

Sets of blocks are Python integers used as bit masks: entries have a few hundred blocks at most.
"""

from __future__ import annotations

import functools

from ..emulator.text.statements import Ins

#: opcodes after which a thread is gone
ENDS = ("ret", "exit", "trap")


class Flow:
    """Blocks of an entry.

    Attributes
    ----------
    ins : list of Ins
        In text order; ``ins[i].idx == i``.
    blocks : list of (first, end)
        Half-open ranges of instruction indices.
    succ, pred : list of list of int
        Block numbers. A guarded end (``@%p ret``) falls through to the next block.
    """

    def __init__(self, entry):
        self.entry = entry
        self.ins, labels = [], {}
        for item in entry.body:
            if isinstance(item, Ins):
                item.idx = len(self.ins)
                self.ins.append(item)
            else:
                labels[item[1]] = len(self.ins)
        count = len(self.ins)
        self.jumps = {}  # index of a branch -> indices it may go to
        leaders = {0, *(i for i in labels.values() if i < count)}
        for i, ins in enumerate(self.ins):
            head = ins.parts[0]
            if head in ("bra", "brx"):
                uids = [o.value for o in ins.ops if o.kind == "label"]
                if head == "brx":
                    uids = [u for uid in uids for u in entry.tables.get(uid, ())]
                self.jumps[i] = [labels[u] for u in uids if u in labels]
                leaders.add(i + 1)
            elif head in ENDS:
                leaders.add(i + 1)
        starts = sorted(x for x in leaders if x < count)
        self.blocks = list(zip(starts, [*starts[1:], count]))
        self.block_of = [0] * count
        for b, (first, end) in enumerate(self.blocks):
            for i in range(first, end):
                self.block_of[i] = b
        self.succ = [self._successors(b) for b in range(len(self.blocks))]
        self.pred = [[] for _ in self.blocks]
        for b, targets in enumerate(self.succ):
            for s in targets:
                self.pred[s].append(b)

    def _successors(self, b):
        end = self.blocks[b][1]
        last = self.ins[end - 1]
        head = last.parts[0]
        out = [self.block_of[i] for i in self.jumps.get(end - 1, ()) if i < len(self.ins)]
        stops = head in ("bra", "brx", *ENDS) and last.pred is None
        if not stops and end < len(self.ins) and self.block_of[end] not in out:
            out.append(self.block_of[end])
        return out

    @functools.cached_property
    def order(self) -> list[int]:
        """Reachable blocks in reverse post-order."""
        seen, out, stack = {0}, [], [(0, iter(self.succ[0]))] if self.blocks else []
        while stack:
            b, rest = stack[-1]
            nxt = next((s for s in rest if s not in seen), None)
            if nxt is None:
                out.append(b)
                stack.pop()
            else:
                seen.add(nxt)
                stack.append((nxt, iter(self.succ[nxt])))
        return out[::-1]

    @functools.cached_property
    def reach(self) -> list[int]:
        """For each block the mask of blocks that can run after it (itself only through a loop)."""
        masks = [0] * len(self.blocks)
        changed = True
        while changed:
            changed = False
            for b in reversed(range(len(self.blocks))):
                mask = masks[b]
                for s in self.succ[b]:
                    mask |= masks[s] | 1 << s
                if mask != masks[b]:
                    masks[b], changed = mask, True
        return masks

    def after(self, ins, wanted) -> bool:
        """Whether an instruction of the set of indices `wanted` can run after `ins`."""
        b = self.block_of[ins.idx]
        if any(ins.idx < i < self.blocks[b][1] for i in wanted):
            return True
        return any(self.reach[b] >> self.block_of[i] & 1 for i in wanted)

    @functools.cached_property
    def _postdominators(self) -> list[int]:
        """For each block the mask of blocks that every path from it to an end passes."""
        n = len(self.blocks)
        full = (1 << n) - 1
        masks = [full if self.succ[b] else 1 << b for b in range(n)]
        for b in range(n):
            last = self.ins[self.blocks[b][1] - 1]
            if last.parts[0] in ENDS:  # a guarded end has a successor and is an end too
                masks[b] = 1 << b
        changed = True
        while changed:
            changed = False
            for b in reversed(range(n)):
                last = self.ins[self.blocks[b][1] - 1]
                if not self.succ[b] or last.parts[0] in ENDS:
                    continue
                mask = full
                for s in self.succ[b]:
                    mask &= masks[s]
                mask |= 1 << b
                if mask != masks[b]:
                    masks[b], changed = mask, True
        return masks

    @functools.cached_property
    def _controllers(self) -> list[int]:
        """For each block the mask of blocks whose branch decides whether it runs."""
        post, out = self._postdominators, [0] * len(self.blocks)
        for d, targets in enumerate(self.succ):
            last = self.ins[self.blocks[d][1] - 1]
            if last.pred is None:
                continue
            strict = post[d] & ~(1 << d)
            decided = 0
            for s in targets:
                decided |= post[s] & ~strict
            b = 0
            while decided:
                if decided & 1:
                    out[b] |= 1 << d
                decided >>= 1
                b += 1
        return out

    def deciders(self, ins) -> list:
        """Guarded branches and ends that decide, directly or not, whether `ins` runs."""
        seen, todo = 0, self._controllers[self.block_of[ins.idx]]
        while todo & ~seen:
            new, seen = todo & ~seen, seen | todo
            b = 0
            while new:
                if new & 1:
                    todo |= self._controllers[b]
                new >>= 1
                b += 1
        return [self.ins[self.blocks[b][1] - 1] for b in range(len(self.blocks)) if seen >> b & 1]

    def forward(self, start, transfer, join):
        """Iterate a forward analysis to its fixed point.

        Parameters
        ----------
        start : object
            State at the entry; states need ``==``.
        transfer : callable(state, ins) -> state
            Must not change the state it gets.
        join : callable(state, state) -> state

        Returns
        -------
        dict
            Block number to the state at its start, for reachable blocks.
        """
        states = {0: start} if self.blocks else {}
        todo = list(states)
        while todo:
            b = todo.pop()
            state = states[b]
            for i in range(*self.blocks[b]):
                state = transfer(state, self.ins[i])
            for s in self.succ[b]:
                merged = state if s not in states else join(states[s], state)
                if s not in states or merged != states[s]:
                    states[s] = merged
                    if s not in todo:
                        todo.append(s)
        return states
