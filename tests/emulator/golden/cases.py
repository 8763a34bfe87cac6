"""All cases, in the order of recording: those that fault come last."""

from . import (  # noqa: F401 - each module registers its cases
    approx,
    atomics,
    cluster,
    convert,
    copies,
    floats,
    integer,
    matrix,
    stores,
    sync,
    tensor,
    warp,
)
from .case import CASES

ORDER = sorted(CASES.values(), key=lambda c: c.fault)
