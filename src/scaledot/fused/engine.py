"""The fused engine: windows and tables for the kernels, work for the threads, results."""

import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scaledot import arrays as memory
from scaledot.fused import contain, decode, forward, observe, target, threads
from scaledot.fused.inputs import Inputs, inputs, lies, sum_type
from scaledot.fused.tables import Tables, Wanted
from scaledot.fused.windows import is_whole, window
from scaledot.fused.work import MOMENTS, N_PLACES, ROWS
from scaledot.problem import WHOLE, Index, Problem
from scaledot.request import Blocks, Request, Results
from scaledot.results import TopK
from scaledot.statistics import Moments

SLICE_FLOPS = 2e9
"""Operations of one call of a kernel: some hundredths of a second, for which Ctrl-C waits."""
ALONE_FLOPS = 1.5e7
"""Up to so many operations, about 0.15 ms, handing work to another thread does not pay."""
DECODING = 16
"""How many times longer an operation takes in decoding, which waits for memory."""
KEPT_FLOATS = 2**20
"""Scratch of more numbers is not kept from call to call."""
STREAM_BYTES = 2**23
"""Weights of more bytes are written past the caches, which they would only empty."""
NOTED_BYTES = 2**20
"""What kernels note of rows, sums and candidates, that is in memory at once; the rows go in parts
of the same size for any number of threads, so that the bits are the same."""
WHOLE_TILES = 96
"""Rows that are whole tiles at any width."""
FINISHED = 2**13
"""Numbers of one kind that statistics are made of at once, near the caches."""

_local = threading.local()


class Places(NamedTuple):
    """Where the kernels of a call write."""

    out: np.ndarray | None
    weights: np.ndarray | None
    elsewhere: tuple[str, ...]
    """Those of the two that are not the results themselves, because those cannot be written."""
    rows: np.ndarray
    """(ROWS and MOMENTS, *batch, *folded, T), or of size 0 where nothing of the rows is wanted."""
    argmax: np.ndarray
    """(*batch, *folded, T)."""
    tops: np.ndarray
    """(*batch, *folded, T, k): scores."""
    top_keys: np.ndarray


def run(problem: Problem, request: Request, results: Results, blocks: Blocks) -> None:
    """Fill the results part by part."""
    for index, part in _parts(problem, request):
        _run_part(part, request, results, index, blocks)


def _parts(problem: Problem, request: Request) -> Iterator[tuple[Index, Problem]]:
    """Yield parts and their places (*batch, *folded, T): some heads, or some rows of a head.

    Of each part's rows kernels note no more than `NOTED_BYTES`.
    """
    n_heads, n_rows = math.prod(problem.sizes), len(problem.rows)
    if 0 in (n_heads, n_rows):
        return
    size = _noted(problem, request)
    if n_heads * n_rows * size <= NOTED_BYTES or memory.is_immutable(problem.query):
        yield (WHOLE,) * (len(problem.sizes) + 1), problem
        return
    most = NOTED_BYTES // size
    n_parts = -(-n_heads // max(1, most // n_rows))
    for heads, part in problem.parts(-(-n_heads // n_parts)):
        if most >= n_rows:
            yield (*heads, WHOLE), part
            continue
        for rows in part.row_blocks(max(1, most // WHOLE_TILES) * WHOLE_TILES):
            yield (*heads, rows), part.of_rows(rows)


def _noted(problem: Problem, request: Request) -> int:
    """Return how many bytes kernels note of each row."""
    sums = sum_type(problem).itemsize
    size = len(ROWS) * sums if _notes_rows(request) else 0
    if request.moments:
        size += len(MOMENTS) * sums + INTEGER.itemsize
    if request.top_k:
        size += _k(problem, request) * (sums + INTEGER.itemsize)
    return size


def _notes_rows(request: Request) -> bool:
    """Tell whether maxima and sums of rows are needed once the rows are done."""
    return request.residuals or bool(request.statistics) or request.weights


def _k(problem: Problem, request: Request) -> int:
    """Return how many of the largest weights a row can have."""
    return min(request.k, problem.frame.n_keys)


def _run_part(
    problem: Problem, request: Request, results: Results, index: Index, blocks: Blocks
) -> None:
    """Fill the results of a part, whose problem is given."""
    places = _places(problem, request, results, index)
    if request.more:
        received = _observe(problem, request, places, blocks)
        if received is not None:
            results.add("received", (*index[:-1], WHOLE), _own(problem, received))
    elif not _attend(problem, places, blocks):
        # Values that are not finite take a second pass, which needs the normalisers.
        _attend(problem, places._replace(rows=_rows(problem, len(ROWS))), blocks)
    for name, x in (("output", places.out), ("weights", places.weights)):
        if x is not None and name in places.elsewhere:
            results.put(name, (*index, WHOLE), _own(problem, x))
    if request.residuals or request.statistics:
        numbers = math.prod(problem.sizes) * max(1, places.tops.shape[-1])
        for rows in problem.row_blocks(max(1, FINISHED // numbers)):
            _finish(problem, request, results, places, index, rows)


def _places(problem: Problem, request: Request, results: Results, index: Index) -> Places:
    """Return memory for what is wanted: that of the results themselves where it can be written."""
    elsewhere = []

    def place(name: str) -> np.ndarray:
        view = memory.as_numpy(results.view(name))[index]
        if view.flags.writeable and is_whole(view):
            return view
        elsewhere.append(name)
        return np.empty(view.shape, view.dtype)

    out = place("output") if request.output else None
    weights = place("weights") if request.weights else None
    argmax, tops, top_keys = NO_INTEGERS, NO_NUMBERS[sum_type(problem)], NO_INTEGERS
    shape = (*problem.sizes, len(problem.rows))
    if request.moments:
        argmax = np.zeros(shape, INTEGER)
    if request.top_k:
        k = _k(problem, request)
        tops = np.full((*shape, k), -np.inf, sum_type(problem))
        top_keys = np.zeros((*shape, k), INTEGER)
    rows = _rows(problem, len(ROWS) * _notes_rows(request) + len(MOMENTS) * request.moments)
    return Places(out, weights, tuple(elsewhere), rows, argmax, tops, top_keys)


INTEGER = np.dtype(np.int64)
NO_INTEGERS = np.empty(0, INTEGER)
NO_NUMBERS = {np.dtype(kind): np.empty(0, kind) for kind in ("float32", "float64")}


def _rows(problem: Problem, n: int) -> np.ndarray:
    """Return memory for n numbers of each row."""
    return np.empty((n, *problem.sizes, len(problem.rows)), sum_type(problem))


def _own(problem: Problem, x: np.ndarray) -> Any:
    """Return an array of the caller's library."""
    if problem.xp is np:
        return x
    return problem.xp.asarray(x, device=memory.device_of(problem.xp, problem.query))


def _finish(
    problem: Problem,
    request: Request,
    results: Results,
    places: Places,
    index: Index,
    rows: slice,
) -> None:
    """Make what is wanted of the sums of some rows of a part."""
    sums = places.rows[..., rows]
    row_max, shift, total = (_own(problem, x) for x in sums[: len(ROWS)])
    moments = top = None
    if request.moments:
        moments = _moments(problem, sums, places.argmax[..., rows])
    if request.top_k:
        tops, keys = places.tops[..., rows, :], places.top_keys[..., rows, :]
        top = TopK(_own(problem, tops), _own(problem, keys))
    first = index[-1].start or 0
    results.finish(
        (*index[:-1], slice(first + rows.start, first + rows.stop)),
        row_max=row_max,
        shift=shift,
        total=total,
        moments=moments,
        top=top,
        sinks=problem.sinks,
    )


def _moments(problem: Problem, sums: np.ndarray, argmax: np.ndarray) -> Moments:
    """Return the moments of rows; the sums of the others do not count the largest itself."""
    row_max = sums[0]
    found = dict(zip(MOMENTS, sums[len(ROWS) :], strict=True))
    found["total"] = np.where(row_max == -np.inf, np.zeros_like(row_max), found["rest"] + 1)
    found |= {"row_max": row_max, "argmax": argmax}
    return Moments(**{name: _own(problem, x) for name, x in found.items()})


def _attend(problem: Problem, places: Places, blocks: Blocks) -> bool:
    """Write the output, maxima and sums; tell whether that could be done.

    Where no rows are wanted, an output that is not finite cannot be contained.
    """
    given = inputs(problem, places.out, has_rows=places.rows.size > 0, block_keys=blocks.keys)
    if given.its.is_decoding and _decode(given, places, blocks.threads):
        return True
    return _do_tiles(given, places, forward.run, (), given.its.n_items, blocks.threads)


def _observe(
    problem: Problem, request: Request, places: Places, blocks: Blocks
) -> np.ndarray | None:
    """Write all that is wanted; return what each key receives, if that is."""
    weights, wants_received = places.weights, "received" in request.statistics
    wanted = Wanted(
        moments=request.moments,
        distance="distance" in request.statistics,
        k=places.tops.shape[-1],
        received=wants_received,
        weights=None if weights is None else lies(weights),
        lead=None if weights is None else _lead(weights),
    )
    given = inputs(problem, places.out, has_rows=True, block_keys=blocks.keys, wanted=wanted)
    its, sums = given.its, sum_type(problem)
    n_folded = int(its.call["n_folded"][0])
    n_keys = problem.key.shape[-2] if wants_received else 0
    received = np.zeros((len(its.keyed), its.n_turns, n_folded, n_keys), sums)
    more = (
        np.zeros(1, given.query.dtype) if weights is None else window(weights, writable=True),
        received.reshape(-1),
        places.argmax.reshape(-1),
        places.tops.reshape(-1),
        places.top_keys.reshape(-1),
    )
    _do_tiles(given, places, observe.run, more, len(its.keyed) * its.n_turns, blocks.threads)
    places.tops[...] *= its.call["unit"][0]
    if not wants_received:
        return None
    found: np.ndarray = received.sum(axis=1).reshape(*problem.sizes, n_keys)
    return found


def _lead(weights: np.ndarray) -> int | None:
    """Return how many weights of each row stand before a line of memory begins, if many stand."""
    line, size = target.vector_bytes(), weights.itemsize
    small = weights.nbytes <= STREAM_BYTES or size < 4 or weights.strides[-1] != size
    if small or any(stride % line for stride in weights.strides[:-1]):
        return None
    return -weights.ctypes.data % line // size


def _decode(given: Inputs, places: Places, limit: int) -> bool:
    """Attend with few queries; tell whether all that was met is finite."""
    its, rows, sums = given.its, places.rows.reshape(-1), places.rows.dtype
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
    threads.run(kernel, its.n_parts, budget, min(n_threads, its.n_parts))
    if trouble[0]:
        return False
    x = memory.empty(np, (its.part_floats,), sums, None)
    decode.join(its.call, its.heads, parts, given.sinks, _out(given, places), rows, x)
    return True


def _out(given: Inputs, places: Places) -> np.ndarray:
    """Return the place of the output as kernels take it."""
    if places.out is None:
        return np.zeros(1, given.query.dtype)
    return window(places.out, writable=True)


def _do_tiles(
    given: Inputs,
    places: Places,
    entry: Any,
    more: tuple[np.ndarray, ...],
    n_items: int,
    limit: int,
) -> bool:
    """Do all tiles; tell whether the output is what it should be."""
    its, rows = given.its, places.rows.reshape(-1)
    tainted = np.zeros(its.n_items + 1, np.uint8)  # and whether any is
    common = (*given[1:], _out(given, places), rows, tainted)
    few = tuple([x.dtype for x in (given.query, given.bias, given.mask, common[-3])])
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
    threads.run(kernel, n_items, budget, min(n_threads, n_items))


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
