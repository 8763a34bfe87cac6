"""Global memory of the emulated device: named allocations between red zones, fake addresses."""

import bisect

import numpy as np

from .errors import EmulatorError

GLOBAL_BASE = 0x7F00_0000_0000


PARAM_BASE = 0x7E00_0000_0000


SHARED_BASE = 0x7D00_0000_0000


LOCAL_BASE = 0x7C00_0000_0000


RED = 4096  # bytes of red zone between allocations


class Allocation:
    """A named range: ``start``, ``end`` are offsets into the arena.

    ``uninitialised``: poisoned at allocation, and no host code has had a view of it since.
    """

    __slots__ = ("dtype", "end", "name", "shape", "start", "uninitialised")

    def __init__(self, name, start, end, dtype, shape, uninitialised):
        self.name, self.start, self.end, self.dtype, self.shape = name, start, end, dtype, shape
        self.uninitialised = uninitialised


class Memory:
    """Byte-addressed global memory.

    Every allocation is 256-byte aligned and separated from its neighbours by red zones; an access
    that is not inside exactly one allocation is a hazard. Addresses are integers that mean
    nothing outside this object.

    Examples
    --------
    >>> m = Memory()
    >>> a = m.alloc("a", np.arange(8, dtype=np.float32))   # returns the device address
    >>> m["a"]                                             # a view of the current contents
    """

    def __init__(self):
        self.bytes = np.full(RED, 0xA5, np.uint8)
        self.items, self.starts = [], []
        self.by_name = {}
        self._views()

    def _views(self):
        b = self.bytes
        self.view = {
            1: b,
            2: b.view(np.uint16),
            4: b.view(np.uint32),
            8: b.view(np.uint64),
            16: b.view(np.complex128),
        }

    def alloc(self, name, data, fill=None, dtype=None, align=256, skew=0):
        """Add an allocation and return its address.

        Parameters
        ----------
        name : str
        data : array or int
            Initial contents, or a size in bytes (poisoned with 0xff, a NaN in every float type).
        fill : int, optional
            Byte to fill a sized allocation with instead of 0xff.
        dtype : dtype, optional
            How ``memory[name]`` should view a sized allocation.
        align : int
            Alignment of the base in bytes (at least 256 is used before ``skew``).
        skew : int
            Bytes added to the aligned base: a deliberately misaligned pointer.
        """
        if name in self.by_name:
            raise EmulatorError(f"allocation {name!r} exists already")
        poisoned = isinstance(data, (int, np.integer)) and fill is None
        if isinstance(data, (int, np.integer)):
            raw = np.full(int(data), 0xFF if fill is None else fill, np.uint8)
            dt = np.dtype(dtype or np.uint8)
            shape = (int(data) // dt.itemsize,)
        else:
            arr = np.ascontiguousarray(data)
            raw, dt, shape = arr.reshape(-1).view(np.uint8), arr.dtype, np.shape(data)
        align = max(align, 256)
        start = -(-len(self.bytes) // align) * align + skew
        end = start + len(raw)
        total = -(-(end + RED) // 256) * 256
        old = self.bytes
        self.bytes = np.full(total, 0xA5, np.uint8)
        self.bytes[: len(old)] = old
        self.bytes[start:end] = raw
        al = Allocation(name, start, end, dt, shape, poisoned)
        self.items.append(al)
        self.starts.append(start)
        self.by_name[name] = al
        self._views()
        return GLOBAL_BASE + start

    def address(self, name):
        """Device address of an allocation."""
        return GLOBAL_BASE + self.by_name[name].start

    def __getitem__(self, name):
        a = self.by_name[name]
        a.uninitialised = False  # the caller may write through the view
        raw = self.bytes[a.start : a.end]
        if a.start % a.dtype.itemsize:
            raw = raw.copy()
        return raw.view(a.dtype).reshape(a.shape)

    def __contains__(self, name):
        return name in self.by_name

    def find(self, offset):
        """Allocation that contains an arena offset, or None."""
        i = bisect.bisect_right(self.starts, offset) - 1
        if i >= 0 and offset < self.items[i].end:
            return self.items[i]
        return None

    def describe(self, addr):
        """Where an address lies relative to the allocations, for messages."""
        off = addr - GLOBAL_BASE
        i = bisect.bisect_right(self.starts, off) - 1
        if not 0 <= off < len(self.bytes):
            return "no allocation near"
        if i < 0:
            return (
                f"{self.items[0].start - off} bytes before {self.items[0].name!r}"
                if (self.items)
                else "no allocation near"
            )
        a = self.items[i]
        if off < a.end:
            return f"byte {off - a.start} of {a.name!r} ({a.end - a.start} bytes)"
        return f"{off - a.end} bytes past the end of {a.name!r} ({a.end - a.start} bytes)"

    def inside(self, lo, hi):
        """True when the byte range [lo, hi) of addresses lies inside one allocation."""
        a = self.find(lo - GLOBAL_BASE)
        return a is not None and hi - GLOBAL_BASE <= a.end

    def red_zones_intact(self):
        """True when nothing was written between the allocations."""
        pos = 0
        for a in self.items:
            if not (self.bytes[pos : a.start] == 0xA5).all():
                return False
            pos = a.end
        return bool((self.bytes[pos:] == 0xA5).all())
