"""The kernels of a call, their memory, and how threads share their work."""

import threading
from typing import Any

import numpy as np

from scaledot import arrays as memory
from scaledot.fused import contain, decode, forward, target, threads
from scaledot.fused import observe as sight
from scaledot.fused.inputs import NO_INTEGERS, NO_NUMBERS, Inputs
from scaledot.fused.tables import Tables
from scaledot.fused.windows import window
from scaledot.fused.work import N_PLACES, ROWS

SLICE_FLOPS = 2e9
"""Operations of one call of a kernel: some hundredths of a second, for which Ctrl-C waits."""
ALONE_FLOPS = 1.5e7
"""Up to so many operations, about 0.15 ms, handing work to another thread does not pay."""
DECODING = 16
"""How many times longer an operation takes in decoding, which waits for memory."""
KEPT_FLOATS = 2**20
"""Scratch of more numbers is not kept from call to call."""

_local = threading.local()
_compiled: set[tuple[Any, ...]] = set()
"""Kernels, each with the types that it has been compiled for."""


def attend(given: Inputs, out: np.ndarray | None, rows: np.ndarray, limit: int) -> bool:
    """Write the output, maxima and sums on at most so many threads; tell whether it could be done.

    Where no rows are wanted, an output that is not finite cannot be contained.
    """
    its, rows, place = given.its, rows.reshape(-1), _place(given, out)
    if its.is_decoding and _decode(given, place, rows, limit):
        return True
    return _do_tiles(given, place, rows, forward.run, (), its.n_items, limit)


def see(given: Inputs, out: np.ndarray, weights: np.ndarray, limit: int) -> None:
    """Write the output and the weights, and nothing beside them."""
    its = given.its
    rows = np.empty(len(ROWS) * len(its.keyed) * its.n_rows, its.sums)
    nothing = NO_NUMBERS[its.sums]
    more = window(weights, writable=True), nothing, NO_INTEGERS, nothing, NO_INTEGERS
    observe(given, out, rows, more, limit)


def observe(
    given: Inputs,
    out: np.ndarray | None,
    rows: np.ndarray,
    more: tuple[np.ndarray, ...],
    limit: int,
) -> None:
    """Write the output, what is noted of rows, and `more`: see `scaledot.fused.observe`."""
    n_items = len(given.its.keyed) * given.its.n_turns
    _do_tiles(given, _place(given, out), rows.reshape(-1), sight.run, more, n_items, limit)


def _place(given: Inputs, out: np.ndarray | None) -> np.ndarray:
    """Return the place of the output as kernels take it."""
    return np.zeros(1, given.query.dtype) if out is None else window(out, writable=True)


def _decode(given: Inputs, out: np.ndarray, rows: np.ndarray, limit: int) -> bool:
    """Attend with few queries; tell whether all that was met is finite."""
    its, sums = given.its, rows.dtype
    parts = np.empty(its.n_parts * its.part_size, sums)
    trouble = np.zeros(1, np.int64)

    def kernel(counter: np.ndarray, budget: int) -> None:
        x = memory.empty(np, (its.part_floats,), sums, None)
        decode.run(
            counter, budget, its.call, its.heads, its.keyed, given.numbers, given.query, given.key,
            given.value, given.bias, given.mask, parts, trouble, x,
        )  # fmt: skip

    alone = its.part_flops * its.n_parts < ALONE_FLOPS / DECODING
    n_threads = 1 if alone else limit or target.n_threads()
    budget = max(1, int(SLICE_FLOPS / DECODING) // its.part_flops)
    _compile(kernel, (decode.run, sums, _few(given)))
    threads.run(kernel, its.n_parts, budget, min(n_threads, its.n_parts))
    if trouble[0]:
        return False
    x = memory.empty(np, (its.part_floats,), sums, None)
    decode.join(its.call, its.heads, parts, given.sinks, out, rows, x)
    return True


def _do_tiles(
    given: Inputs,
    out: np.ndarray,
    rows: np.ndarray,
    entry: Any,
    more: tuple[np.ndarray, ...],
    n_items: int,
    limit: int,
) -> bool:
    """Do all tiles; tell whether the output is what it should be."""
    its = given.its
    tainted = np.zeros(its.n_items + 1, np.uint8)  # and whether any is
    common = (*given[1:], out, rows, tainted)
    few = (*_few(given), out.dtype)
    _share(its, entry, (*common, *more), few + tuple([x.dtype for x in more[:1]]), n_items, limit)
    if not tainted[-1]:
        return True
    if rows.size:
        _share(its, contain.run, common, few, its.n_items, limit)
    return rows.size > 0


def _share(
    its: Tables,
    entry: Any,
    given: tuple[np.ndarray, ...],
    few: tuple[np.dtype, ...],
    n_items: int,
    limit: int,
) -> None:
    """Share the items of a kernel out among threads."""

    def kernel(counter: np.ndarray, budget: int) -> None:
        own = _scratch(its.n_floats, its.full, its.sums, few)
        entry(counter, budget, its.call, its.heads, its.keyed, *given, *own)

    flops = its.flops * its.n_items
    n_threads = 1 if flops < ALONE_FLOPS else limit or target.n_threads()
    budget = max(1, int(SLICE_FLOPS) * n_items // flops)
    _compile(kernel, (entry, its.sums, few))
    threads.run(kernel, n_items, budget, min(n_threads, n_items))


def _few(given: Inputs) -> tuple[np.dtype, ...]:
    """Return the types that kernels exist for, beside that of the sums."""
    return given.query.dtype, given.bias.dtype, given.mask.dtype


def _compile(kernel: threads.Kernel, kind: tuple[Any, ...]) -> None:
    """Compile a kernel before it is shared: a thread of the pool would let Ctrl-C wait for it."""
    if kind not in _compiled:
        kernel(np.zeros(1, np.int64), 0)
        _compiled.add(kind)


def _scratch(
    n_floats: int, full: int, sums: np.dtype, few: tuple[np.dtype, ...]
) -> tuple[np.ndarray, ...]:
    """Return the memory of this thread, kept from call to call where it is small."""
    key = (n_floats, full, sums, few)
    if getattr(_local, "key", None) == key:
        found: tuple[np.ndarray, ...] = _local.scratch
        return found
    made = (
        memory.empty(np, (n_floats,), sums, None),
        np.empty(N_PLACES * full, np.int64),
        np.empty(2 * full, np.int64 if sums == np.float64 else np.int32),
        *(np.empty(full, dtype) for dtype in few),
    )
    if n_floats <= KEPT_FLOATS:
        _local.key, _local.scratch = key, made
    return made
