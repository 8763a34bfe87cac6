"""Torch tensors in the emulated memory: storages become allocations, views keep their place."""

from __future__ import annotations

import torch


class Region:
    """The bytes of one storage that some operands cover, as one allocation."""

    def __init__(self, storage):
        self.storage, self.names = storage, []
        self.low, self.high = storage.nbytes(), 0
        self.base = None

    def add(self, name, t):
        """Extend the region by what a tensor reaches."""
        es = t.element_size()
        reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else -1
        self.low = min(self.low, t.storage_offset() * es)
        self.high = max(self.high, (t.storage_offset() + reach + 1) * es)
        self.names.append(name)

    def raw(self):
        """uint8 view of the covered bytes."""
        t = torch.empty(0, dtype=torch.uint8).set_(self.storage)
        return t[self.low : self.high].numpy()

    def allocate(self, memory, fresh):
        """Copy the bytes into the emulated memory, aligned as on the device (512 bytes)."""
        size = self.high - self.low
        data = size if fresh and self.names == ["out"] else self.raw()
        start = memory.alloc("+".join(self.names), data, align=512, skew=self.low % 512)
        self.base = start - self.low

    def address(self, t):
        """Device address of a tensor's first element."""
        return (self.base or 0) + t.storage_offset() * t.element_size()

    def copy_back(self, memory, t):
        """Write the emulated contents to the storage."""
        with torch.no_grad():
            self.raw()[:] = memory["+".join(self.names)]
            torch.autograd.graph.increment_version(t)


def place(operands, memory=None, fresh_output=False):
    """Operand name -> (region, tensor); regions are allocated when a memory is given."""
    regions, out = {}, {}
    for name, t in operands.items():
        storage = t.untyped_storage()
        region = regions.setdefault(storage.data_ptr() or id(t), Region(storage))
        region.add(name, t)
        out[name] = (region, t)
    if memory is None:
        for k, region in enumerate(regions.values(), 1):
            region.base = k << 40  # only alignment and overlap matter to the planner
    else:
        for region in regions.values():
            region.allocate(memory, fresh_output)
    return out
