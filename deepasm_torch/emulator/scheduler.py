"""Who runs next, and when asynchronous work completes.

Three policies. ``round_robin``: warps in order, asynchronous work done when issued. ``random``:
seeded random warp order, TMA completes out of order, tensor cores and bulk stores read late.
``adversarial``: random halves of the warps starve for long stretches, TMA lands at once while
readers read as late as they may, odd CTAs start last, and generic writes stay hidden from async
readers until a proxy fence covers them. Late-everything is deliberately absent: it postpones the
overwriting TMA too and hides exactly the races it should show.
"""

import random


class Policy:
    """Round robin; the base of the others."""

    name = "round_robin"
    overlay = False  # generic writes hidden from async readers until fenced
    late_reads = False  # wgmma and bulk stores read at their wait
    spurious = 0.0  # chance that a try_wait that would block returns false once

    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.quantum = 64

    def immediate(self):
        """True when an asynchronous copy completes at issue."""
        return True

    def choose(self, ready):
        """Index of the next warp in the ready list."""
        return 0

    def tick(self, run):
        """Called after every quantum."""

    def order(self, ctas):
        """Start order of the CTAs."""
        return ctas


class RandomPolicy(Policy):
    """Seeded random warp order and TMA completion order, late reads."""

    name = "random"
    late_reads = True
    spurious = 0.25

    def immediate(self):
        return False

    def choose(self, ready):
        self.quantum = self.rng.choice((1, 2, 8, 64))
        return self.rng.randrange(len(ready))

    def tick(self, run):
        while run.inflight and self.rng.random() < 0.3:
            run.complete(self.rng.randrange(len(run.inflight)))


class Adversarial(Policy):
    """Bursts, early writers, late readers, CTA skew, unfenced writes hidden."""

    name = "adversarial"
    overlay = True
    late_reads = True

    def __init__(self, seed=0):
        super().__init__(seed)
        self.left = 0
        self.favoured = ()

    def choose(self, ready):
        if self.left == 0:
            self.left = self.rng.randrange(20, 200)
            self.favoured = None
        if self.favoured is None:
            self.favoured = {id(w) for w in ready if self.rng.random() < 0.5}
        self.left -= 1
        for i, w in enumerate(ready):
            if id(w) in self.favoured:
                return i
        return self.rng.randrange(len(ready))

    def order(self, ctas):
        return [c for c in ctas if c.index % 2 == 0] + [c for c in ctas if c.index % 2]


POLICIES = {"round_robin": Policy, "random": RandomPolicy, "adversarial": Adversarial}
