"""The fused engine: a call in parts, the places kernels write to, results made of their sums."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scaledot import arrays as memory
from scaledot.fused import launch, target
from scaledot.fused.inputs import NO_INTEGERS, NO_NUMBERS, inputs, lies, sum_type
from scaledot.fused.tables import FEWEST_TURNS, LEAST_TURNS, Wanted
from scaledot.fused.windows import is_whole, window
from scaledot.fused.work import MOMENTS, ROWS
from scaledot.problem import WHOLE, Index, Problem
from scaledot.request import Blocks, Request, Results
from scaledot.results import TopK
from scaledot.statistics import Moments

STREAM_BYTES = 2**23
"""Weights of more bytes are written past the caches, which they would only empty; but not into
fresh memory, whose pages the system has just filled with zeros and left there."""
NOTED_BYTES = 2**20
"""What kernels note of rows, sums and candidates, that is in memory at once; the rows go in parts
of the same size for any number of threads, so that the bits are the same."""
TURN_FLOPS = 4e9
"""Operations of a turn of `scaledot.fused.observe`, for which Ctrl-C waits too."""
WHOLE_TILES = 48
"""Rows that are whole tiles at any width."""
FINISHED = 2**13
"""Numbers of one kind that statistics are made of at once, near the caches."""


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
    """Yield parts and their places (*batch, *folded, T): some heads, or some rows of a head."""
    n_heads, n_rows = math.prod(problem.sizes), len(problem.rows)
    if 0 in (n_heads, n_rows):
        return
    if is_at_once(problem, request):
        yield (WHOLE,) * (len(problem.sizes) + 1), problem
        return
    most = _rows_at_once(problem, request)
    n_parts = -(-n_heads // max(1, most // n_rows))
    whole = WHOLE_TILES
    if "received" in request.statistics:
        whole *= LEAST_TURNS  # turns of as many tiles, for threads to share alike
    for heads, part in problem.parts(-(-n_heads // n_parts)):
        if most >= n_rows:
            yield (*heads, WHOLE), part
            continue
        for rows in part.row_blocks(most // whole * whole or most):
            yield (*heads, rows), part.of_rows(rows)


def is_at_once(problem: Problem, request: Request) -> bool:
    """Tell whether a call is done in one part."""
    return math.prod(problem.sizes) * len(problem.rows) <= _rows_at_once(problem, request)


def _rows_at_once(problem: Problem, request: Request) -> int:
    """Return how many rows fit into `NOTED_BYTES`, and into the time of turns."""
    sums = sum_type(problem).itemsize
    size = len(ROWS) * sums if _notes_rows(request) else 0
    if request.moments:
        size += len(MOMENTS) * sums + INTEGER.itemsize
    if request.top_k:
        size += _k(problem, request) * (sums + INTEGER.itemsize)
    most = math.prod(problem.sizes) * len(problem.rows)
    if size:
        most = min(most, NOTED_BYTES // size)
    if "received" in request.statistics:
        # the products with the keys, twice, and with the values
        value_size = 0 if problem.value is None else problem.value.shape[-1]
        flops = 2 * problem.frame.n_keys * (2 * problem.query.shape[-1] + value_size)
        most = min(most, int(FEWEST_TURNS * TURN_FLOPS) // max(1, flops))
    return max(1, most)


def _notes_rows(request: Request) -> bool:
    """Tell whether maxima and sums of rows are needed once the rows are done."""
    return request.residuals or bool(request.statistics) or request.weights


def _k(problem: Problem, request: Request) -> int:
    """Return how many of the largest weights a row can have."""
    return min(request.k, problem.frame.n_keys)


def _run_part(
    problem: Problem, request: Request, results: Results, index: Index, blocks: Blocks
) -> None:
    """Fill the results of a part; `index` is its place."""
    places = _places(problem, request, results, index)
    if request.more:
        lead = None
        if places.weights is not None and "weights" in results.given:
            lead = _lead(places.weights)
        received = _observe(problem, request, places, lead, blocks)
        if received is not None:
            results.add("received", (*index[:-1], WHOLE), received)
    elif not _attend(problem, places, blocks):
        # Values that are not finite take a second pass, which needs the normalisers.
        _attend(problem, places._replace(rows=_rows(problem, len(ROWS))), blocks)
    for name, x in (("output", places.out), ("weights", places.weights)):
        if x is not None and name in places.elsewhere:
            results.put(name, (*index, WHOLE), x)
    if request.residuals or request.statistics:
        numbers = math.prod(problem.sizes) * max(1, places.tops.shape[-1])
        for rows in problem.row_blocks(max(1, FINISHED // numbers)):
            _finish(problem, request, results, places, index, rows)


def _places(problem: Problem, request: Request, results: Results, index: Index) -> Places:
    """Return memory for what is wanted: that of the results themselves where it can be written."""
    elsewhere = []

    def place(name: str) -> np.ndarray:
        view: np.ndarray = results.view(name)[index]
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


INTEGER = NO_INTEGERS.dtype


def _rows(problem: Problem, n: int) -> np.ndarray:
    """Return memory for n numbers of each row."""
    return np.empty((n, *problem.sizes, len(problem.rows)), sum_type(problem))


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
    row_max, shift, total = sums[: len(ROWS)]
    moments = top = None
    if request.moments:
        moments = _moments(sums, places.argmax[..., rows])
    if request.top_k:
        top = TopK(places.tops[..., rows, :], places.top_keys[..., rows, :])
    first = index[-1].start or 0
    results.finish(
        (*index[:-1], slice(first + rows.start, first + rows.stop)),
        row_max=row_max,
        shift=shift,
        total=total,
        moments=moments,
        top=top,
        sinks=None if problem.sinks is None else memory.as_numpy(problem.sinks),
    )


def _moments(sums: np.ndarray, argmax: np.ndarray) -> Moments:
    """Return the moments of rows; the sums of the others do not count the largest itself."""
    row_max = sums[0]
    found = dict(zip(MOMENTS, sums[len(ROWS) :], strict=True))
    found["total"] = np.where(row_max == -np.inf, np.zeros_like(row_max), found["rest"] + 1)
    found |= {"row_max": row_max, "argmax": argmax}
    return Moments(**found)


def _attend(problem: Problem, places: Places, blocks: Blocks) -> bool:
    """Write the output, maxima and sums; tell whether that could be done."""
    given = inputs(problem, places.out, has_rows=places.rows.size > 0, block_keys=blocks.keys)
    return launch.attend(given, places.out, places.rows, blocks.threads)


def _observe(
    problem: Problem, request: Request, places: Places, lead: int | None, blocks: Blocks
) -> np.ndarray | None:
    """Write all that is wanted; return what each key receives, if that is."""
    weights, wants_received = places.weights, "received" in request.statistics
    wanted = Wanted(
        moments=request.moments,
        distance="distance" in request.statistics,
        k=places.tops.shape[-1],
        received=wants_received,
        weights=None if weights is None else lies(weights),
        lead=lead,
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
    launch.observe(given, places.out, places.rows, more, blocks.threads)
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
