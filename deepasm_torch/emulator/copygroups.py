"""Commit groups: bulk stores of a thread, cp.async copies of a warp."""


class BulkStore:
    """One bulk store: ``read`` takes its source, ``write`` puts the data to global memory."""

    __slots__ = ("data", "read", "write")

    def __init__(self, read, write):
        self.read, self.write, self.data = read, write, None

    def take(self):
        """Read the source now, unless that happened already."""
        if self.read is not None:
            self.data = self.read()
            self.read = None

    def finish(self):
        """Make the result visible."""
        self.take()
        if self.write is not None:
            self.write(self.data)
            self.write = self.data = None


class BulkGroups:
    """Bulk-store groups of one thread.

    Early schedules read and write at issue; late ones read when a wait forces it and write when
    only a wait without ``.read`` (or the exit) is left.
    """

    KEEP = 64  # groups that may wait for their writes

    def __init__(self, warp, lane):
        self.warp, self.lane = warp, lane
        self.open = []  # operations not committed yet
        self.groups = []  # committed and not complete: [epoch, operations, source was read]
        self.next = 1  # epoch of the open group
        self.pc = None

    def add(self, read, write, pc):
        """A bulk store was issued."""
        op = BulkStore(read, write)
        self.pc = pc
        if not self.warp.run.policy.late_reads:
            op.finish()
        self.open.append(op)

    def commit(self):
        """cp.async.bulk.commit_group."""
        self.groups.append([self.next, self.open, False])
        self.open = []
        self.next += 1

    def wait(self, n, read):
        """All but the newest ``n`` groups are complete (or, with ``read``, have been read)."""
        w = self.warp
        done = self.groups[: max(0, len(self.groups) - n)]
        if not done:
            return
        for g in done:
            if not g[2]:
                for op in g[1]:
                    op.take()
                g[2] = True
        newest = done[-1][0]
        w.clock[w.bulk_agent] = max(int(w.clock[w.bulk_agent]), newest)
        keep = self.KEEP if read else 0
        for g in done[: len(done) - keep] if keep else done:
            for op in g[1]:
                op.finish()
            self.groups.remove(g)
        if not read:
            w.clock[w.bulk_write_agent] = max(int(w.clock[w.bulk_write_agent]), newest)

    def at_exit(self, warp):
        """The thread ends: sources must have been read, writes complete by themselves."""
        if self.open:
            text = "the thread exits with bulk stores that were never committed"
            warp.run.log.add("bulk-uncommitted", self.pc, text, *warp.who)
        if any(not g[2] for g in self.groups):
            text = (
                "the thread exits before wait_group says that the source in shared memory has been"
                " read"
            )
            warp.run.log.add("exit-pending-store", self.pc, text, *warp.who)
        for g in [*self.groups, [0, self.open, False]]:
            for op in g[1]:
                op.finish()


class CpGroups:
    """cp.async groups of a warp (its threads commit and wait together)."""

    def __init__(self, warp):
        self.warp = warp
        self.open = []
        self.groups = []
        self.current = 1

    def add(self, fn):
        """A copy was issued; ``fn`` moves the data."""
        if self.warp.run.policy.late_reads:
            self.open.append(fn)
        else:
            fn()

    def on_complete(self, fn):
        """Run ``fn`` once everything issued so far is complete."""
        self.open.append(fn)

    def flush(self):
        """Arrivals fire without a wait: complete the copies behind them."""
        for g in self.groups:
            for fn in g[1]:
                fn()
            g[1].clear()
        for fn in self.open:
            fn()
        self.open = []

    def commit(self):
        """cp.async.commit_group."""
        self.groups.append((self.current, self.open))
        self.open = []
        self.current += 1

    def wait(self, n):
        """All but the newest ``n`` groups are complete."""
        done = self.groups[: len(self.groups) - n] if n else self.groups
        w = self.warp
        for epoch, fns in done:
            for fn in fns:
                fn()
            w.clock[w.cp_agent] = max(int(w.clock[w.cp_agent]), epoch)
        self.groups = self.groups[len(done) :]

    def at_exit(self, warp):
        """Copies complete even when nobody waits."""
        for _, fns in self.groups:
            for fn in fns:
                fn()
        for fn in self.open:
            fn()
