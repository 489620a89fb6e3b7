"""Flat windows of the callers' arrays: how kernels see memory, without copying any."""

from typing import NamedTuple

import numpy as np

from scaledot import arrays

BITS = {"float16": np.int16, "bfloat16": np.uint16, "bool": np.uint8}
"""How kernels see types that NumPy or LLVM do not compute with."""


class Geometry(NamedTuple):
    """Where the elements of an array (*front, rows, columns) lie in its window; in elements."""

    start: int
    """The place of the first element: not 0 where strides are negative."""
    row: int
    """The step from a row to the next; 0 in an axis of size 1, like the others."""
    column: int
    front: tuple[int, ...]


def window(x: np.ndarray, *, writable: bool = False) -> np.ndarray:
    """Return the memory of an array as a flat array."""
    if x.itemsize <= 2:
        bits = BITS.get(arrays.type_name(x))
        x = x if bits is None else x.view(bits)
    flat = x.reshape(-1) if x.flags.c_contiguous else _span(x)
    if not writable:
        flat.flags.writeable = False
    return flat


def geometry(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Geometry:
    """Return where the elements of an array lie in its window."""
    steps = [
        0 if size == 1 else stride // itemsize for size, stride in zip(shape, strides, strict=True)
    ]
    back = [step * (size - 1) for step, size in zip(steps, shape, strict=True) if step < 0]
    start = 0 if 0 in shape else -sum(back)
    return Geometry(start, steps[-2], steps[-1], tuple(steps[:-2]))


def _span(x: np.ndarray) -> np.ndarray:
    """Return all memory from the lowest element of an array to the highest."""
    if not x.size:
        return np.empty(0, x.dtype)
    lowest = x[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in x.strides)]
    spans = (abs(step) * (size - 1) for step, size in zip(x.strides, x.shape, strict=True))
    extent = 1 + sum(spans) // x.itemsize
    return np.lib.stride_tricks.as_strided(lowest, (extent,), (x.itemsize,))


def places(sizes: tuple[int, ...], lies: Geometry) -> np.ndarray:
    """Return the place of the first element of each head, flat."""
    found = np.full(1, lies.start, np.int64)
    for size, step in zip(sizes, lies.front, strict=True):
        found = (found[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
    return found


def is_whole(x: np.ndarray) -> bool:
    """Tell whether an array is native, aligned, and has strides of whole elements."""
    flags, size = x.flags, x.itemsize
    if not flags.aligned or not x.dtype.isnative:
        return False
    return flags.c_contiguous or not any(stride % size for stride in x.strides)


def whole(x: np.ndarray) -> np.ndarray:
    """Return an array that kernels can read, itself where it is one."""
    return x if is_whole(x) else x.astype(x.dtype.newbyteorder("="), order="C")
